"""What all ways to score have in common: the scores of cells, settings and suites.

A score says how much of the gain of federating an entry keeps: 0 is one honest agent alone, and 1 the attack-free
federation with the mean. The file of a suite names the way: `jaxbyz.benchmark.reference_scores` or
`jaxbyz.benchmark.paired_scores`.

References:
    Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import NO_ATTACK, NOT_ENTRIES, Cell
from jaxbyz.benchmark.results import CellResult
from jaxbyz.benchmark.suite import Suite
from jaxbyz.report.intervals import Estimate, percentile_interval
from jaxbyz.report.statistics import first_reached, performance_profile, probability_of_improvement

HIGHEST_LEVEL = 1.25  # of performance profiles
Results = Mapping[Cell, CellResult]


class CellScore(NamedTuple):
    """The score of a cell.

    Attributes:
        seeds: `[seeds]`, the score of every seed.
        score: the score with its interval.
        resampled: `[ends, resamples]`, the scores of bootstrap samples; with two rows, the interval begins where the
            first one says and ends where the second one says.
        reached_at: trajectories per agent until the mean return reaches the threshold of the task; NaN if never.
        besides: further numbers, by name, which depend on the way to score.
    """

    seeds: np.ndarray
    score: Estimate
    resampled: np.ndarray
    reached_at: float
    besides: dict[str, Any]


class SettingScore(NamedTuple):
    """The score of an entry on a task in a federation.

    Attributes:
        attacks: attack -> score of the cell, without `none`.
        unattacked: the score without attack, which shows the price of robustness; None if it was not run.
        missing: attacks that were not run.
        total: the score of the setting, that of the worst attack; None if any attack is missing.
    """

    attacks: dict[str, CellScore]
    unattacked: CellScore | None
    missing: list[str]
    total: CellScore | None

    @property
    def worst(self) -> str | None:
        """The attack with the lowest score; None if any attack is missing."""
        return None if self.missing else min(self.attacks, key=lambda attack: float(self.attacks[attack].score.value))


Settings = dict[tuple[str, str], SettingScore]  # (task, federation) -> score


class Scoring(NamedTuple):
    """A way to score.

    Attributes:
        has_scale: (suite, results, task, federation) -> whether returns in this setting have scores.
        score_cell: (suite, results, cell) -> the score of one of the results.
        total: (suite, results, cells of a setting) -> the score under the worst attack, given one cell per attack.
        weight: (setting, ranked settings) -> what the setting counts in an overall score.
        describe: (suite, results, task, federation) -> what the leaderboard says about the references of a setting.
        corrected: whether the percentiles of intervals are corrected for few seeds.
    """

    has_scale: Callable[[Suite, Results, str, str], bool]
    score_cell: Callable[[Suite, Results, Cell], CellScore]
    total: Callable[[Suite, Results, Mapping[Cell, CellScore]], CellScore]
    weight: Callable[[tuple[str, str], Sequence[tuple[str, str]]], float]
    describe: Callable[[Suite, Results, str, str], dict[str, Any]]
    corrected: bool


def performance(result: CellResult, measure: str) -> np.ndarray:
    """Return the measure of every seed, `[seeds]`; NaN for seeds that became non-finite."""
    return result.average if measure == "average" else result.final


def estimate(value: float, resampled: np.ndarray, confidence: float, seeds: int | None = None) -> Estimate:
    """Return a value with the percentile interval of its bootstrap samples, `[ends, resamples]` as in `CellScore`.

    With the number of seeds, the percentiles are corrected for few of them (`jaxbyz.report.intervals`).
    """
    sizes = [] if seeds is None else [seeds]
    low, _ = percentile_interval(resampled[0], confidence, sizes)
    _, high = percentile_interval(resampled[-1], confidence, sizes)
    return Estimate(np.asarray(value), np.asarray(low), np.asarray(high))


def mean_of_known(rows: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis of the values that are not NaN; NaN where there is none."""
    known = ~np.isnan(rows)
    total = np.sum(np.where(known, rows, 0.0), axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def reached_at(suite: Suite, result: CellResult) -> float:
    """Return the trajectories per agent until the mean return reaches the threshold of the task; NaN if never."""
    curve = mean_of_known(result.returns) if result.finite.any() else result.returns[0]
    return float(first_reached(result.trajectories, curve, suite.tasks[result.cell.task].threshold))


def score_settings(suite: Suite, results: Results, scoring: Scoring) -> dict[str, Settings]:
    """Score every entry in every setting in which it was run and whose references make a scale."""
    entries = list(dict.fromkeys(cell.entry for cell in results if cell.entry not in NOT_ENTRIES))
    scores: dict[str, Settings] = {entry: {} for entry in entries}
    for setting in suite.settings:
        if scoring.has_scale(suite, results, *setting):
            for entry in entries:
                if any(cell[:3] == (*setting, entry) for cell in results):
                    scores[entry][setting] = _score_setting(suite, results, scoring, *setting, entry)
    return scores


def _score_setting(
    suite: Suite, results: Results, scoring: Scoring, task: str, federation: str, entry: str
) -> SettingScore:
    """Score an entry in one setting; without the results of all attacks it has no score."""
    attacks = suite.attacks_in(task, federation)
    cells = {attack: Cell(task, federation, entry, attack) for attack in (NO_ATTACK, *attacks)}
    found = {attack: scoring.score_cell(suite, results, cell) for attack, cell in cells.items() if cell in results}
    unattacked = found.pop(NO_ATTACK, None)
    missing = [attack for attack in attacks if attack not in found]
    scored = {cells[attack]: score for attack, score in found.items()}
    return SettingScore(found, unattacked, missing, None if missing else scoring.total(suite, results, scored))


def ranked_settings(suite: Suite, scores: Mapping[str, Settings]) -> list[tuple[str, str]]:
    """Return the ranked settings for which results exist."""
    known = [setting for setting in suite.settings if suite.is_ranked(*setting)]
    return [setting for setting in known if any(setting in found for found in scores.values())]


def overall(suite: Suite, settings: Settings, ranked: Sequence[tuple[str, str]], scoring: Scoring) -> Estimate | None:
    """Return the weighted mean score over the ranked settings, or None if one of them has no score."""
    totals = total_scores(settings, ranked)
    if not totals:
        return None
    weights = np.array([scoring.weight(setting, ranked) for setting in ranked])
    value = float(np.average([total.score.value for total in totals], weights=weights))
    resampled = np.average([total.resampled for total in totals], axis=0, weights=weights)
    return estimate(value, resampled, suite.statistics.confidence, suite.seeds.count if scoring.corrected else None)


def total_scores(settings: Settings, ranked: Iterable[tuple[str, str]]) -> list[CellScore]:
    """Return the scores of the ranked settings under their worst attacks; none if one of them is missing."""
    found = [settings[setting].total if setting in settings else None for setting in ranked]
    complete = [total for total in found if total is not None]
    return complete if len(complete) == len(found) else []


def profile_levels(suite: Suite) -> np.ndarray:
    """Return the scores at which performance profiles are evaluated."""
    return np.linspace(suite.statistics.floor, HIGHEST_LEVEL, 46)


def profile(suite: Suite, settings: Settings, ranked: Iterable[tuple[str, str]]) -> np.ndarray | None:
    """Return the share of seeds above each level under the worst attack, mean over ranked settings; None if missing."""
    rows = [performance_profile(total.seeds, profile_levels(suite)) for total in total_scores(settings, ranked)]
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
