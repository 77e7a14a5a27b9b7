"""Scores: returns on a scale where 0 is one honest agent alone and 1 the attack-free federation with the mean.

The score of a seed is (its return − the return of `alone`) / (the return of `mean` − that of `alone`), where the
references are interquartile means over their seeds, taken as exact. Scores below the floor of the suite count as the
floor, so that one ruined run does not outweigh everything else. The score of a cell is the interquartile mean over
seeds. The score of a setting, a task with a federation, is that of its worst attack. The overall score is the mean over
all ranked settings. Bootstrap samples draw seeds within every cell.

References:
    Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import ALONE, MEAN, NO_ATTACK, Cell, reference_cells
from jaxbyz.benchmark.results import CellResult
from jaxbyz.benchmark.suite import Suite
from jaxbyz.report.intervals import Estimate, bootstrap_iqms, interquartile_mean, percentile_interval
from jaxbyz.report.statistics import first_reached, performance_profile, probability_of_improvement

HIGHEST_LEVEL = 1.25  # of performance profiles


class CellScore(NamedTuple):
    """The score of a cell.

    Attributes:
        seeds: `[seeds]`, the score of every seed.
        score: the interquartile mean with its interval.
        resampled: `[resamples]`, the interquartile means of bootstrap samples.
        reached_at: trajectories per agent until the mean return reaches the threshold of the task; NaN if never.
    """

    seeds: np.ndarray
    score: Estimate
    resampled: np.ndarray
    reached_at: float


class SettingScore(NamedTuple):
    """The score of an entry on a task in a federation.

    Attributes:
        attacks: attack -> score of the cell, without `none`.
        unattacked: the score without attack, which shows the price of robustness; None if it was not run.
        missing: attacks that were not run.
    """

    attacks: dict[str, CellScore]
    unattacked: CellScore | None
    missing: list[str]

    @property
    def worst(self) -> str | None:
        """The attack with the lowest score, which is that of the setting; None if any attack is missing."""
        return None if self.missing else min(self.attacks, key=lambda attack: float(self.attacks[attack].score.value))

    @property
    def worst_cell(self) -> CellScore | None:
        """The score under that attack."""
        return None if self.worst is None else self.attacks[self.worst]


Settings = dict[tuple[str, str], SettingScore]  # (task, federation) -> score


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


def performance(result: CellResult, measure: str) -> np.ndarray:
    """Return the measure of every seed, `[seeds]`; NaN for seeds that became non-finite."""
    return result.average if measure == "average" else result.final


def references_of(suite: Suite, results: Mapping[Cell, CellResult], task: str, federation: str) -> References | None:
    """Return the references of a setting, or None if they were not run."""
    cells = reference_cells(task, federation)
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


def estimate(value: float, resampled: np.ndarray, confidence: float) -> Estimate:
    """Return a value with the percentile interval of its bootstrap samples."""
    low, high = percentile_interval(resampled, confidence)
    return Estimate(np.asarray(value), np.asarray(low), np.asarray(high))


def mean_of_known(rows: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis of the values that are not NaN; NaN where there is none."""
    known = ~np.isnan(rows)
    total = np.sum(np.where(known, rows, 0.0), axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def score_cell(suite: Suite, result: CellResult, references: References) -> CellScore:
    """Score one cell. The bootstrap depends on the cell's name only, so that scores can be reproduced."""
    statistics = suite.statistics
    scores = normalise(performance(result, statistics.measure), references, statistics.floor)
    generator = np.random.default_rng(list(result.cell.name.encode()))
    resampled = bootstrap_iqms(scores, statistics.resamples, generator)
    curve = mean_of_known(result.returns) if result.finite.any() else result.returns[0]
    reached_at = float(first_reached(result.trajectories, curve, suite.tasks[result.cell.task].threshold))
    value = estimate(float(interquartile_mean(scores)), resampled, statistics.confidence)
    return CellScore(scores, value, resampled, reached_at)


def score_setting(
    suite: Suite, results: Mapping[Cell, CellResult], references: References, task: str, federation: str, entry: str
) -> SettingScore:
    """Score an entry in one setting; without the results of all attacks it has no score."""

    def scored(attack: str) -> CellScore | None:
        result = results.get(Cell(task, federation, entry, attack))
        return None if result is None else score_cell(suite, result, references)

    attacks = suite.attacks_in(task, federation)
    found = {attack: score for attack in attacks if (score := scored(attack)) is not None}
    missing = [attack for attack in attacks if attack not in found]
    return SettingScore(found, scored(NO_ATTACK), missing)


def score_entries(suite: Suite, results: Mapping[Cell, CellResult]) -> dict[str, Settings]:
    """Score every entry in every setting in which it was run and whose references make a scale."""
    entries = list(dict.fromkeys(cell.entry for cell in results if cell.entry not in (ALONE, MEAN)))
    scores: dict[str, Settings] = {entry: {} for entry in entries}
    for task, federation in suite.settings:
        references = references_of(suite, results, task, federation)
        if references is None or not references.make_scale:
            continue
        for entry in entries:
            if any(cell[:3] == (task, federation, entry) for cell in results):
                found = score_setting(suite, results, references, task, federation, entry)
                scores[entry][task, federation] = found
    return scores


def ranked_settings(suite: Suite, scores: Mapping[str, Settings]) -> list[tuple[str, str]]:
    """Return the ranked settings for which results exist."""
    known = [setting for setting in suite.settings if suite.federations[setting[1]].ranked]
    return [setting for setting in known if any(setting in found for found in scores.values())]


def overall(suite: Suite, settings: Settings, ranked: Iterable[tuple[str, str]]) -> Estimate | None:
    """Return the mean score over the ranked settings, or None if one of them has no score."""
    cells = worst_cells(settings, ranked)
    if not cells:
        return None
    value = float(np.mean([cell.score.value for cell in cells]))
    return estimate(value, np.mean([cell.resampled for cell in cells], axis=0), suite.statistics.confidence)


def worst_cells(settings: Settings, ranked: Iterable[tuple[str, str]]) -> list[CellScore]:
    """Return the scores of the ranked settings under their worst attacks; none if one of them is missing."""
    found = [settings[setting].worst_cell if setting in settings else None for setting in ranked]
    complete = [cell for cell in found if cell is not None]
    return complete if len(complete) == len(found) else []


def profile_levels(suite: Suite) -> np.ndarray:
    """Return the scores at which performance profiles are evaluated."""
    return np.linspace(suite.statistics.floor, HIGHEST_LEVEL, 46)


def profile(suite: Suite, settings: Settings, ranked: Iterable[tuple[str, str]]) -> np.ndarray | None:
    """Return the share of seeds above each level under the worst attack, mean over ranked settings; None if missing."""
    cells = worst_cells(settings, ranked)
    rows = [performance_profile(cell.seeds, profile_levels(suite)) for cell in cells]
    return np.mean(rows, axis=0) if rows else None


def improvement(suite: Suite, first: Settings, second: Settings) -> Estimate | None:
    """Return the probability that a seed of the first entry beats one of the second, mean over attacked cells of both.

    None if they have no attacked cell in common.
    """
    pairs = [
        (score.seeds, second[setting].attacks[attack].seeds)
        for setting, found in first.items()
        for attack, score in found.attacks.items()
        if setting in second and attack in second[setting].attacks
    ]
    return probability_of_improvement(pairs, 200, suite.statistics.confidence) if pairs else None
