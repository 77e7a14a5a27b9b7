"""Draw the reproduced figures, with the curves of the paper as thin dashed lines."""

from __future__ import annotations

from typing import Any

from jaxbyz.report.plots import COLOURS, draw_curve, figure
from jaxbyz.reproduction.figures import FIGURES, curve_in_paper
from jaxbyz.reproduction.result_files import TrainingResult

RETURN_AXIS = {"CartPole": (0, 510), "LunarLander": (-500, 300)}


def draw_figure(name: str, results: dict[str, TrainingResult], spread: bool = True) -> Any | None:
    """Draw one figure with the panels of the paper.

    Args:
        name: a key of `FIGURES`.
        results: training name -> result.
        spread: whether to draw the standard deviation over seeds.

    Returns:
        A matplotlib figure; None if nothing in it has been trained.
    """
    title, panels = FIGURES[name]
    if not any(curve.training_name(panel.environment) in results for panel in panels for curve in panel.curves):
        return None
    drawing, all_axes = figure(len(panels), width=4.2 * len(panels), height=3.6)
    for panel, axes in zip(panels, all_axes, strict=True):
        for curve, colour in zip(panel.curves, COLOURS, strict=False):
            result = results.get(curve.training_name(panel.environment))
            paper_label = None if result else f"{curve.label}, only in the paper"
            x, y = curve_in_paper(name, panel.title, curve)
            axes.plot(x, y, color=colour, linewidth=0.8, linestyle="--", label=paper_label)
            if result is not None:
                returns = result.returns if spread else result.returns.mean(axis=0, keepdims=True)
                draw_curve(axes, result.trajectories, returns, curve.label, color=colour)
        axes.set_title(panel.title)
        axes.set_xlabel("trajectories per agent")
        axes.set_ylim(*RETURN_AXIS[panel.environment])
        axes.legend(fontsize=7, frameon=False)
    all_axes[0].set_ylabel("honest return")
    drawing.suptitle(f"{title}: jaxbyz (solid), the paper (dashed)", fontsize=10)
    return drawing
