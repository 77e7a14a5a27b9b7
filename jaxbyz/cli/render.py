"""`jaxbyz render`: draw an episode of a learnt policy as an animated GIF and a strip of frames."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxbyz.cli.arguments import seed_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """The folder, whose policy, and where the pictures go."""
    parser.add_argument("folder", metavar="DIR", help="run folder")
    parser.add_argument("--out", metavar="FILE", default="episode.gif", help="GIF to write; the strip goes beside it")
    parser.add_argument("--run-seed", type=int, default=0, help="which seed of the run, counted from 0")
    parser.add_argument("--agent", type=int, default=0, help="whose parameters (default 0)")
    parser.add_argument("--output", choices=("last", "sampled", "best"), help="which parameters (default: the run's)")
    parser.add_argument("--seed", type=seed_number, default=0, help="seed of the episode")
    parser.add_argument("--width", type=int, default=480, help="width of a frame in pixels (default 480)")
    parser.add_argument("--fps", type=float, default=25.0, help="frames a second (default 25)")
    parser.add_argument("--columns", type=int, default=6, help="frames in the strip (default 6)")


def run(arguments: argparse.Namespace) -> int:
    """Play, draw, and say where."""
    from jaxbyz.environments.rendering import drawable, save_gif, save_strip
    from jaxbyz.errors import UsageError
    from jaxbyz.experiments.run_folder import load_run, writing
    from jaxbyz.report.episodes import render_episode

    data = load_run(arguments.folder)
    if data.config.env not in drawable():
        raise UsageError(f"env={data.config.env!r} cannot be drawn: {', '.join(drawable())} can")
    if not data.policy:
        raise UsageError(f"{arguments.folder}: policy.npz is missing; the run was not finished")
    parameters = data.policy[arguments.output or data.config.output]
    for name, value, size in (
        ("run-seed", arguments.run_seed, parameters.shape[0]),
        ("agent", arguments.agent, parameters.shape[1]),
    ):
        if not 0 <= value < size:
            raise UsageError(f"{name}={value}: the run has 0 to {size - 1}")
    out = Path(arguments.out)
    if out.suffix.lower() != ".gif":
        raise UsageError(f"out={out}: the name must end in .gif")
    for name, least in (("width", 16), ("columns", 1), ("fps", 1)):
        if not getattr(arguments, name) >= least:
            raise UsageError(f"{name}={getattr(arguments, name)}: must be at least {least}")
    theta = parameters[arguments.run_seed, arguments.agent]
    episode = render_episode(data.config, theta, seed=arguments.seed, width=arguments.width)
    strip = out.with_name(f"{out.stem}-strip.png")
    with writing(out):
        save_gif(episode.frames, out, arguments.fps)
        save_strip(episode.frames, strip, arguments.columns)
    print(f"return {episode.total_return:.1f} in {episode.steps} steps")
    print(out)
    print(strip)
    return 0
