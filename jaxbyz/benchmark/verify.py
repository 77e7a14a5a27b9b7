"""Run a random part of the results again and compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.checks import check_results
from jaxbyz.benchmark.records import CELL, StoredRecord, read_records
from jaxbyz.benchmark.results import CellResult, measurements
from jaxbyz.benchmark.suite import Suite
from jaxbyz.configuration.resolving import from_dict
from jaxbyz.errors import UsageError
from jaxbyz.runs.run import run
from jaxbyz.runs.run_folder import describe_environment

EQUAL = 1e-5  # relative difference of results on the same machine
MOST_ERRORS = 4.0  # standard errors between the means over seeds on different machines
# What makes two machines round alike.
ROUNDING = ("versions", "device", "devices", "system")


class Verification(NamedTuple):
    """The comparison of a result with a second run.

    Attributes:
        name: the name of the cell.
        verdict: `identical`, `consistent` (another machine or program: the means over seeds agree), or `different`.
        difference: the largest difference of a seed's average return, in units of the largest return.
        standard_errors: the difference of the means over seeds, in standard errors.
    """

    name: str
    verdict: str
    difference: float
    standard_errors: float


def choose(source: str | Path, suite: Suite, count: int, seed: int) -> list[StoredRecord]:
    """Return a random choice of the results in a folder or a .jsonl.gz file."""
    records = list(read_records(source, suite, CELL).values())
    check_results(records, suite)
    if not records:
        raise UsageError(f"{source}: no results here")
    chosen = np.random.default_rng(seed).choice(len(records), size=min(count, len(records)), replace=False)
    return [records[i] for i in sorted(chosen)]


def verify(
    suite: Suite, records: list[StoredRecord], log: Callable[[str], None] = lambda line: None
) -> list[Verification]:
    """Check these results, run them again and compare the average return of every seed.

    Raises:
        UsageError: if a result does not follow the suite.
    """
    results = check_results(records, suite)
    here, verifications = describe_environment(), []
    for number, result in enumerate(results, 1):
        log(f"[{number}/{len(results)}] {result.cell.name}")
        config = from_dict(result.config)
        again = measurements(config, run(config).metrics)
        same_rounding = not result.together and all(result.environment.get(key) == here[key] for key in ROUNDING)
        verifications.append(compare(result, np.array(again["average"], float), same_rounding))
    return verifications


def compare(result: CellResult, again: np.ndarray, same_rounding: bool) -> Verification:
    """Compare a result with the average return `[seeds]` of a second run."""
    before = result.average
    scale = max(1e-9, float(np.nanmax(np.abs(before), initial=0.0)))
    one_finite = np.isfinite(before) != np.isfinite(again)
    difference = np.inf if one_finite.any() else float(np.nanmax(np.abs(before - again), initial=0.0)) / scale
    error = float(np.sqrt((_variance(before) + _variance(again)) / len(before)))
    apart = abs(float(np.nanmean(before) - np.nanmean(again))) if np.isfinite(before).any() else 0.0
    standard_errors = 0.0 if apart == 0 else apart / max(error, 1e-12)
    if difference <= EQUAL:
        verdict = "identical"
    elif not same_rounding and standard_errors <= MOST_ERRORS:
        verdict = "consistent"
    else:
        verdict = "different"
    return Verification(result.cell.name, verdict, difference, standard_errors)


def _variance(values: np.ndarray) -> Any:
    finite = values[np.isfinite(values)]
    return np.var(finite, ddof=1) if len(finite) > 1 else 0.0
