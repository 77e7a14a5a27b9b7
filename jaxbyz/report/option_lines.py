"""Lines of a final value against an option, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.report.intervals import FEWEST_FOR_INTERVAL, bootstrap_mean
from jaxbyz.report.plots import DASH_PATTERNS, figure, line_options, place_legend, plain_text, seeds_text, with_texts
from jaxbyz.report.result_table import METHOD_OPTIONS, method_names, option_value, result_table
from jaxbyz.report.runs import METRIC_LABELS, FinishedRun, check_metric, setting
from jaxbyz.report.styles import styles

DODGE = 0.008  # of the axis, between lines of different methods, so that their intervals do not hide each other
LOGARITHMIC = 20  # the ratio of the greatest to the least number from which on an option has a logarithmic axis


def final_against_option(
    runs: Sequence[FinishedRun],
    x: str,
    *,
    metric: str = "returns",
    title: str | None = None,
    paper: int | None = None,
) -> Any:
    """Draw the final value of a metric against an option: mean over seeds with 95 % bootstrap intervals.

    Every method has a line, with all other options in which the runs differ. Lines from method to method are grey,
    because colours stand for methods. There is no interval below five seeds.

    Args:
        runs: the runs, all in the same environment.
        x: the option, for example `"eta"`.
        metric: a name from `METRIC_LABELS`.
        title: by default what all runs have in common.
        paper: see `figure`.
    """
    for run in runs:
        check_metric(run, metric)
    table, names = result_table(runs, metric, x=x), method_names(runs, without=x)
    if len(table.columns) == 1:
        raise UsageError(f"x={x}: all runs have {x} {table.columns[0]}, so that there is nothing to draw")
    values = {str(option_value(run, x)): option_value(run, x) for run in runs}
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values())
    places = np.array([float(values[name]) for name in table.columns] if numbers else range(len(table.columns)), float)
    logarithmic = bool(numbers and places.min() > 0 and places.max() / places.min() >= LOGARITHMIC)
    drawing, axes = figure(width=7.4, paper=paper)
    row_styles = dict(zip(names, styles(runs, varying=x), strict=True))
    for number, (name, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        line = line_options(row_styles[name])
        if x in METHOD_OPTIONS:
            line |= {
                "color": str(0.6 * number / len(table.rows)),
                "linestyle": DASH_PATTERNS[number % len(DASH_PATTERNS)],
            }
        known = [(place, bootstrap_mean(cell.values)) for place, cell in zip(places, cells, strict=True) if cell]
        mean, low, high = np.array([estimate for _, estimate in known]).T
        beside = DODGE * (number - (len(table.rows) - 1) / 2)
        axes.errorbar(
            _moved(np.array([place for place, _ in known]), beside, places, logarithmic), mean,
            yerr=np.fmax([mean - low, high - mean], 0), label=plain_text(name), marker="o",
            markersize=4, capsize=3, linewidth=1.5, elinewidth=1, **line,
        )  # fmt: skip
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(places, map(plain_text, table.columns))
    axes.minorticks_off()
    name = f"final {METRIC_LABELS.get(metric, metric)}"
    axes.set(xlabel=x, ylabel=name)
    counts = [len(cell.values) for row in table.cells for cell in row if cell]
    few = f"; no interval below {FEWEST_FOR_INTERVAL} seeds" if min(counts) < FEWEST_FOR_INTERVAL else ""
    with_texts(
        drawing, title or plain_text(setting(runs)), f"mean over {seeds_text(counts)}, 95 % bootstrap interval{few}"
    )
    if len(table.rows) > 1:
        place_legend(drawing, axes, [axes])
    return drawing


def _moved(x: np.ndarray, beside: float, places: np.ndarray, logarithmic: bool) -> np.ndarray:
    """Move places by a part of the axis that holds all places."""
    if logarithmic:
        return x * (places.max() / places.min()) ** beside
    return x + beside * np.ptp(places)
