"""Scores of the suites `v2` and `v2-lite`: every seed is compared with the references on the same seed.

For seed i of a setting, a task with a federation, let aᵢ, mᵢ and xᵢ be the returns of `alone`, of `mean` and of an
entry under an attack. The gain of the entry is xᵢ − aᵢ, that of the federation without liars mᵢ − aᵢ, and

    score = Σᵢ (xᵢ − aᵢ) / Σᵢ (mᵢ − aᵢ).

Bootstrap samples draw seeds with all that was measured on them, so that intervals contain the noise of the references.
There is no floor, except that a seed that became non-finite counts as the floor of the suite.

The score of a setting is that of the worst attack, which is chosen on other seeds than those that are scored: the seeds
are divided into `FOLDS` parts, and each part is scored under the attack that is worst on all other parts. The interval
begins where it does under the attack that all seeds together call worst, whose score is too low on average, and ends
where it does under the attacks chosen on other seeds, whose score is too high on average. Percentiles are corrected for
few seeds.

Settings of one task share its seeds and are averaged first, so that every task counts once. Tasks are independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxbyz.benchmark.entries import Cell, reference_cell, reference_cells
from jaxbyz.benchmark.scores import CellScore, Results, Scoring, estimate, performance, reached_at
from jaxbyz.benchmark.suite import ALONE, MEAN, POOLED, Suite
from jaxbyz.report.intervals import Estimate, interquartile_mean

FOLDS = 5


def worst_on_other_seeds(returns: np.ndarray, folds: int = FOLDS) -> np.ndarray:
    """Return for every seed the attack that is worst on the seeds of other parts.

    Args:
        returns: `[seeds, attacks]`. Seed i belongs to part i mod `folds`.
        folds: the number of parts.

    Returns:
        `[seeds]`, positions of attacks.
    """
    part = np.arange(len(returns)) % folds
    worst = [returns[part != k].mean(axis=0).argmin() if (part != k).any() else 0 for k in range(folds)]
    return np.array(worst)[part]


def draws(suite: Suite, task: str) -> np.ndarray:
    """Return the seeds of every bootstrap sample, `[resamples, seeds]`: the same for all that is measured on a task."""
    generator = np.random.default_rng(list(task.encode()))
    return generator.integers(suite.seeds.count, size=(suite.statistics.resamples, suite.seeds.count))


def gain(suite: Suite, results: Results, cell: Cell) -> np.ndarray:
    """Return the return of every seed minus that of one agent alone with the same seed, `[seeds]`."""
    return _returns(suite, results, cell) - _returns(suite, results, reference_cell(suite, ALONE, *cell[:2]))


def scale(suite: Suite, results: Results, task: str, federation: str) -> np.ndarray:
    """Return the gain of the federation without liars, `[seeds]`."""
    return gain(suite, results, reference_cell(suite, MEAN, task, federation))


def _returns(suite: Suite, results: Results, cell: Cell) -> np.ndarray:
    """Return the measure of every seed, `[seeds]`; of one that became non-finite, the return with the score `floor`.

    A reference that became non-finite has the lowest return of its other seeds.
    """
    found = performance(results[cell], suite.statistics.measure)
    if np.isfinite(found).all():
        return found
    if cell.entry in suite.references:
        return np.nan_to_num(found, nan=np.nanmin(found) if np.isfinite(found).any() else -np.inf)
    alone = _returns(suite, results, reference_cell(suite, ALONE, *cell[:2]))
    lowest = alone + suite.statistics.floor * scale(suite, results, *cell[:2]).mean()
    return np.where(np.isfinite(found), found, lowest)


def has_scale(suite: Suite, results: Results, task: str, federation: str) -> bool:
    """Return whether returns in a setting have scores: the federation without liars is better than one agent alone."""
    if any(cell not in results for cell in reference_cells(suite, task, federation)):
        return False
    gains = scale(suite, results, task, federation)
    return bool(np.isfinite(gains).all() and gains.mean() > 0)


def _score(suite: Suite, task: str, rows: Sequence[np.ndarray], unit: np.ndarray, reached: float) -> CellScore:
    """Return a score from the gains of the entry and of the federation without liars.

    Args:
        suite: the suite.
        task: the task.
        rows: the gains of the entry, `[seeds]` each: those that are reported, and, if the interval begins elsewhere,
            those for its beginning.
        unit: `[seeds]`, the gains of the federation without liars.
        reached: trajectories until the threshold.
    """
    drawn, confidence = draws(suite, task), suite.statistics.confidence
    units, gains = unit[drawn].mean(axis=1), rows[0]
    resampled = np.stack([row[drawn].mean(axis=1) / units for row in reversed(rows)])
    in_returns = np.stack([row[drawn].mean(axis=1) for row in reversed(rows)])
    besides = {
        "gain": estimate(float(gains.mean()), in_returns, confidence, len(gains)),
        "robust": float(interquartile_mean(gains) / interquartile_mean(unit)),
        "failed": float(np.mean(gains < 0)),
    }
    value = estimate(float(gains.mean() / unit.mean()), resampled, confidence, len(gains))
    return CellScore(gains / unit.mean(), value, resampled, reached, besides)


def score_cell(suite: Suite, results: Results, cell: Cell) -> CellScore:
    """Score one cell."""
    unit = scale(suite, results, cell.task, cell.federation)
    return _score(suite, cell.task, [gain(suite, results, cell)], unit, reached_at(suite, results[cell]))


def total(suite: Suite, results: Results, scores: Mapping[Cell, CellScore]) -> CellScore:
    """Return the score under the worst attack, which is chosen on other seeds than those that are scored."""
    cells = list(scores)
    task, federation = cells[0][:2]
    gains = np.stack([gain(suite, results, cell) for cell in cells], axis=1)
    chosen, worst = worst_on_other_seeds(gains), int(gains.mean(axis=0).argmin())
    rows = [gains[np.arange(len(gains)), chosen], gains[:, worst]]
    found = _score(suite, task, rows, scale(suite, results, task, federation), scores[cells[worst]].reached_at)
    names = [cells[i].attack for i in chosen]
    found.besides["chosen"] = {name: names.count(name) for name in dict.fromkeys(names)}
    return found


def weight(setting: tuple[str, str], ranked: Sequence[tuple[str, str]]) -> float:
    """Return one over the number of ranked settings of the task."""
    return 1 / sum(task == setting[0] for task, _ in ranked)


def describe(suite: Suite, results: Results, task: str, federation: str) -> dict[str, Any]:
    """Return mean returns of the references, their paired gains, and the share of seeds on which the mean loses."""
    cells = {name: reference_cell(suite, name, task, federation) for name in suite.references}
    if any(cell not in results for cell in cells.values()):
        return {"references": None}
    drawn, confidence = draws(suite, task), suite.statistics.confidence

    def interval(values: np.ndarray) -> Estimate:
        return estimate(float(values.mean()), values[drawn].mean(axis=1)[None], confidence, len(values))

    returns = {name: _returns(suite, results, cell) for name, cell in cells.items()}
    unit, pooled = returns[MEAN] - returns[ALONE], returns[POOLED] - returns[ALONE]
    ratio = pooled[drawn].mean(axis=1) / unit[drawn].mean(axis=1)
    error = float(unit.std(ddof=1) / np.sqrt(len(unit))) if len(unit) > 1 else np.nan
    return {
        "references": {name: float(row.mean()) for name, row in returns.items()},
        "reference_intervals": {name: interval(row) for name, row in returns.items()},
        "gain": interval(unit),
        "standard_errors": float(unit.mean()) / error if error > 0 else np.nan,
        "pooled": estimate(float(pooled.mean() / unit.mean()), ratio[None], confidence, len(unit)),
        "failed": float(np.mean(unit < 0)),
    }


SCORING = Scoring(has_scale, score_cell, total, weight, describe, corrected=True)
