"""Draw the reproduced figures, with the curves of the paper as thin dashed lines."""

from __future__ import annotations

from typing import Any

from jaxbyz.report.plots import COLOURS, draw_curve, figure, legend_below, seeds_text
from jaxbyz.reproduction.figures import AGENTS, FIGURES, PaperCurve, PaperPanel, curve_in_paper
from jaxbyz.reproduction.training_results import TrainingResult

RETURN_AXIS = {"CartPole": (0, 510), "LunarLander": (-500, 300)}
UNATTACKED = "no attack"  # title of the panel that the paper does not have
THIN = 0.8  # width of lines without a band


def draw_figure(
    name: str, results: dict[str, TrainingResult], spread: bool = True, setting: str | None = None
) -> Any | None:
    """Draw one figure with the panels of the paper.

    Curves without attack, which the paper repeats in every panel, have a panel of their own with their spread, and are
    thin lines in the others, so that no more than three bands overlap.

    Args:
        name: a key of `FIGURES`.
        results: training name -> result.
        spread: whether to draw the standard deviation over seeds.
        setting: the presets of the trainings, for the title.

    Returns:
        A matplotlib figure; None if nothing in it has been trained.
    """
    title, panels = FIGURES[name]
    known = [results.get(curve.training_name(panel.environment)) for panel in panels for curve in panel.curves]
    seeds = [len(result.seeds) for result in known if result is not None]
    if not seeds:
        return None
    shared = [curve for curve in panels[0].curves if all(curve in panel.curves for panel in panels)]
    attacks = panels[0].environment == panels[-1].environment  # otherwise there is one panel per task
    own = [PaperPanel(UNATTACKED, panels[0].environment, tuple(shared))] if attacks else []
    columns, rows = (2, 2) if attacks else (len(panels), 1)
    drawing, grid = figure(columns, rows, width=4.4 * columns, height=1.0 + 2.7 * rows, squeeze=False, sharex=True)
    for panel, axes in zip([*own, *panels], grid.flat, strict=True):
        in_paper = panels[0].title if panel.title == UNATTACKED else panel.title
        for curve in panel.curves:
            repeated = attacks and panel.title != UNATTACKED and curve in shared
            result = results.get(curve.training_name(panel.environment))
            if not repeated:
                label = None if result else f"{curve.label}, only in the paper"
                x, y = curve_in_paper(name, in_paper, curve)
                axes.plot(x, y, color=_colour(curve), linewidth=THIN, linestyle="--", label=label)
            if result is not None:
                banded = spread and not repeated
                returns = result.returns if banded else result.returns.mean(axis=0, keepdims=True)
                width: dict[str, Any] = {"linewidth": THIN} if repeated else {}
                draw_curve(axes, result.trajectories, returns, curve.label, color=_colour(curve), **width)
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylim(*RETURN_AXIS[panel.environment])
    grid.flat[-1].plot([], [], color="0.3", linewidth=THIN, linestyle="--", label="the paper")
    for axes in grid[-1]:
        axes.set_xlabel("trajectories per agent")
    for axes in grid[:, 0]:
        axes.set_ylabel("honest return")
    legend_below(drawing, 3)
    chosen = "" if setting is None else f", setting {setting}"
    shown = "mean ± standard deviation" if spread else "mean"
    drawing.suptitle(f"{title}{chosen}\n{shown} over {seeds_text(seeds)}; dashed: the paper", fontsize=10)
    return drawing


def _colour(curve: PaperCurve) -> str:
    """Return the colour of a method, the same in all figures."""
    if curve.method == "PAGE-PG":
        return COLOURS[2]
    if curve.method.endswith("PAGE-PG"):  # a naive federation
        return COLOURS[1] if curve.byzantine else COLOURS[3]
    return COLOURS[0] if curve.agents == AGENTS else COLOURS[4]
