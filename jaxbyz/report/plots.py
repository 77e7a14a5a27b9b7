"""Pictures of runs: one module, one style, colour-blind safe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.registry import UsageError
from jaxbyz.report.tables import smoothed
from jaxbyz.results import RunData

# Okabe and Ito's palette, told apart with every common colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


def figure(columns: int = 1, rows: int = 1, width: float = 6.4, height: float = 4.0, **options: Any) -> Any:
    """A matplotlib figure and its axes in the house style, without a display."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError("plots need matplotlib: pip install 'jaxbyz[plots]'") from None
    matplotlib.use("Agg")
    from cycler import cycler
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "font.size": 10,
            "legend.frameon": False,
            "savefig.dpi": 150,
            "svg.fonttype": "none",
        }
    )
    return pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)


def save(drawing: Any, path: str | Path) -> Path:
    """Write the picture; .png, .svg or .pdf by its name."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"out={path}: the name must end in .png, .svg or .pdf")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path)
    except OSError as error:
        raise UsageError(f"out={path}: cannot be written ({error.strerror})") from error
    from matplotlib import pyplot

    pyplot.close(drawing)
    return path


def label(run: RunData) -> str:
    """A line that tells runs apart."""
    config = run.config
    text = f"{config.algorithm}, K={config.agents}"
    return text + (f", {config.byzantine} Byzantine ({config.attack})" if config.byzantine else ", all honest")


def curve(axes: Any, x: np.ndarray, y: np.ndarray, name: str, **style: Any) -> None:
    """Mean over seeds with a band of one standard deviation; y [seeds, G]."""
    mean, spread = y.mean(axis=0), y.std(axis=0)
    (line,) = axes.plot(x, mean, label=name, **style)
    if y.shape[0] > 1:
        axes.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.18, linewidth=0)


def learning_curves(
    runs: Sequence[RunData], out: str | Path, *, metric: str = "return", width: int = 100, title: str | None = None
) -> Path:
    """Mean and spread over seeds of a metric against trajectories per agent, a curve a run."""
    names = {run.config.env for run in runs}
    if len(names) > 1:
        raise UsageError(f"folders of different environments in one plot: {', '.join(sorted(names))}")
    drawing, axes = figure()
    for run in runs:
        if metric not in run.metrics or run.metrics[metric].ndim != 2:
            known = ", ".join(name for name, values in run.metrics.items() if values.ndim == 2)
            raise UsageError(f"metric={metric!r} is not in {run.folder}: one of {known}")
        x, y = smoothed({"trajectories": run.metrics["trajectories"], "return": run.metrics[metric]}, width)
        curve(axes, x, y, label(run))
    axes.set_xlabel("trajectories per agent")
    axes.set_ylabel("return of honest agents" if metric == "return" else metric.replace("_", " "))
    axes.set_title(title or f"{names.pop()}, mean and standard deviation over seeds")
    axes.legend()
    return save(drawing, out)
