"""Pictures of runs: one module, one style, colour-blind safe.

What draws returns a matplotlib figure; `save` writes it as .png, .svg or .pdf. Animations are written as .gif.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.experiments.run_folder import writing
from jaxbyz.report.agreement_rounds import Trace, plane
from jaxbyz.report.runs import Finished, check_same_environment, label, labels, rule_name, shares_over_time, table_of
from jaxbyz.report.statistics import SPREADS
from jaxbyz.report.tables import smoothed

# Okabe and Ito's palette, told apart with every common colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
HONEST, LIAR = COLOURS[0], COLOURS[1]

__all__ = [
    "agreement_animation", "curve", "diameters", "figure", "heatmap", "label", "learning_curves", "save", "trust",
]  # fmt: skip


def figure(columns: int = 1, rows: int = 1, width: float = 6.4, height: float = 4.0, **options: Any) -> Any:
    """A matplotlib figure and its axes in the house style, without a display."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError("plots need matplotlib: pip install 'jaxbyz[plots]'") from None
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
    """Write the picture; .png, .svg or .pdf by its name."""
    import matplotlib

    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"out={path}: the name must end in .png, .svg or .pdf")
    with writing(path), matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        drawing.savefig(path, dpi=150)
    return path


def curve(axes: Any, x: np.ndarray, y: np.ndarray, name: str, statistic: str = "mean", **style: Any) -> None:
    """One line for many seeds with a band about it; y [seeds, G]. `statistic` is `mean` (± std) or `iqm` (95 %)."""
    value, low, high = _spread(statistic)[0](y)
    (line,) = axes.plot(x, value, label=name, marker="o" if len(x) == 1 else None, **style)
    if y.shape[0] > 1:
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.18, linewidth=0)


def _spread(statistic: str) -> Any:
    if statistic not in SPREADS:
        raise UsageError(f"statistic={statistic!r} is unknown: one of {', '.join(SPREADS)}")
    return SPREADS[statistic]


def learning_curves(
    runs: Sequence[Finished],
    *,
    metric: str = "returns",
    width: int = 100,
    title: str | None = None,
    statistic: str = "mean",
) -> Any:
    """A metric against trajectories per agent, a curve a run, with its spread over seeds."""
    environment = check_same_environment(runs)
    drawing, axes = figure()
    for name, run in zip(labels(runs), runs, strict=True):
        x, y = smoothed({"trajectories": run.metrics["trajectories"], "returns": metric_of(run, metric)}, width)
        curve(axes, x, y, name, statistic)
    axes.set_xlabel("trajectories per agent")
    axes.set_ylabel("return of honest agents" if metric == "returns" else metric.replace("_", " "))
    axes.set_title(title or f"{environment}, {_spread(statistic)[1]}", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    return drawing


def metric_of(run: Finished, metric: str) -> np.ndarray:
    """[seeds, iterations] of a run, or a line that names what there is."""
    if metric not in run.metrics or run.metrics[metric].ndim != 2:
        known = ", ".join(name for name, values in run.metrics.items() if values.ndim == 2)
        raise UsageError(f"metric={metric!r} is unknown: one of {known}")
    return run.metrics[metric]


def diameters(runs: Sequence[Finished], *, title: str | None = None) -> Any:
    """Diameter of honest parameters against iterations, on a logarithmic axis: median over seeds, least to largest."""
    environment = check_same_environment(runs)
    drawing, axes = figure()
    for name, run in zip(labels(runs), runs, strict=True):
        y = run.metrics["diameter"]
        y = np.where((y > 0) & np.isfinite(y), y, np.nan)  # zero has no logarithm
        shown = ~np.isnan(y).all(axis=0)
        x = 1 + np.arange(y.shape[1])[shown]
        if not shown.any():
            axes.plot([], [], label=f"{name}: zero, or not a number, throughout")
            continue
        (line,) = axes.plot(x, np.nanmedian(y[:, shown], axis=0), label=name, linewidth=1)
        low, high = np.nanmin(y[:, shown], axis=0), np.nanmax(y[:, shown], axis=0)
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    if axes.collections:
        axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel("largest distance between honest parameters")
    axes.set_title(title or f"{environment}, diameter after agreement: median and range over seeds", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    return drawing


def heatmap(runs: Sequence[Finished], *, title: str | None = None) -> Any:
    """Final honest return of every rule under every attack, mean over seeds; empty where there is no run."""
    environment = check_same_environment(runs)
    table = table_of(runs)
    values = np.array([[np.nan if cell is None else cell.mean for cell in row] for row in table.cells])
    wide, high = 2.6 + 0.85 * len(table.attacks), 1.6 + 0.4 * len(table.rules)
    drawing, axes = figure(width=wide, height=high)
    axes.grid(False)
    picture = axes.imshow(values, cmap="cividis", aspect="auto")
    axes.set_xticks(range(len(table.attacks)), table.attacks, rotation=30, ha="right")
    axes.set_yticks(range(len(table.rules)), table.rules)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = value <= middle
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if dark else "black")
    drawing.colorbar(picture, ax=axes, label="final return")
    axes.set_title(title or f"{environment}, final return of honest agents", fontsize=10)
    return drawing


def trust(run: Finished, *, title: str | None = None, columns: int = 80) -> Any:
    """Share of every sender in honest agents' aggregates over time, mean over seeds; Byzantine senders are marked."""
    shares = shares_over_time(run, columns)
    drawing, axes = figure(height=0.9 + 0.22 * shares.values.shape[0])
    axes.grid(False)
    end = shares.trajectories[-1]
    K = shares.values.shape[0]
    fair = 1 / K
    picture = axes.imshow(
        shares.values, cmap="cividis", aspect="auto", vmin=0, vmax=3 * fair,
        extent=(0, end, K - 0.5, -0.5), interpolation="nearest",
    )  # fmt: skip
    axes.set_yticks(range(K), [f"{k} {'Byzantine' if lies else ''}".strip() for k, lies in enumerate(shares.byzantine)])
    for k, tick in enumerate(axes.get_yticklabels()):
        tick.set_color(LIAR if shares.byzantine[k] else "black")
        tick.set_fontsize(8)
    more = "max" if np.nanmax(shares.values) > 3 * fair else "neither"
    drawing.colorbar(picture, ax=axes, label=f"share in the aggregate (fair: {fair:.2g})", extend=more)
    axes.set_xlabel("trajectories per agent")
    axes.set_ylabel("sender")
    axes.set_title(title or f"Who is trusted by {rule_name(run.config)} under {run.config.attack}", fontsize=10)
    return drawing


def agreement_animation(trace: Trace, out: str | Path, *, fps: float = 4.0, size: float = 4.2) -> Path:
    """Rounds of agreement as a GIF: parameters on the two directions along which the first proposals differ most.

    Every iteration is drawn about its honest agents' mean and to its own scale, given by the bar. Dots are what honest
    agents hold; crosses what liars tell the first of them, at the frame's edge when it is farther out.
    """
    from PIL import Image

    path = Path(out)
    frames = []
    for t, (held, sent, liars) in enumerate(zip(trace.parameters, trace.sent, trace.byzantine, strict=True)):
        honest = plane(held[:, ~liars], held[0, ~liars])  # [κ+1, honest, 2]
        told = plane(sent[:, liars], held[0, ~liars])
        radius = 1.25 * float(np.abs(honest).max()) or 1.0  # proposals may all be the same
        for i in range(len(held)):
            frames.append(_agreement_frame(honest[: i + 1], told[i], radius, t, i, size))
    pictures = [frame.quantize(64, dither=Image.Dither.NONE) for frame in frames]
    with writing(path):
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=round(1000 / fps), loop=0)
    return path


def _agreement_frame(path: np.ndarray, told: np.ndarray, radius: float, t: int, round_: int, size: float) -> Any:
    """One frame: trails of honest agents [i+1, honest, 2] up to now, liars' words [f, 2]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    drawing, axes = figure(width=size, height=size)
    for agent in range(path.shape[1]):
        axes.plot(*path[:, agent].T, color=HONEST, alpha=0.35, linewidth=1)
    axes.scatter(*path[-1].T, color=HONEST, s=36, label="honest", zorder=3)
    if len(told):
        reach = np.abs(told).max(axis=1, keepdims=True)
        shown = np.where(reach > radius, told * 0.97 * radius / np.maximum(reach, 1e-30), told)
        axes.scatter(*np.nan_to_num(shown).T, color=LIAR, marker="X", s=60, label="told by liars", zorder=4)
    axes.set_xlim(-radius, radius)
    axes.set_ylim(-radius, radius)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal")
    axes.plot([-0.95 * radius, -0.45 * radius], [-0.93 * radius] * 2, color="black", linewidth=2)
    axes.text(-0.7 * radius, -0.9 * radius, f"{radius / 2:.1e}", ha="center", va="bottom", fontsize=8)
    axes.set_title(f"iteration {t}, {'proposals' if round_ == 0 else f'after round {round_}'}", fontsize=10)
    axes.legend(loc="upper right", fontsize=8, framealpha=0.6)
    canvas = FigureCanvasAgg(drawing)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
