"""Heatmaps: final values by two options, and the share of every sender over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbyz.report.plots import BYZANTINE_COLOUR, PAPER_FONT, figure, plain_text, seeds_text, with_texts
from jaxbyz.report.result_table import ResultTable, result_table
from jaxbyz.report.runs import (
    METRIC_LABELS,
    FinishedRun,
    brightest_share,
    check_metric,
    common_environment,
    setting,
    shares_over_time,
)
from jaxbyz.report.statistics import failure_level, have_failed
from jaxbyz.report.tables import mean_and_deviation, number_text, value_range

BESIDE_CELLS, NARROW = 1.3, 0.8  # inches beside the cells of a picture for a paper; cells that hold a mean only


def heatmap(
    runs: Sequence[FinishedRun],
    *,
    metric: str = "returns",
    x: str = "attack",
    y: str | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
    paper: int | None = None,
) -> Any:
    """Draw the final value of a metric by two options, such as method and attack: mean ± standard deviation over seeds.

    Cells without a run are empty. Cells in which seeds have failed say how many.

    Args:
        runs: the runs, all in the same environment.
        metric: a name from `METRIC_LABELS`.
        x: the option of the columns.
        y: the option of the rows; by default a row is a method, with all other options in which the runs differ.
        limits: the values of the darkest and the brightest colour; by default the range of the task, or of the values.
        title: by default what all runs have in common.
        paper: see `plots.figure`.
    """
    for run in runs:
        check_metric(run, metric)
    table = result_table(runs, metric, x=x, y=y)
    means = np.array([[np.nan if cell is None else cell.values.mean() for cell in row] for row in table.cells])
    finite = means[np.isfinite(means)]
    low, high = limits or value_range(common_environment(runs), metric) or (
        (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    )  # fmt: skip
    size = max(5.6, 2.6 + 1.15 * len(table.columns)), 2.0 + 0.5 * len(table.rows)
    drawing, axes = figure(width=size[0], height=size[1], paper=paper)
    axes.grid(False)
    image = axes.imshow(means, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    axes.set_xticks(range(len(table.columns)), map(plain_text, table.columns), rotation=30, ha="right")
    axes.set_yticks(range(len(table.rows)), map(plain_text, table.rows))
    axes.set(xlabel=x, ylabel="" if y is None else y)
    narrow = paper is not None and (drawing.get_figwidth() - BESIDE_CELLS) / len(table.columns) < NARROW
    failing = failure_level([run.metrics for run in runs]) if metric == "returns" else None
    for (row, column), mean in np.ndenumerate(means):
        cell = table.cells[row][column]
        if cell is not None:
            bright = np.isfinite(mean) and mean > (low + high) / 2
            colour = "black" if bright or not np.isfinite(mean) else "white"
            axes.text(
                column, row, _cell_text(cell.values, failing, narrow), ha="center", va="center", color=colour,
                fontsize=PAPER_FONT - 2 if paper else 9,
            )  # fmt: skip
    name = f"final {METRIC_LABELS.get(metric, metric)}"
    _colour_bar(drawing, image, axes, name, _beyond(finite, low, high))
    several = any(cell is not None and len(cell.values) > 1 for row in table.cells for cell in row)
    deviation = " ± standard deviation (n − 1)" if several and not narrow else ""
    shown = f"{name}: mean{deviation} over {seeds_text(_counts(table))}"
    shown += "; in brackets: failed seeds" if narrow else ""
    return with_texts(drawing, title or plain_text(setting(runs)), shown)


def _counts(table: ResultTable) -> list[int]:
    return [len(cell.values) for row in table.cells for cell in row if cell is not None]


def _cell_text(values: np.ndarray, failing: float | None, narrow: bool) -> str:
    """Return mean and deviation, and below them how many seeds have failed, if any; without deviation if narrow."""
    failed = 0 if failing is None else int(have_failed(values, failing).sum())
    if not np.isfinite(values).all():
        text = "not finite"
    else:
        text = number_text(values.mean()) if narrow else mean_and_deviation(values)
    count = f"({failed})" if narrow else f"{failed} of {len(values)} failed"
    return text + (f"\n{count}" if failed else "")


def _colour_bar(drawing: Any, image: Any, axes: Any, label: str, extend: str) -> None:
    """Draw the colour bar in letters of the size of the picture's other letters."""
    bar, size = drawing.colorbar(image, ax=axes, extend=extend), PAPER_FONT if drawing.paper else 10
    bar.set_label(label, fontsize=size)
    bar.ax.tick_params(labelsize=size)


def _beyond(values: np.ndarray, low: float, high: float) -> str:
    """Return at which ends of a colour bar values lie beyond it, as matplotlib names them."""
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return ends[bool((values < low).any()), bool((values > high).any())]


def trust(run: FinishedRun, *, title: str | None = None, intervals: int = 80, paper: int | None = None) -> Any:
    """Draw the share of every sender in the honest agents' aggregates over time, mean over seeds."""
    shares, trajectories, byzantine = shares_over_time(run, intervals)
    K = len(shares)
    brightest = brightest_share(K)
    drawing, axes = figure(height=1.1 + 0.22 * K, paper=paper)
    axes.grid(False)
    image = axes.imshow(
        shares, cmap="cividis", aspect="auto", vmin=0, vmax=brightest,
        extent=(0, trajectories[-1], K - 0.5, -0.5), interpolation="nearest",
    )  # fmt: skip
    axes.set_yticks(range(K), [f"{k} Byzantine" if marked else str(k) for k, marked in enumerate(byzantine)])
    for tick, marked in zip(axes.get_yticklabels(), byzantine, strict=True):
        tick.set_color(BYZANTINE_COLOUR if marked else "black")
        tick.set_fontsize(PAPER_FONT - 1 if paper else 8)
    label = "share in the aggregate" + ("" if paper else f" (equal: {1 / K:.2g})")
    _colour_bar(drawing, image, axes, label, _beyond(shares, 0, brightest))
    axes.set(xlabel="trajectories per agent", ylabel="sender")
    caption = f"weight of each sender: mean over {seeds_text([len(run.metrics['returns'])])}; equal: {1 / K:.2g}"
    return with_texts(drawing, title or plain_text(setting([run])), caption)
