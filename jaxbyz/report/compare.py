"""Compare methods: final return, area under the curve, failures, and differences from a baseline, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.report.comparison_table import ComparedMethod, Comparison, Difference
from jaxbyz.report.intervals import (
    CONFIDENCE,
    bootstrap,
    difference_of_means,
    mean_of_strata,
    seeds_to_show,
    stratified_iqm,
)
from jaxbyz.report.result_table import ResultTable, SeedValues, method_names, result_table
from jaxbyz.report.runs import FinishedRun, common_environment, load_runs, setting
from jaxbyz.report.statistics import average_returns, failure_level, have_failed

Source = str | Path | FinishedRun


def compare(*sources: Source | Sequence[Source], baseline: str | Path | FinishedRun | None = None) -> Comparison:
    """Compare methods on one environment.

    Runs that differ only in their attack or their seeds are one method.

    Args:
        *sources: run folders, folders that contain them, or runs; at least two methods in all.
        baseline: the method that the others are compared with: a run, its folder, or its name in the table. By default
            it is the method of the first run.
    """
    flat: list[Any] = []
    for source in sources:
        several: Any = source if type(source) in (list, tuple) else [source]  # a run is a tuple of another type
        flat += several
    if baseline is not None and not _is_name(baseline):
        flat.append(baseline)
    runs = _loaded(flat)
    common_environment(runs)
    names = method_names(runs)
    if len(set(names)) < 2:
        raise UsageError(f"all runs are of one method, {names[0]}; name runs of at least two")
    finals, areas = result_table(runs), result_table(runs, average_returns)
    chosen = _baseline(baseline, runs, names)
    level = failure_level([run.metrics for run in runs])
    rows = _compared(finals, areas, finals.rows.index(chosen), level)
    return Comparison(setting(runs), chosen, level, rows)


def _is_name(baseline: Any) -> bool:
    """Return whether a baseline is a name of a method, not a folder or a run."""
    return isinstance(baseline, str) and not Path(baseline).exists()


def _loaded(sources: Sequence[Any]) -> list[FinishedRun]:
    """Load what is a path, and return every run once."""
    runs: list[FinishedRun] = []
    for source in sources:
        found = load_runs([source]) if isinstance(source, str | Path) else [source]
        seen = {_place(run) for run in runs}
        runs += [run for run in found if _place(run) not in seen]
    if not runs:
        raise UsageError("no runs to compare")
    return runs


def _place(run: FinishedRun) -> Any:
    """Return what tells whether two runs are the same: the folder, or the object if there is none."""
    folder = getattr(run, "folder", None)
    return id(run) if folder is None else folder.resolve()


def _baseline(baseline: Any, runs: Sequence[FinishedRun], names: Sequence[str]) -> str:
    """Return the name of the method that the argument of `compare` selects."""
    if baseline is None:
        return names[0]
    if baseline in names:
        return str(baseline)
    if _is_name(baseline):
        raise UsageError(f"baseline={baseline}: must be a run folder or one of {', '.join(dict.fromkeys(names))}")
    places = {_place(run) for run in _loaded([baseline])}
    found = dict.fromkeys(name for run, name in zip(runs, names, strict=True) if _place(run) in places)
    if len(found) > 1:
        raise UsageError(f"baseline={baseline}: holds several methods ({', '.join(found)}); name one of them")
    return next(iter(found))


def _compared(finals: ResultTable, areas: ResultTable, baseline: int, level: float) -> list[ComparedMethod]:
    """Return the rows: first those over the attacks that all methods were run under, if there are several."""
    everywhere = [a for a in range(len(finals.columns)) if all(row[a] is not None for row in finals.cells)]
    groups = [everywhere] if len(everywhere) > 1 else []
    groups += [[a] for a in range(len(finals.columns))]
    rows = []
    for group in groups:
        cells = [[row[a] for a in group] for row in finals.cells]
        for i, method in enumerate(finals.rows):
            if None in (mine := cells[i]):
                continue
            others = None if i == baseline or None in cells[baseline] else cells[baseline]
            attacks = [finals.columns[a] for a in group]
            rows.append(compared_method(method, attacks, mine, [areas.cells[i][a] for a in group], others, level))
    return rows


def compared_method(
    method: str, attacks: list[str], final: list[Any], area: list[Any], baseline: list[Any] | None, level: float
) -> ComparedMethod:
    """Return the row of one method under some attacks.

    Args:
        method: its name.
        attacks: the names of the attacks.
        final: the final returns under every attack, as `SeedValues`.
        area: the mean returns over the whole run, likewise.
        baseline: the final returns of the baseline under the same attacks; None if there is nothing to compare with.
        level: the final return below which a seed has failed.
    """
    values = np.concatenate([cell.values for cell in final])
    means = [float(cell.values.mean()) for cell in final]
    ranked = [
        np.where(np.isnan(cell.values), -np.inf, cell.values) for cell in final
    ]  # non-finite seeds are the lowest
    worst = int(np.argmin([rows.mean() for rows in ranked]))
    counts = {len(cell.seeds) for cell in final}
    return ComparedMethod(
        method=method,
        attack=attacks[0] if len(attacks) == 1 else f"all {len(attacks)}",
        seeds=min(counts),
        final=bootstrap([rows.values for rows in per_seed(final)], mean_of_strata),
        robust=stratified_iqm(ranked, together=_same_seeds(final)),
        area=bootstrap([rows.values for rows in per_seed(area)], mean_of_strata),
        worst_seed=float(values.min()),
        worst_attack=None if len(attacks) == 1 else (attacks[worst], means[worst]),
        failed=int(have_failed(values, level).sum()),
        results=len(values),
        difference=None if baseline is None else difference_between(final, baseline),
    )


def _same_seeds(cells: Sequence[SeedValues]) -> bool:
    """Return whether all cells have the same seeds, none of them twice."""
    first = cells[0].seeds
    return len(set(first.tolist())) == len(first) and all(np.array_equal(cell.seeds, first) for cell in cells)


def per_seed(cells: Sequence[SeedValues]) -> list[SeedValues]:
    """Average every seed over attacks, so that seeds are independent; cells of other seeds stay apart."""
    if not _same_seeds(cells):
        return list(cells)
    return [SeedValues(np.mean([cell.values for cell in cells], axis=0), cells[0].seeds)]


def difference_between(
    cells: Sequence[SeedValues], baseline: Sequence[SeedValues], confidence: float = CONFIDENCE
) -> Difference | None:
    """Return the difference between two methods, each under the same attacks; None if their seeds do not allow one.

    It is paired where both have the same seeds.
    """
    (first, *more), (second, *others) = per_seed(cells), per_seed(baseline)
    if more or others:
        return None
    paired = _same_seeds([first, second])
    estimate = difference_of_means(first.values, second.values, paired=paired, confidence=confidence)
    needed = None
    if np.isfinite(estimate.low):
        needed = seeds_to_show(first.values, second.values, paired=paired, confidence=confidence)
    return Difference(estimate, paired, needed)
