"""The leaderboard as JSON values, from which the table, the page and the exports are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.benchmark.entries import NO_ATTACK, Cell, reference_cells, select
from jaxbyz.benchmark.results import Result, load_certificates, load_results
from jaxbyz.benchmark.running import rules_of
from jaxbyz.benchmark.scores import (
    CellScore,
    References,
    Settings,
    SettingScore,
    improvement,
    mean_of_known,
    normalise,
    overall,
    profile,
    profile_levels,
    ranked_settings,
    reference_returns,
    references_of,
    score_entries,
)
from jaxbyz.benchmark.suite import Suite, load_suite
from jaxbyz.configuration.resolving import from_dict
from jaxbyz.report.statistics import Estimate, interquartile_mean, stratified_iqm

Certificates = Mapping[tuple[str, str], dict[str, Any]]


def leaderboard(suite: Suite, results: Mapping[Cell, Result], certificates: Certificates) -> dict[str, Any]:
    """Return the leaderboard: entries in the order of their overall score, incomplete ones last.

    Args:
        suite: the suite of the results.
        results: what was run.
        certificates: verdicts on rules, by federation and rule.
    """
    scores = score_entries(suite, results)
    ranked = ranked_settings(suite, scores)
    totals = {entry: overall(suite, settings, ranked) for entry, settings in scores.items()}

    def order(entry: str) -> tuple[bool, float, str]:
        total = totals[entry]
        return total is None, 0.0 if total is None else -float(total.value), entry

    names = sorted(scores, key=order)
    return {
        "suite": {**suite.label, "summary": suite.summary, "seeds": suite.seeds},
        "measure": suite.statistics.measure,
        "floor": suite.statistics.floor,
        "confidence": suite.statistics.confidence,
        "attacks": list(suite.attacks),
        "ranked": [list(setting) for setting in ranked],
        "settings": [_setting(suite, results, *setting) for setting in suite.settings],
        "entries": [
            {
                "name": name,
                "overall": _estimate(totals[name]),
                "settings": [
                    _entry_setting(suite, results, certificates, name, setting, score)
                    for setting, score in scores[name].items()
                ],
                "profile": _numbers(profile(suite, scores[name], ranked)),
            }
            for name in names
        ],
        "levels": _numbers(profile_levels(suite)),
        "improvement": improvements(suite, names, scores),
    }


def load_leaderboard(
    suite: str, folder: str | Path, tasks: Sequence[str] | None = None, federations: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the leaderboard of the results in a folder, over all settings or those of these tasks and federations."""
    loaded = load_suite(suite)
    results, certificates = load_results(folder, loaded), load_certificates(folder, loaded)
    chosen = select("task", tasks, list(loaded.tasks)), select("federation", federations, list(loaded.federations))
    settings = tuple((t, f) for t, f in loaded.settings if t in chosen[0] and f in chosen[1])
    return leaderboard(loaded._replace(settings=settings), results, certificates)


def improvements(suite: Suite, names: list[str], scores: Mapping[str, Settings]) -> list[list[dict[str, Any] | None]]:
    """Return the probability that the entry of a row beats the entry of a column."""
    rows: list[list[dict[str, Any] | None]] = [[None] * len(names) for _ in names]
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            if i < j and (found := improvement(suite, scores[first], scores[second])) is not None:
                rows[i][j] = _estimate(found)
                rows[j][i] = _estimate(Estimate(1 - found.value, 1 - found.high, 1 - found.low))
    return rows


def _setting(suite: Suite, results: Mapping[Cell, Result], task: str, federation: str) -> dict[str, Any]:
    """Return what all entries have in common in a setting."""
    references = references_of(suite, results, task, federation)
    described = suite.federations[federation]
    return {
        "task": task,
        "federation": federation,
        "agents": described.agents,
        "byzantine": described.byzantine,
        "ranked": described.ranked,
        "threshold": suite.tasks[task].threshold,
        "trajectories": suite.tasks[task].fixed.get("trajectories"),
        "references": None if references is None else references._asdict(),
        "reference_intervals": None if references is None else _reference_intervals(suite, results, task, federation),
        "on_entry_seeds": _on_entry_seeds(suite, results, task, federation, references),
    }


def _reference_intervals(
    suite: Suite, results: Mapping[Cell, Result], task: str, federation: str
) -> dict[str, dict[str, float | None] | None]:
    """Return the intervals of the references, which the intervals of scores do not contain."""
    resamples, confidence = suite.statistics.resamples, suite.statistics.confidence
    returns = {cell.entry: reference_returns(suite, results[cell]) for cell in reference_cells(task, federation)}
    with np.errstate(invalid="ignore"):  # percentiles of −∞
        return {name: _estimate(stratified_iqm([row], resamples, confidence)) for name, row in returns.items()}


def _on_entry_seeds(
    suite: Suite, results: Mapping[Cell, Result], task: str, federation: str, references: References | None
) -> dict[str, float | None]:
    """Return the scores of the references on the seeds of the entries only, which are the first of their own.

    On all of their seeds they are 0 and 1. Where both are lower, the seeds of the entries are harder than others, and
    the scores of all entries are lower as well. There are none where the references make no scale.
    """
    floor, found = suite.statistics.floor, {}
    if references is None or not references.make_scale:
        return {}
    for cell in reference_cells(task, federation):
        returns = reference_returns(suite, results[cell])[: suite.seeds]
        found[cell.entry] = _number(interquartile_mean(normalise(returns, references, floor)))
    return found


def _entry_setting(
    suite: Suite,
    results: Mapping[Cell, Result],
    certificates: Certificates,
    entry: str,
    setting: tuple[str, str],
    score: SettingScore,
) -> dict[str, Any]:
    """Return everything about an entry in a setting."""
    task, federation = setting
    runs = {cell.attack: result for cell, result in results.items() if cell[:3] == (task, federation, entry)}
    cells = dict(score.attacks) if score.unattacked is None else {NO_ATTACK: score.unattacked, **score.attacks}
    config = from_dict(next(iter(runs.values())).config, names=False)
    verdicts = {rule: certificates.get((suite.certified_as(federation), rule)) for rule in rules_of(config)}
    worst = None if score.worst is None else score.attacks[score.worst]
    attacked = [seed for found in score.attacks.values() for seed in found.seeds]
    return {
        "task": task,
        "federation": federation,
        "score": _estimate(score.score),
        "worst_attack": score.worst,
        "missing": score.missing,
        "unattacked": None if score.unattacked is None else _estimate(score.unattacked.score),
        "worst_seed": float(np.min(attacked)) if attacked else None,
        "reached_at": None if worst is None else _number(worst.reached_at),
        "megabytes": float(np.mean([run.bytes_sent for run in runs.values()])) / 1e6,
        "seconds": float(np.mean([run.seconds for run in runs.values()])),
        "machine": sorted({str(run.environment.get("device", "unknown")) for run in runs.values()}),
        "certificates": {
            rule: None if found is None else f"{found['verdict']}{': ' if found['reason'] else ''}{found['reason']}"
            for rule, found in verdicts.items()
        },
        "options": next(iter(runs.values())).options,
        "cells": {attack: _cell(cells[attack], runs[attack]) for attack in cells},
    }


def _cell(score: CellScore, result: Result) -> dict[str, Any]:
    """Return the score and the learning curve of a cell."""
    return {
        "score": _estimate(score.score),
        "seeds": _numbers(score.seeds),
        "reached_at": _number(score.reached_at),
        "average": _number(np.nanmean(result.average)) if result.finite.any() else None,
        "final": _number(np.nanmean(result.final)) if result.finite.any() else None,
        "hash": result.hash,
        "curve": _curve(result),
    }


def _curve(result: Result) -> dict[str, Any]:
    """Return the mean return and its range over the finite seeds that sampled something there."""
    rows = result.returns[result.finite] if result.finite.any() else result.returns[:1]
    spread = {"mean": mean_of_known(rows), "low": np.fmin.reduce(rows), "high": np.fmax.reduce(rows)}
    return {"x": _numbers(result.trajectories), **{name: _numbers(row, 4) for name, row in spread.items()}}


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {name: _number(value) for name, value in estimate._asdict().items()}


def _number(value: float | np.ndarray, digits: int | None = None) -> float | None:
    """Return a JSON number, with this many significant digits; None if it is not finite."""
    if not np.isfinite(value):
        return None
    return float(value) if digits is None else float(f"{float(value):.{digits}g}")


def _numbers(values: np.ndarray | None, digits: int | None = None) -> list[float | None] | None:
    return None if values is None else [_number(value, digits) for value in values]
