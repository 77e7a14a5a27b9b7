"""The animation of agreement rounds as a GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.environments.rendering import save_gif
from jaxbyz.report.agreement_rounds import AgreementTrace, project_to_plane
from jaxbyz.report.plots import BYZANTINE_COLOUR, HONEST_COLOUR, figure


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
