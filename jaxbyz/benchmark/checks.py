"""Results are refused if they cannot be what they say: of another cell, repeated, contradictory or impossible.

A hash says that a record was not damaged; anybody can write a correct one. Everything here holds for every result of
`jaxbyz benchmark run`, and is checked wherever results are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.benchmark.entries import NO_ATTACK, NOT_ENTRIES, Cell, cell_config, options_of, reference_cells
from jaxbyz.benchmark.records import CELL, StoredRecord, read_records
from jaxbyz.benchmark.results import CellResult, result_of
from jaxbyz.benchmark.suite import Suite
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import environment_once
from jaxbyz.environments.return_bounds import return_bounds
from jaxbyz.errors import UsageError
from jaxbyz.registry import parse_assignments

ROUNDING = 1e-4  # relative difference between the average of a seed and that of its curve, whose numbers are rounded
DISTINCT = 10  # a curve with fewer different returns may occur twice by chance


def load_results(source: str | Path, suite: Suite) -> dict[Cell, CellResult]:
    """Read all results of a folder or a .jsonl.gz file.

    Raises:
        UsageError: if a record is damaged, belongs to another suite or is refused, or there is no result.
    """
    return results_among(read_records(source, suite).values(), source, suite)


def results_among(records: Iterable[StoredRecord], source: str | Path, suite: Suite) -> dict[Cell, CellResult]:
    """Return the results among the records of a source, as `load_results` does."""
    found = check_results([record for record in records if CELL in record.content], suite)
    if not found:
        raise UsageError(f"{source}: no results here; `jaxbyz benchmark run {suite.name} --out {source}` makes some")
    return {result.cell: result for result in found}


def check_results(records: Sequence[StoredRecord], suite: Suite) -> list[CellResult]:
    """Return results after checking each, and that none repeats what another program must have measured.

    Two cells of the same task and size may agree to the last digit, for example if a rule excludes all liars.

    Raises:
        UsageError: if one of them is refused.
    """
    results = [check_result(record, suite) for record in records]
    first: dict[bytes, tuple[StoredRecord, Any]] = {}
    for record, result in zip(records, results, strict=True):
        if len(np.unique(result.returns)) >= DISTINCT:
            what = result.cell.task, result.config.get("agents")
            before, same = first.setdefault(result.returns.tobytes(), (record, what))
            if same != what:
                raise UsageError(f"{record.place}: repeats the returns of {before.place}, which is of another setting")
    return results


def check_result(record: StoredRecord, suite: Suite) -> CellResult:
    """Return a result after checking that it is one of its suite, cell and options.

    Raises:
        UsageError: if it does not follow the suite, or cannot have been measured.
    """
    result = result_of(record)
    cell = result.cell
    if cell.entry in NOT_ENTRIES:
        if not any(cell in reference_cells(suite, *setting) for setting in suite.settings):
            raise UsageError(f"{record.place}: the suite {suite.name} has no such reference")
        if result.options != options_of(suite, {}, cell):
            raise UsageError(f"{record.place}: the reference {cell.entry} was not run with the options of the suite")
    elif (cell.task, cell.federation) not in suite.settings:
        raise UsageError(f"{record.place}: the suite {suite.name} has no such setting")
    elif cell.attack not in (NO_ATTACK, *suite.attacks_in(cell.task, cell.federation)):
        raise UsageError(f"{record.place}: the suite {suite.name} has no such attack in this setting")
    config = cell_config(suite, cell, result.options)
    record.check_config(config)
    if (problem := _contradiction(record.content, result, config)) is not None:
        raise UsageError(f"{record.place}: {problem}")
    return result


def _contradiction(content: dict[str, Any], result: CellResult, config: Config) -> str | None:
    """Return why no training with this configuration can have this result, or None."""
    expected = list(range(config.seed, config.seed + config.seeds))
    if content["seeds"] != expected:
        return f"has the seeds {str(content['seeds'])[:40]}; the suite has {expected[0]} to {expected[-1]}"
    for name in ("average", "final"):
        if (np.isfinite(getattr(result, name)) != result.finite).any():
            return f"finite and {name} contradict each other"
    low, high = _bounds(config)
    values = np.concatenate([result.average, result.final, result.returns.ravel()])
    if (outside := values[(values < low - _slack(low)) | (values > high + _slack(high))]).size:
        return f"has a return of {outside[0]:.6g}; on {config.env} returns are from {low:.6g} to {high:.6g}"
    weights = np.diff(result.trajectories, prepend=0.0)
    whole = np.isfinite(result.returns).all(axis=1) & result.finite
    curve, average = result.returns[whole] @ weights / weights.sum(), result.average[whole]
    if (
        np.abs(curve - average) > ROUNDING * np.maximum(1.0, np.abs(result.returns[whole]).max(axis=1, initial=0))
    ).any():
        return "the average of a seed is not that of its curve"
    rows = [row.tobytes() for row in result.returns if len(np.unique(row)) >= DISTINCT]
    if len(set(rows)) < len(rows):
        return "two seeds have the same curve"
    return None


def _slack(bound: float) -> float:
    """Return how far a rounded number may be beyond a bound."""
    return ROUNDING * max(1.0, abs(bound)) if math.isfinite(bound) else 0.0


def _bounds(config: Config) -> tuple[float, float]:
    """Return the lowest and the highest return of an episode of a configuration."""
    longest = config.horizon or environment_once(config.env, config.env_param).limit
    held = int(float(parse_assignments(config.env_param).get("hold", 1)))
    return return_bounds(config.env, None if longest is None else longest * held)
