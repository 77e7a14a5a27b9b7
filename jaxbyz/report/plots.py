"""Pictures of runs in one colour-blind-safe style.

Drawing functions return matplotlib figures; `save` writes them as .png, .svg or .pdf.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.config import FIELDS
from jaxbyz.errors import UsageError, check_choice, check_ending, check_value, first_line, install_command
from jaxbyz.files import write_output
from jaxbyz.report.result_table import option_value
from jaxbyz.report.runs import METRIC_LABELS, FinishedRun, check_metric, labels, setting
from jaxbyz.report.statistics import SEED_STATISTICS, smoothed, smoothing_width, within
from jaxbyz.report.styles import Style, styles
from jaxbyz.report.tables import possible_range

# The palette of Okabe and Ito, distinguishable with every common colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
HONEST_COLOUR, BYZANTINE_COLOUR = COLOURS[0], COLOURS[1]
DASH_PATTERNS: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
BAND_OPACITY = 0.18
PAPER_WIDTHS = {1: 3.3, 2: 6.9}  # inches, by columns
PAPER_HEIGHT, PAPER_FONT = 1.9, 8  # the least height of a panel in inches; points
LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "handlelength": 3}


def figure(
    columns: int = 1,
    rows: int = 1,
    width: float = 6.4,
    height: float = 4.0,
    *,
    paper: int | None = None,
    **options: Any,
) -> Any:
    """Create a matplotlib figure and its axes in this project's style; no display is needed.

    Args:
        columns: the number of panels side by side.
        rows: the number of rows of panels.
        width: in inches.
        height: in inches.
        paper: 1 or 2 for a picture in a paper, one or two columns wide: `PAPER_WIDTHS` replaces the width, the height
            follows, letters have `PAPER_FONT` points, and `with_texts` writes neither a title nor a caption.
        **options: passed on to `Figure.subplots`.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError(f"plots need matplotlib: {install_command('plots')}") from None
    from cycler import cycler
    from matplotlib.figure import Figure

    if paper is not None:
        check_value("paper", paper, paper in PAPER_WIDTHS, "1 or 2, for a picture one or two columns wide")
        width, height = PAPER_WIDTHS[paper], max(height * PAPER_WIDTHS[paper] / width, PAPER_HEIGHT * rows)
    style: Any = {
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": PAPER_FONT if paper else 10,
    }
    with matplotlib.rc_context(style):
        drawing: Any = Figure(figsize=(width, height), layout="constrained")
        drawing.paper = paper
        return drawing, drawing.subplots(rows, columns, **options)


def with_texts(drawing: Any, title: str, caption: str) -> Any:
    """Write a title above a picture and a caption below it, which says what is shown; for a paper, write neither.

    `drawing.caption` has the caption in both cases.
    """
    drawing.caption = caption[0].upper() + caption[1:] + "."
    if drawing.paper is None:
        letters = int(drawing.get_figwidth() * 17)
        drawing.suptitle(textwrap.fill(title, letters), fontsize=10)
        drawing.supxlabel(textwrap.fill(drawing.caption, letters), fontsize=8, color="0.35")
    return drawing


def save(drawing: Any, path: str | Path) -> Path:
    """Write a figure as .png, .svg or .pdf, by the ending of its name."""
    import matplotlib

    check_ending(path, ".png", ".svg", ".pdf")
    path = Path(path)
    kind = path.suffix.lower()[1:]
    try:
        with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):  # keep text as text
            write_output(path, lambda file: drawing.savefig(file, dpi=150, format=kind))
    except UsageError:
        raise
    except ValueError as error:  # a title with a formula that matplotlib cannot parse
        raise UsageError(f"out={path}: the picture cannot be drawn ({first_line(error)[:200]})") from error
    return path


def plain_text(name: str) -> str:
    """Return a text that matplotlib shows as it is, without taking dollar signs for the ends of a formula."""
    return name.replace("$", r"\$")


def draw_curve(
    axes: Any,
    x: np.ndarray,
    y: np.ndarray,
    name: str,
    statistic: str = "mean",
    *,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    **style: Any,
) -> None:
    """Draw one curve for several seeds, with a band for their spread.

    Args:
        axes: where to draw.
        x: `[G]`.
        y: `[seeds, G]`.
        name: the entry in the legend.
        statistic: `"mean"` (± standard deviation) or `"iqm"` (interquartile mean, 95 % bootstrap interval).
        bounds: the least and the greatest value that is possible, where the band ends.
        **style: passed on to `axes.plot`.
    """
    check_choice("statistic", statistic, SEED_STATISTICS)
    value, low, high = within(SEED_STATISTICS[statistic][0](y), y, bounds)
    (line,) = axes.plot(x, value, label=plain_text(name), marker="o" if len(x) == 1 else None, **style)
    if y.shape[0] > 1 and np.isfinite(low).any():  # few seeds have no bootstrap interval
        _fill_band(axes, line, x, low, high)


def _fill_band(axes: Any, line: Any, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    axes.fill_between(x, low, high, color=line.get_color(), alpha=BAND_OPACITY, linewidth=0)


def learning_curves(
    runs: Sequence[FinishedRun],
    *,
    metric: str = "returns",
    width: int | None = None,
    title: str | None = None,
    statistic: str = "mean",
    facet: str | None = None,
    paper: int | None = None,
) -> Any:
    """Draw a metric against trajectories per agent, with one curve per run and its spread over seeds.

    Args:
        runs: the runs, all in the same environment.
        metric: a name from `METRIC_LABELS`.
        width: the number of trajectories over which each point averages; by default it follows the longest run.
        title: by default what all runs have in common.
        statistic: see `draw_curve`.
        facet: an option, for example `"attack"`: one panel for each of its values, with a common vertical axis.
        paper: see `figure`.
    """
    check_choice("statistic", statistic, SEED_STATISTICS)
    width = width or max(smoothing_width(run.metrics) for run in runs)
    values = _facet_values(runs, facet)
    panels = list(dict.fromkeys(values))
    columns, rows = grid_shape(len(panels))
    drawing, grid = figure(
        columns, rows, 4.2 + 2.6 * columns, 1.4 + 2.6 * rows, paper=paper, squeeze=False, sharey=True, sharex=True
    )
    for name, run, style, value in zip(labels(runs, facet), runs, styles(runs, facet), values, strict=True):
        check_metric(run, metric)
        axes, x_and_y = grid.flat[panels.index(value)], smoothed(run.metrics, width, metric)
        bounds = possible_range(run.config, metric)
        draw_curve(axes, *x_and_y, name or plain_text(metric), statistic, bounds=bounds, **line_options(style))
    for axes, value in zip(grid.flat, panels, strict=False):
        if facet is not None:
            axes.set_title(plain_text(f"{facet} {value}"), fontsize=PAPER_FONT if paper else 10)
    _label_grid(grid, len(panels), "trajectories per agent", METRIC_LABELS.get(metric, metric))
    seeds = seeds_text([len(run.metrics["returns"]) for run in runs])
    shown = "one seed" if seeds == "1 seed" else f"{SEED_STATISTICS[statistic][1]}; {seeds}"
    with_texts(drawing, title or plain_text(setting(runs)), f"{shown}; every point averages {width} trajectories")
    if len(runs) > 1:
        place_legend(drawing, grid[0, columns - 1], grid.flat[: len(panels)])
    return drawing


def _facet_values(runs: Sequence[FinishedRun], facet: str | None) -> list[str]:
    """Return the value of the option of the panels of every run."""
    if facet is None:
        return [""] * len(runs)
    check_choice("facet", facet, FIELDS)
    values = [str(option_value(run, facet)) for run in runs]
    if len(set(values)) == 1:
        raise UsageError(f"facet={facet}: all runs have {facet} {values[0]}, so that there is nothing to divide")
    return values


def grid_shape(panels: int) -> tuple[int, int]:
    """Return columns and rows of a grid that leaves the fewest places empty, at most four columns wide."""
    shapes = [(columns, -(-panels // columns)) for columns in range(1, 5)]
    wide = [(columns, rows) for columns, rows in shapes if columns >= min(rows, 4) and columns <= panels]
    return min(wide, key=lambda shape: (shape[0] * shape[1] - panels, shape[0]))


def _label_grid(grid: Any, panels: int, xlabel: str, ylabel: str) -> None:
    """Name the axes at the left and at the lowest panel of every column, with numbers; remove empty panels."""
    columns = grid.shape[1]
    for i, axes in enumerate(grid.flat):
        if i >= panels:
            axes.remove()
        elif i + columns >= panels:
            axes.set_xlabel(xlabel)
            axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)


def line_options(style: Style) -> dict[str, Any]:
    """Return matplotlib's options for a style."""
    return {"color": COLOURS[style.colour], "linestyle": DASH_PATTERNS[style.dash]}


def _legend_entries(panels: Sequence[Any]) -> dict[str, Any]:
    """Return the lines of all panels by their names, each name once."""
    lines: dict[str, Any] = {}
    for panel in panels:
        for line, name in zip(*panel.get_legend_handles_labels(), strict=True):
            lines.setdefault(name, line)
    return lines


def seeds_text(counts: Collection[int]) -> str:
    """Write the numbers of seeds of several results: "10 seeds", or "3 to 10 seeds"."""
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) + (" seed" if max(counts) == 1 else " seeds")


def legend_below(
    drawing: Any, columns: int, panels: Sequence[Any] | None = None, order: Sequence[str] | None = None
) -> None:
    """Place one legend of all lines below the panels, so that it hides no curve.

    Args:
        drawing: the figure.
        columns: the number of names side by side.
        panels: those whose lines are named, by default all.
        order: the names in their order; by default that of the lines.
    """
    lines = _legend_entries(drawing.axes if panels is None else panels)
    if order is not None:
        lines = {name: lines[name] for name in order if name in lines}
    drawing.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=columns, **LEGEND)


def place_legend(drawing: Any, axes: Any, panels: Sequence[Any]) -> None:
    """Place one legend of the lines of all panels: to the right of a panel, or inside it in a picture for a paper."""
    lines = _legend_entries(panels)
    where = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), **LEGEND}
    if drawing.paper is not None:
        where = {"loc": "best", **LEGEND, "fontsize": PAPER_FONT - 1, "handlelength": 2, "labelspacing": 0.3}
    axes.legend(list(lines.values()), list(lines), **where)


def diameters(runs: Sequence[FinishedRun], *, title: str | None = None, paper: int | None = None) -> Any:
    """Draw the diameter of the honest parameters against iterations: median and range over seeds, logarithmic axis."""
    drawing, axes = figure(width=7.4, paper=paper)
    for name, run, style in zip(map(plain_text, labels(runs)), runs, styles(runs), strict=True):
        y = run.metrics["diameter"]
        y = np.where((y > 0) & np.isfinite(y), y, np.nan)  # zero has no logarithm
        drawable = ~np.isnan(y).all(axis=0)
        if not drawable.any():
            axes.plot([], [], label=f"{name} (nothing to draw)", **line_options(style))
            continue
        x, y = 1 + np.arange(y.shape[1])[drawable], y[:, drawable]
        (line,) = axes.plot(x, np.nanmedian(y, axis=0), label=name, linewidth=1, **line_options(style))
        _fill_band(axes, line, x, np.nanmin(y, axis=0), np.nanmax(y, axis=0))
    if axes.collections:
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "zero or not finite in every iteration", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
    axes.set(xlabel="iteration", ylabel=METRIC_LABELS["diameter"])
    seeds = seeds_text([len(run.metrics["diameter"]) for run in runs])
    caption = f"diameter after agreement; line: median over seeds; band: their range; {seeds}"
    with_texts(drawing, title or plain_text(setting(runs)), caption)
    if len(runs) > 1:
        place_legend(drawing, axes, [axes])
    return drawing
