"""Results of every method under every attack, or by any two options: the values of all seeds, cell by cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.configuration.config import FIELDS
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.report.runs import FinishedRun, assignments, attack_name, defence_name, differing_options
from jaxbyz.report.statistics import final_values, of_finite_seeds

# Options that name the method or the attack of a run, or that do not make it a different experiment.
METHOD_OPTIONS = ("algorithm", "aggregator", "pre_aggregator", "agreement")
NOT_SHOWN = ("attack", "byzantine", "seed", "seeds", "unsafe")


class SeedValues(NamedTuple):
    """One value per seed, in the order of the seeds.

    Attributes:
        values: `[n]`; NaN for seeds that became non-finite.
        seeds: `[n]`, their numbers.
    """

    values: np.ndarray
    seeds: np.ndarray


class ResultTable(NamedTuple):
    """Values of seeds by row and column.

    Attributes:
        rows: names of the rows, usually methods.
        columns: names of the columns, usually attacks.
        cells: for every row and column the values, or None if there is no such run.
    """

    rows: list[str]
    columns: list[str]
    cells: list[list[SeedValues | None]]


def result_table(
    runs: Sequence[FinishedRun],
    values: str | Callable[[dict[str, np.ndarray]], np.ndarray] = "returns",
    *,
    x: str = "attack",
    y: str | None = None,
) -> ResultTable:
    """Collect a value of every seed by row and column. Runs that differ only in their seeds share a cell.

    Args:
        runs: the runs.
        values: the name of a metric, whose final value counts, or a function of the metrics that returns `[seeds]`.
        x: the option of the columns. Numbers are sorted.
        y: the option of the rows; by default a row is a method with all other options in which runs differ.

    Raises:
        UsageError: if a cell would hold runs that differ in other options than their seeds.
    """
    for name, option in (("x", x), ("y", y)):
        if option is not None:
            check_choice(name, option, FIELDS)
    rows = method_names(runs, without=x) if y is None else [option_value(run, y) for run in runs]
    columns = [option_value(run, x) for run in runs]
    if y is not None and (others := [o for o in varying_options(runs) if o not in (x, y)]):
        raise UsageError(f"x={x}, y={y}: the runs also differ in {', '.join(others)}; draw fewer runs, or leave y out")
    found: dict[tuple[Any, Any], list[FinishedRun]] = defaultdict(list)
    for run, row, column in zip(runs, rows, columns, strict=True):
        found[row, column].append(run)
    cells = {place: _seed_values(members, values) for place, members in found.items()}
    row_names, column_names = _ordered(rows), _ordered(columns)
    shown = [[cells.get((row, column)) for column in column_names] for row in row_names]
    return ResultTable(list(map(str, row_names)), list(map(str, column_names)), shown)


def _seed_values(runs: Sequence[FinishedRun], values: str | Callable[..., np.ndarray]) -> SeedValues:
    numbers, seeds = [], []
    for run in runs:
        found = final_values(run.metrics, values) if isinstance(values, str) else values(run.metrics)
        numbers.append(of_finite_seeds(run.metrics, found))
        seeds.append(run.config.seed + np.arange(len(found)))
    order = np.argsort(np.concatenate(seeds), kind="stable")
    return SeedValues(np.concatenate(numbers)[order], np.concatenate(seeds)[order])


def option_value(run: FinishedRun, option: str) -> Any:
    """Return the value of an option of a run; that of `attack` without Byzantine agents is "all honest"."""
    return attack_name(run.config) if option == "attack" else getattr(run.config, option)


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Return every value once: numbers in ascending order, others in the order in which they appear."""
    once = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in once)
    return sorted(once) if numbers else once


def varying_options(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the options in which runs differ as experiments: not their seeds, and not an attack that nobody makes."""
    found = differing_options(runs, NOT_SHOWN)
    if len({attack_name(run.config) for run in runs}) > 1:
        found.append("attack")
    if len({run.config.byzantine for run in runs if run.config.byzantine}) > 1:
        found.append("byzantine")
    return found


def method_names(runs: Sequence[FinishedRun], without: str = "attack") -> list[str]:
    """Return the name of the method of every run, with all further options in which the runs differ, except one.

    Runs of the same seeds that no option distinguishes are different methods, and the names contain their folders.
    """
    others = [name for name in varying_options(runs) if name != without and name not in METHOD_OPTIONS]
    if without in METHOD_OPTIONS:
        others = [*(name for name in differing_options(runs, (without,)) if name in METHOD_OPTIONS), *others]
        names = [", ".join(assignments(run, others)) or "all runs" for run in runs]
    else:
        names = [", ".join([defence_name(run.config), *assignments(run, others)]) for run in runs]
    for name in dict.fromkeys(names):
        members = [i for i, other in enumerate(names) if other == name]
        if not _share_seeds(runs, members, lambda run: (option_value(run, without),)):
            continue
        by_parent = not _share_seeds(runs, members, lambda run: (option_value(run, without), _folder(run)[0]))
        for i in members:
            parent, folder = _folder(runs[i])
            names[i] = f"{name} ({(parent if by_parent else folder) or f'run {i}'})"
    return names


def _folder(run: FinishedRun) -> tuple[str, str]:
    """Return the folder that contains the folder of a run, and the latter; empty texts if it has none."""
    folder = getattr(run, "folder", None)
    return ("", "") if folder is None else (str(folder.parent), str(folder))


def _share_seeds(runs: Sequence[FinishedRun], members: Sequence[int], key: Callable[[FinishedRun], Any]) -> bool:
    """Return whether a seed occurs twice among runs with the same key."""
    seen: set[tuple[Any, int]] = set()
    for run in (runs[i] for i in members):
        seeds = {(key(run), run.config.seed + i) for i in range(len(run.metrics["returns"]))}
        if seen & seeds:
            return True
        seen |= seeds
    return False
