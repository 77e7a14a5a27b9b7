"""The animations of a report, as GIFs that a page can contain, and why some are missing."""

from __future__ import annotations

import base64
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.check import unregistered
from jaxbyz.environments.rendering import drawable, save_gif
from jaxbyz.registry import import_options
from jaxbyz.report.agreement_animation import agreement_animation
from jaxbyz.report.agreement_rounds import trace_run
from jaxbyz.report.episodes import render_episode
from jaxbyz.runs.run_folder import RunData

MAX_FRAMES = 120  # per animated episode


def animate(
    runs: Sequence[RunData], log: Callable[[str], None] = lambda line: None
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Draw an episode of every run and its agreement, where the environment and the algorithm allow it.

    Args:
        runs: the runs.
        log: receives a line before each animation.

    Returns:
        The animations, and for every missing one the number of its run and the reason.
    """
    animations: list[dict[str, Any]] = []
    missing: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for index, run in enumerate(runs):
            if (unknown := unregistered(run.config)) is not None:
                needed = shlex.join(import_options(run.record.get("imported", ()))) or "--import FILE"
                missing.append((index, f"no animation, because {unknown}; `jaxbyz {needed} report …` registers it"))
                continue
            for kind, draw in (("policy", _animate_episode), ("agreement", _animate_agreement)):
                path = Path(folder) / f"{index}-{kind}.gif"
                log(f"animation of the {kind} of run {index + 1} of {len(runs)}")
                try:
                    caption = draw(run, path)
                except CannotAnimateError as reason:
                    missing.append((index, f"no animation of the {kind}: {reason}"))
                    continue
                source = "data:image/gif;base64," + base64.b64encode(path.read_bytes()).decode()
                animations.append({"run": index, "kind": kind, "caption": caption, "source": source})
    return animations, missing


class CannotAnimateError(Exception):
    """Says why an animation is missing."""


def _animate_episode(run: RunData, path: Path) -> str:
    """Draw an episode of the first seed's first agent, and return the caption."""
    config = run.config
    if config.env not in drawable():
        raise CannotAnimateError(f"{config.env} has no drawing")
    if not run.policy or not np.isfinite(theta := run.policy[config.output][0, 0]).all():
        raise CannotAnimateError(f"seed {config.seed} became non-finite")
    episode = render_episode(config, theta, width=240, max_frames=MAX_FRAMES)
    save_gif(episode.frames, path, fps=25)
    return f"one episode of seed {config.seed}: return {episode.total_return:.0f} in {episode.steps} steps"


def _animate_agreement(run: RunData, path: Path) -> str:
    """Draw the agreement of the first seed's first iterations, and return the caption."""
    if run.config.agreement == "none":
        raise CannotAnimateError(f"{run.config.algorithm} has no agreement on parameters")
    trace = trace_run(run.config, 0, 3)
    if not np.ptp(trace.parameters[:, 0], axis=1).any():
        raise CannotAnimateError("all agents propose the same parameters in the first iterations")
    agreement_animation(trace, path, size=3.0)
    return f"agreement ({run.config.agreement}) on parameters"
