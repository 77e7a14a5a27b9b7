"""Scores of the suites `v1` and `v1-lite`: the references have seeds of their own and are taken as exact.

The score of a seed is (its return − the return of `alone`) / (the return of `mean` − that of `alone`), where the
references are interquartile means over their seeds. Scores below the floor of the suite count as the floor, so that one
ruined run does not outweigh everything else. The score of a cell is the interquartile mean over seeds. The score of a
setting, a task with a federation, is that of its worst attack. The overall score is the mean over all ranked settings.
Bootstrap samples draw seeds within every cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import Cell, reference_cells
from jaxbyz.benchmark.results import CellResult
from jaxbyz.benchmark.scores import CellScore, Results, Scoring, estimate, performance, reached_at
from jaxbyz.benchmark.suite import Suite
from jaxbyz.report.intervals import (
    FEWEST_FOR_INTERVAL,
    Estimate,
    bootstrap_iqms,
    interquartile_mean,
    without_interval,
)


class References(NamedTuple):
    """The returns of a setting that have the scores 0 and 1.

    They make a scale only if both are finite and the federation with the mean is better than one agent alone.
    """

    alone: float
    mean: float

    @property
    def make_scale(self) -> bool:
        """Whether returns have scores."""
        return -np.inf < self.alone < self.mean


def references_of(suite: Suite, results: Results, task: str, federation: str) -> References | None:
    """Return the references of a setting, or None if they were not run."""
    cells = reference_cells(suite, task, federation)
    if any(cell not in results for cell in cells):
        return None
    alone, mean = (float(interquartile_mean(reference_returns(suite, results[cell]))) for cell in cells)
    return References(alone, mean)


def reference_returns(suite: Suite, result: CellResult) -> np.ndarray:
    """Return the measure of every seed of a reference, `[seeds]`; −∞, the lowest, for seeds that became non-finite."""
    returns = performance(result, suite.statistics.measure)
    return np.where(np.isnan(returns), -np.inf, returns)


def normalise(returns: np.ndarray, references: References, floor: float) -> np.ndarray:
    """Return the scores of returns; NaN and scores below the floor become the floor."""
    scores = (returns - references.alone) / (references.mean - references.alone)
    return np.maximum(np.nan_to_num(scores, nan=floor), floor)


def has_scale(suite: Suite, results: Results, task: str, federation: str) -> bool:
    """Return whether returns in a setting have scores."""
    references = references_of(suite, results, task, federation)
    return references is not None and references.make_scale


def score_cell(suite: Suite, results: Results, cell: Cell) -> CellScore:
    """Score one cell. The bootstrap depends on the cell's name only, so that scores can be reproduced."""
    statistics, result = suite.statistics, results[cell]
    references = references_of(suite, results, cell.task, cell.federation)
    assert references is not None
    scores = normalise(performance(result, statistics.measure), references, statistics.floor)
    generator = np.random.default_rng(list(cell.name.encode()))
    resampled = bootstrap_iqms(scores, statistics.resamples, generator)[None]
    value = estimate(float(interquartile_mean(scores)), resampled, statistics.confidence)
    return CellScore(scores, value, resampled, reached_at(suite, result), {})


def total(suite: Suite, results: Results, scores: Mapping[Cell, CellScore]) -> CellScore:
    """Return the score of the worst attack."""
    return min(scores.values(), key=lambda score: float(score.score.value))


def _reference_interval(returns: np.ndarray, suite: Suite) -> Estimate:
    """Return the interquartile mean of a reference's seeds with its percentile interval, as for scores."""
    n, value = len(returns), interquartile_mean(returns)
    if n < FEWEST_FOR_INTERVAL:
        return without_interval(value)
    chosen = np.random.default_rng(0).integers(n, size=(suite.statistics.resamples, n))
    return estimate(float(value), interquartile_mean(returns[chosen.T])[None], suite.statistics.confidence)


def describe(suite: Suite, results: Results, task: str, federation: str) -> dict[str, Any]:
    """Return the references of a setting.

    The intervals of scores do not contain those of the references. The scores of the references on the seeds of the
    entries, which are the first of their own, show whether these seeds are harder than others: on all of their own
    seeds they are 0 and 1. There are none where the references make no scale.
    """
    references, intervals, on_entry_seeds = references_of(suite, results, task, federation), None, {}
    if references is not None:
        cells = reference_cells(suite, task, federation)
        returns = {cell.entry: reference_returns(suite, results[cell]) for cell in cells}
        with np.errstate(invalid="ignore"):  # percentiles of −∞
            intervals = {name: _reference_interval(row, suite) for name, row in returns.items()}
        if references.make_scale:
            first, floor = suite.seeds.count, suite.statistics.floor
            scores = {name: normalise(row[:first], references, floor) for name, row in returns.items()}
            on_entry_seeds = {name: interquartile_mean(row) for name, row in scores.items()}
    return {"references": references, "reference_intervals": intervals, "on_entry_seeds": on_entry_seeds}


SCORING = Scoring(has_scale, score_cell, total, lambda setting, ranked: 1.0, describe, corrected=False)
