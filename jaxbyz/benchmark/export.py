"""Results in the formats of other tools: the JSON of marl-eval, and arrays for rliable.

References:
    Gorsane et al., Towards a standardised performance evaluation protocol for cooperative MARL, 2022 (marl-eval).
    Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021 (rliable).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxbyz.benchmark.entries import NOT_ENTRIES, Cell
from jaxbyz.benchmark.results import CellResult
from jaxbyz.benchmark.scores import Settings
from jaxbyz.benchmark.scoring import score_entries
from jaxbyz.benchmark.suite import Suite
from jaxbyz.errors import UsageError


def marl_eval(suite: Suite, results: Mapping[Cell, CellResult]) -> dict[str, Any]:
    """Return learning curves as marl-eval reads them: environment -> task -> algorithm -> run -> step -> metrics.

    The environment is the suite. Every task, federation and attack is a task of its own.
    """
    tasks: dict[str, Any] = {}
    for cell, result in results.items():
        if cell.entry in NOT_ENTRIES:
            continue
        runs = {}
        for offset, (row, final) in enumerate(zip(result.returns, result.final, strict=True)):
            steps: dict[str, Any] = {
                f"step_{i}": {"step_count": int(x), "return": [float(y)]}
                for i, (x, y) in enumerate(zip(result.trajectories, row, strict=True))
            }
            steps["absolute_metrics"] = {"return": [float(final)]}
            runs[f"seed_{suite.seeds.first + offset}"] = steps
        name = f"{cell.task}.{cell.federation}.{cell.attack}"
        tasks.setdefault(name, {})[cell.entry] = runs
    return {suite.name: tasks}


def rliable(suite: Suite, results: Mapping[Cell, CellResult]) -> dict[str, np.ndarray]:
    """Return scores as rliable expects them: entry -> `[seeds, problems]`, and the problems' names as `problems`.

    A problem is a setting under an attack. Only problems that all entries have are included.

    Raises:
        UsageError: if the entries have no problem in common.
    """
    scores = score_entries(suite, results)

    def problems(settings: Settings) -> set[tuple[str, str, str]]:
        return {(*setting, attack) for setting, score in settings.items() for attack in score.attacks}

    common = sorted(set.intersection(*map(problems, scores.values()))) if scores else []
    if not common:
        raise UsageError("the entries have no setting and attack in common")
    arrays = {
        entry: np.stack([settings[task, federation].attacks[attack].seeds for task, federation, attack in common], 1)
        for entry, settings in scores.items()
    }
    return {"problems": np.array([".".join(problem) for problem in common]), **arrays}
