"""Pictures of runs in one colour-blind-safe style.

Drawing functions return matplotlib figures; `save` writes them as .png, .svg or .pdf. Animations are written as .gif.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.config import FIELDS
from jaxbyz.environments.rendering import save_gif
from jaxbyz.errors import UsageError, check_choice, check_ending, first_line, install_command
from jaxbyz.files import write_output
from jaxbyz.report.agreement_rounds import AgreementTrace, project_to_plane
from jaxbyz.report.runs import (
    METRIC_LABELS,
    FinishedRun,
    Style,
    attack_name,
    attack_table,
    brightest_share,
    check_metric,
    common_environment,
    labels,
    setting,
    shares_over_time,
    styles,
)
from jaxbyz.report.statistics import SEED_STATISTICS, smoothed, smoothing_width
from jaxbyz.report.tables import mean_and_deviation, value_range

# The palette of Okabe and Ito, distinguishable with every common colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
HONEST_COLOUR, BYZANTINE_COLOUR = COLOURS[0], COLOURS[1]
DASH_PATTERNS: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
BAND_OPACITY = 0.18
LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "handlelength": 3}


def figure(columns: int = 1, rows: int = 1, width: float = 6.4, height: float = 4.0, **options: Any) -> Any:
    """Create a matplotlib figure and its axes in this project's style; no display is needed.

    Args:
        columns: the number of panels side by side.
        rows: the number of rows of panels.
        width: in inches.
        height: in inches.
        **options: passed on to `Figure.subplots`.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError(f"plots need matplotlib: {install_command('plots')}") from None
    from cycler import cycler
    from matplotlib.figure import Figure

    style: Any = {
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 10,
    }
    with matplotlib.rc_context(style):
        drawing = Figure(figsize=(width, height), layout="constrained")
        return drawing, drawing.subplots(rows, columns, **options)


def save(drawing: Any, path: str | Path) -> Path:
    """Write a figure as .png, .svg or .pdf, by the ending of its name."""
    import matplotlib

    check_ending(path, ".png", ".svg", ".pdf")
    path = Path(path)
    kind = path.suffix.lower()[1:]
    try:
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # keep text as text
            write_output(path, lambda file: drawing.savefig(file, dpi=150, format=kind))
    except UsageError:
        raise
    except ValueError as error:  # a title with a formula that matplotlib cannot parse
        raise UsageError(f"out={path}: the picture cannot be drawn ({first_line(error)[:200]})") from error
    return path


def plain_text(name: str) -> str:
    """Return a text that matplotlib shows as it is, without taking dollar signs for the ends of a formula."""
    return name.replace("$", r"\$")


def draw_curve(axes: Any, x: np.ndarray, y: np.ndarray, name: str, statistic: str = "mean", **style: Any) -> None:
    """Draw one curve for several seeds, with a band for their spread.

    Args:
        axes: where to draw.
        x: `[G]`.
        y: `[seeds, G]`.
        name: the entry in the legend.
        statistic: `"mean"` (± standard deviation) or `"iqm"` (interquartile mean, 95 % bootstrap interval).
        **style: passed on to `axes.plot`.
    """
    check_choice("statistic", statistic, SEED_STATISTICS)
    value, low, high = SEED_STATISTICS[statistic][0](y)
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
) -> Any:
    """Draw a metric against trajectories per agent, with one curve per run and its spread over seeds.

    Args:
        runs: the runs, all in the same environment.
        metric: a name from `METRIC_LABELS`.
        width: the number of trajectories over which each point averages; by default it follows the longest run.
        title: by default what all runs have in common, and the statistic.
        statistic: see `draw_curve`.
        facet: an option, for example `"attack"`: one panel for each of its values, with a common vertical axis.
    """
    if facet is not None:
        check_choice("facet", facet, FIELDS)
    check_choice("statistic", statistic, SEED_STATISTICS)
    width = width or max(smoothing_width(run.metrics) for run in runs)
    panels = list(dict.fromkeys(_facet_value(run, facet) for run in runs))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    drawing, grid = figure(
        columns, rows, width=4.2 + 3.2 * columns, height=1.2 + 2.8 * rows, squeeze=False, sharey=True, sharex=True
    )
    for name, run, style in zip(labels(runs, facet), runs, styles(runs, facet), strict=True):
        check_metric(run, metric)
        axes = grid.flat[panels.index(_facet_value(run, facet))]
        draw_curve(axes, *smoothed(run.metrics, width, metric), name or plain_text(metric), statistic, **_line(style))
    for axes, value in zip(grid.flat, panels, strict=False):
        axes.set_xlabel("trajectories per agent")
        if facet is not None:
            axes.set_title(plain_text(f"{facet} {value}"), fontsize=10)
    for axes in grid[:, 0]:
        axes.set_ylabel(METRIC_LABELS.get(metric, metric))
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    heading = title or _heading(runs, SEED_STATISTICS[statistic][1])
    if facet is None:
        grid[0, 0].set_title(heading, fontsize=10)
    else:
        drawing.suptitle(heading, fontsize=10)
    _legend_beside(grid[0, columns - 1], grid.flat[: len(panels)])
    return drawing


def _heading(runs: Sequence[FinishedRun], shown: str) -> str:
    """Return the usual title of a picture: what all runs have in common, and what is shown."""
    return f"{plain_text(setting(runs))}\n{shown}"


def _facet_value(run: FinishedRun, facet: str | None) -> str:
    if facet == "attack":
        return attack_name(run.config)
    return "" if facet is None else str(getattr(run.config, facet))


def _line(style: Style) -> dict[str, Any]:
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
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) + " seeds"


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


def _legend_beside(axes: Any, panels: Sequence[Any]) -> None:
    """Place one legend of the lines of all panels to the right of a panel, so that it hides no curve."""
    lines = _legend_entries(panels)
    axes.legend(list(lines.values()), list(lines), loc="upper left", bbox_to_anchor=(1.0, 1.0), **LEGEND)


def diameters(runs: Sequence[FinishedRun], *, title: str | None = None) -> Any:
    """Draw the diameter of the honest parameters against iterations: median and range over seeds, logarithmic axis."""
    drawing, axes = figure(width=7.4)
    for name, run, style in zip(map(plain_text, labels(runs)), runs, styles(runs), strict=True):
        y = run.metrics["diameter"]
        y = np.where((y > 0) & np.isfinite(y), y, np.nan)  # zero has no logarithm
        drawable = ~np.isnan(y).all(axis=0)
        if not drawable.any():
            axes.plot([], [], label=f"{name} (nothing to draw)", **_line(style))
            continue
        x, y = 1 + np.arange(y.shape[1])[drawable], y[:, drawable]
        (line,) = axes.plot(x, np.nanmedian(y, axis=0), label=name, linewidth=1, **_line(style))
        _fill_band(axes, line, x, np.nanmin(y, axis=0), np.nanmax(y, axis=0))
    if axes.collections:
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "zero or not finite in every iteration", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
    axes.set(xlabel="iteration", ylabel=METRIC_LABELS["diameter"])
    axes.set_title(title or _heading(runs, "diameter after agreement: median and range over seeds"), fontsize=10)
    _legend_beside(axes, [axes])
    return drawing


def heatmap(
    runs: Sequence[FinishedRun],
    *,
    metric: str = "returns",
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Any:
    """Draw the final value of a metric for every defence under every attack: mean ± standard deviation over seeds.

    Cells without a run are empty.

    Args:
        runs: the runs, all in the same environment.
        metric: a name from `METRIC_LABELS`.
        limits: the values of the darkest and the brightest colour; by default the range of the task, or of the values.
        title: by default what all runs have in common, and the metric.
    """
    for run in runs:
        check_metric(run, metric)
    table = attack_table(runs, metric)
    means = np.array([[np.nan if values is None else values.mean() for values in row] for row in table.returns])
    finite = means[np.isfinite(means)]
    low, high = limits or value_range(common_environment(runs), metric) or (
        (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    )  # fmt: skip
    drawing, axes = figure(width=max(5.6, 2.6 + 1.05 * len(table.attacks)), height=1.8 + 0.42 * len(table.defences))
    axes.grid(False)
    image = axes.imshow(means, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    axes.set_xticks(range(len(table.attacks)), map(plain_text, table.attacks), rotation=30, ha="right")
    axes.set_yticks(range(len(table.defences)), map(plain_text, table.defences))
    for (row, column), mean in np.ndenumerate(means):
        values = table.returns[row][column]
        if values is not None and np.isfinite(mean):
            colour = "white" if mean <= (low + high) / 2 else "black"
            axes.text(column, row, mean_and_deviation(values), ha="center", va="center", color=colour, fontsize=9)
    name = f"final {METRIC_LABELS.get(metric, metric)}"
    drawing.colorbar(image, ax=axes, label=name, extend=_beyond(finite, low, high))
    axes.set_title(title or _heading(runs, f"{name}, mean ± standard deviation over seeds"), fontsize=10)
    return drawing


def _beyond(values: np.ndarray, low: float, high: float) -> str:
    """Return at which ends of a colour bar values lie beyond it, as matplotlib names them."""
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return ends[bool((values < low).any()), bool((values > high).any())]


def trust(run: FinishedRun, *, title: str | None = None, intervals: int = 80) -> Any:
    """Draw the share of every sender in the honest agents' aggregates over time, mean over seeds."""
    shares, trajectories, byzantine = shares_over_time(run, intervals)
    K = len(shares)
    brightest = brightest_share(K)
    drawing, axes = figure(height=0.9 + 0.22 * K)
    axes.grid(False)
    image = axes.imshow(
        shares, cmap="cividis", aspect="auto", vmin=0, vmax=brightest,
        extent=(0, trajectories[-1], K - 0.5, -0.5), interpolation="nearest",
    )  # fmt: skip
    axes.set_yticks(range(K), [f"{k} Byzantine" if marked else str(k) for k, marked in enumerate(byzantine)])
    for tick, marked in zip(axes.get_yticklabels(), byzantine, strict=True):
        tick.set_color(BYZANTINE_COLOUR if marked else "black")
        tick.set_fontsize(8)
    label = f"share in the aggregate (equal: {1 / K:.2g})"
    drawing.colorbar(image, ax=axes, label=label, extend=_beyond(shares, 0, brightest))
    axes.set(xlabel="trajectories per agent", ylabel="sender")
    axes.set_title(title or _heading([run], "weight of each sender, mean over seeds"), fontsize=10)
    return drawing


def agreement_animation(
    trace: AgreementTrace, out: str | Path, *, fps: float = 4.0, size: float = 4.2, title: str | None = None
) -> Path:
    """Write agreement rounds as a GIF, in the plane in which the proposals of each iteration differ most.

    Every iteration has its own centre, the mean of the honest proposals, and its own scale, shown by a bar. Dots are
    honest parameters; crosses are the messages of Byzantine agents to the first honest agent, drawn at the edge of the
    frame if they lie outside.

    Args:
        trace: the result of `trace_run`.
        out: the file to write.
        fps: frames per second.
        size: width and height in inches.
        title: the beginning of every frame's title.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    frames = []
    for drawing in agreement_frames(trace, size, title):
        canvas = FigureCanvasAgg(drawing)
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    return save_gif(frames, out, fps)


def agreement_frames(trace: AgreementTrace, size: float, title: str | None = None) -> list[Any]:
    """Draw the frames of `agreement_animation`, κ + 1 per iteration, as matplotlib figures."""
    frames = []
    for t, (held, sent, byzantine) in enumerate(zip(*trace, strict=True)):
        proposals = held[0, ~byzantine]
        honest = project_to_plane(held[:, ~byzantine], proposals)  # [κ+1, honest, 2]
        forged = project_to_plane(sent[:, byzantine], proposals)  # [κ+1, f, 2]
        radius = 1.25 * float(np.abs(honest).max()) or 1.0  # all proposals may be equal
        for rounds in range(len(held)):
            name = f"iteration {t + 1}, " + (f"after round {rounds}" if rounds else "proposals")
            text = name if title is None else f"{title}: {name}"
            frames.append(_agreement_frame(honest[: rounds + 1], forged[rounds], radius, text, size))
    return frames


def _agreement_frame(paths: np.ndarray, forged: np.ndarray, radius: float, title: str, size: float) -> Any:
    """Draw the paths of honest agents `[rounds+1, honest, 2]` and the forged messages `[f, 2]`."""
    drawing, axes = figure(width=size, height=size)
    for agent in range(paths.shape[1]):
        axes.plot(*paths[:, agent].T, color=HONEST_COLOUR, alpha=0.35, linewidth=1)
    axes.scatter(*paths[-1].T, color=HONEST_COLOUR, s=36, label="honest", zorder=3)
    if len(forged):
        reach = np.abs(forged).max(axis=1, keepdims=True)
        shown = np.where(reach > radius, forged * 0.97 * radius / np.maximum(reach, 1e-30), forged)
        axes.scatter(*np.nan_to_num(shown).T, color=BYZANTINE_COLOUR, marker="X", s=60, label="Byzantine", zorder=4)
    limits = (-radius, radius)
    axes.set(xlim=limits, ylim=limits, xticks=[], yticks=[], aspect="equal")
    axes.plot([-0.95 * radius, -0.45 * radius], [-0.93 * radius] * 2, color="black", linewidth=2)
    axes.text(-0.7 * radius, -0.9 * radius, f"{radius / 2:.1e}", ha="center", va="bottom", fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper right", fontsize=8, framealpha=0.6)
    return drawing
