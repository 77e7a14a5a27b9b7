"""What runs show, in sentences: who ended highest, who failed, and where liars received more than their fair weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxbyz.report.compare import difference_between
from jaxbyz.report.comparison_table import Difference, where_text
from jaxbyz.report.intervals import CONFIDENCE, FEWEST_FOR_INTERVAL, MOST_SEEDS, POWER, bootstrap_mean
from jaxbyz.report.result_table import SeedValues, result_table
from jaxbyz.report.runs import FinishedRun, attack_name, defence_name
from jaxbyz.report.statistics import failure_level, have_failed
from jaxbyz.report.tables import number_text, with_interval

NAMED = 3  # methods that a sentence names besides the highest


def findings(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the findings about runs of one environment as sentences."""
    table, level = result_table(runs), failure_level([run.metrics for run in runs])
    sentences, failures = [], []
    for attack, column in zip(table.columns, zip(*table.cells, strict=True), strict=True):
        cells = {method: cell for method, cell in zip(table.rows, column, strict=True) if cell is not None}
        sentences += _highest(cells, attack)
        failures += _failures(cells, attack, level)
    if np.isinf(level):
        failures.append("No run ended better than the untrained policy.")
    trust = [f"{line}." for run in runs for line in getattr(run, "record", {}).get("trust", ())]  # of federations
    return [*sentences, *failures, *_weights(runs), *trust]


def _result(method: str, cell: SeedValues) -> str:
    """Name a method, its mean final return with the interval, and its worst seed."""
    return f"{method}, {with_interval(bootstrap_mean(cell.values))}, worst seed {number_text(cell.values.min())}"


def _highest(cells: dict[str, SeedValues], attack: str) -> list[str]:
    """Say which method ended highest under an attack, or that this was not measured.

    The highest is chosen after the fact, so that the intervals of all pairs of methods must hold together (Bonferroni).
    """
    finite = [method for method, cell in cells.items() if np.isfinite(cell.values).all()]
    if not finite:
        return []
    best, *others = sorted(finite, key=lambda method: cells[method].values.mean(), reverse=True)
    where = where_text(attack)
    if not others:
        return [f"Final return {where}: {_result(best, cells[best])}."]
    confidence = 1 - (1 - CONFIDENCE) / (len(finite) * (len(finite) - 1) // 2)
    differences = {other: difference_between([cells[best]], [cells[other]], confidence) for other in others}
    equal = {other: found for other, found in differences.items() if found is None or not found.measured}
    lower = [_result(other, cells[other]) for other in others if other not in equal]
    below = f" Lower: {_several(lower)}." if lower else ""
    if not equal:
        return [f"Highest final return {where}: {_result(best, cells[best])}.{below}"]
    named = _several([_result(other, cells[other]) for other in (best, *equal)])
    return [f"No difference in final return was measured {where} between {named}.{_needed(equal)}{below}"]


def _several(texts: Sequence[str]) -> str:
    """Join the first few texts, and count the others."""
    return "; ".join(texts[: NAMED + 1]) + (f"; {len(texts) - NAMED - 1} more" if len(texts) > NAMED + 1 else "")


def _needed(differences: dict[str, Difference | None]) -> str:
    """Say how many seeds would show the differences from the highest mean."""
    known = [found for found in differences.values() if found is not None]
    if any(np.isnan(found.estimate.low) for found in known):
        return f" Fewer than {FEWEST_FOR_INTERVAL} seeds give no interval."
    unequal = [found.seeds_needed for found in known if found.estimate.value != 0]
    if not unequal:
        return " Their means are equal."
    counts = sorted(MOST_SEEDS + 1 if count is None else count for count in unequal)
    texts = [f"more than {MOST_SEEDS}" if count > MOST_SEEDS else str(count) for count in (counts[0], counts[-1])]
    count = " to ".join(dict.fromkeys(texts))
    return (
        f" If the observed differences from the highest mean were the true ones, about {count} seeds per method would "
        f"show them in {100 * POWER:.0f} % of all experiments."
    )


def _failures(cells: dict[str, SeedValues], attack: str, level: float) -> list[str]:
    """Say in how many seeds each method failed under an attack."""
    sentences = []
    for method, cell in cells.items():
        failed = have_failed(cell.values, level)
        if failed.any():
            lost = int(np.isnan(cell.values).sum())
            how = f"{lost} became non-finite" if lost else f"the worst ends at {number_text(cell.values.min())}"
            count = f"{failed.sum()} of {len(failed)} seeds"
            sentences.append(f"{method} failed in {count} {where_text(attack)}; {how}.")
    return sentences


def _weights(runs: Sequence[FinishedRun]) -> list[str]:
    above, judged = [], 0
    for run in runs:
        weight, fair = run.metrics["byzantine_weight"], float(np.mean(run.metrics["byzantine"]))
        if fair == 0 or not np.isfinite(weight).any():
            continue
        judged += 1
        mean = float(np.nanmean(np.where(np.isfinite(weight), weight, np.nan)))
        if mean > fair * 1.01:
            where = where_text(attack_name(run.config))
            above.append(f"{defence_name(run.config)} {where} ({mean:.0%}, fair {fair:.0%})")
    if not judged:
        return []
    if not above:
        return ["Liars received no more than their fair share of the weight in any aggregate."]
    return [f"Liars received more than their fair share of the weight in {'; '.join(above)}."]
