"""The leaderboard as JSON values, from which the table and the page are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.benchmark.checks import results_among
from jaxbyz.benchmark.entries import NO_ATTACK, Cell, select
from jaxbyz.benchmark.records import read_records
from jaxbyz.benchmark.results import CellResult, certificates_among
from jaxbyz.benchmark.running import rules_of
from jaxbyz.benchmark.scores import (
    CellScore,
    Settings,
    SettingScore,
    improvement,
    mean_of_known,
    overall,
    profile,
    profile_levels,
    ranked_settings,
)
from jaxbyz.benchmark.scoring import score_entries, scoring_of
from jaxbyz.benchmark.suite import Suite, load_suite
from jaxbyz.configuration.resolving import from_dict
from jaxbyz.report.intervals import Estimate

Certificates = Mapping[tuple[str, str], dict[str, Any]]


def leaderboard(suite: Suite, results: Mapping[Cell, CellResult], certificates: Certificates) -> dict[str, Any]:
    """Return the leaderboard: entries in the order of their overall score, incomplete ones last.

    Args:
        suite: the suite of the results.
        results: what was run.
        certificates: verdicts on rules, by federation and rule.
    """
    scores = score_entries(suite, results)
    ranked = ranked_settings(suite, scores)
    scoring = scoring_of(suite)
    totals = {entry: overall(suite, settings, ranked, scoring) for entry, settings in scores.items()}

    def order(entry: str) -> tuple[bool, float, str]:
        total = totals[entry]
        return total is None, 0.0 if total is None else -float(total.value), entry

    names = sorted(scores, key=order)
    board = {
        "suite": {**suite.label, "summary": suite.summary, "seeds": suite.seeds.count},
        "scoring": suite.statistics.scoring,
        "measure": suite.statistics.measure,
        "floor": suite.statistics.floor,
        "confidence": suite.statistics.confidence,
        "attacks": suite.attacks,
        "ranked": ranked,
        "settings": [_setting(suite, results, *setting) for setting in suite.settings],
        "entries": [
            {
                "name": name,
                "overall": totals[name],
                "settings": [
                    _entry_setting(suite, results, certificates, Cell(*setting, name, NO_ATTACK), score)
                    for setting, score in scores[name].items()
                ],
                "profile": profile(suite, scores[name], ranked),
            }
            for name in names
        ],
        "levels": profile_levels(suite),
        "improvement": improvements(suite, [scores[name] for name in names]),
    }
    return _json_values(board)


def load_leaderboard(
    suite: str, source: str | Path, tasks: Sequence[str] | None = None, federations: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the leaderboard of a folder or a .jsonl.gz file, over all settings or some."""
    loaded = load_suite(suite)
    records = read_records(source, loaded).values()
    results, certificates = results_among(records, source, loaded), certificates_among(records)
    chosen = select("task", tasks, list(loaded.tasks)), select("federation", federations, list(loaded.federations))
    settings = tuple((t, f) for t, f in loaded.settings if t in chosen[0] and f in chosen[1])
    return leaderboard(loaded._replace(settings=settings), results, certificates)


def improvements(suite: Suite, scores: Sequence[Settings]) -> list[list[Estimate | None]]:
    """Return the probability that the entry of a row beats the entry of a column."""
    rows: list[list[Estimate | None]] = [[None] * len(scores) for _ in scores]
    for i, first in enumerate(scores):
        for j, second in enumerate(scores[:i]):
            if (found := improvement(suite, second, first)) is not None:
                rows[j][i], rows[i][j] = found, Estimate(1 - found.value, 1 - found.high, 1 - found.low)
    return rows


def _setting(suite: Suite, results: Mapping[Cell, CellResult], task: str, federation: str) -> dict[str, Any]:
    """Return what all entries have in common in a setting, with its references."""
    described = suite.federations[federation]
    return {
        "task": task,
        "federation": federation,
        "agents": described.agents,
        "byzantine": described.byzantine,
        "ranked": suite.is_ranked(task, federation),
        "threshold": suite.tasks[task].threshold,
        "trajectories": suite.tasks[task].fixed.get("trajectories"),
        **scoring_of(suite).describe(suite, results, task, federation),
    }


def _entry_setting(
    suite: Suite, results: Mapping[Cell, CellResult], certificates: Certificates, cell: Cell, score: SettingScore
) -> dict[str, Any]:
    """Return everything about the entry of a cell in its setting."""
    runs = {other.attack: result for other, result in results.items() if other[:3] == cell[:3]}
    cells = dict(score.attacks) if score.unattacked is None else {NO_ATTACK: score.unattacked, **score.attacks}
    one = next(iter(runs.values()))
    rules = rules_of(from_dict(one.config, names=False))
    verdicts = {rule: certificates.get((suite.first_of_size(cell.federation), rule)) for rule in rules}
    attacked = [seed for found in score.attacks.values() for seed in found.seeds]
    total = score.total
    return {
        "task": cell.task,
        "federation": cell.federation,
        "score": None if total is None else total.score,
        "worst_attack": score.worst,
        "missing": score.missing,
        "unattacked": None if score.unattacked is None else score.unattacked.score,
        "worst_seed": min(attacked, default=None),
        "reached_at": None if total is None else total.reached_at,
        "megabytes": np.mean([run.bytes_sent for run in runs.values()]) / 1e6,
        "seconds": np.mean([run.seconds for run in runs.values()]),
        "machine": sorted({str(run.environment.get("device", "unknown")) for run in runs.values()}),
        "certificates": {
            rule: None if found is None else f"{found['verdict']}{': ' if found['reason'] else ''}{found['reason']}"
            for rule, found in verdicts.items()
        },
        "options": one.options,
        **({} if total is None else total.besides),
        "cells": {attack: _cell(cells[attack], runs[attack]) for attack in cells},
    }


def _cell(score: CellScore, result: CellResult) -> dict[str, Any]:
    """Return the score and the learning curve of a cell, with the range of the seeds that are finite there."""
    finite = result.finite.any()
    rows = result.returns[result.finite] if finite else result.returns[:1]
    curve = {"mean": mean_of_known(rows), "low": np.fmin.reduce(rows), "high": np.fmax.reduce(rows)}
    return {
        "score": score.score,
        "seeds": score.seeds,
        "reached_at": score.reached_at,
        "average": np.nanmean(result.average) if finite else None,
        "final": np.nanmean(result.final) if finite else None,
        "hash": result.hash,
        **score.besides,
        "curve": {"x": result.trajectories, **{name: [float(f"{y:.4g}") for y in row] for name, row in curve.items()}},
    }


def _json_values(value: Any) -> Any:
    """Return JSON values: NamedTuples as objects, arrays as lists, and None for numbers that are not finite."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
