"""`jaxbyz render`: draw an episode of a trained policy as an animated GIF and a strip of frames."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxbyz.cli import common


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the policy, and how to draw."""
    common.add_policy_options(parser)
    parser.add_argument("--out", metavar="FILE", default="episode.gif", help="GIF to write; the strip goes beside it")
    parser.add_argument("--run-seed", type=int, default=0, help="which seed of the run, counted from 0")
    parser.add_argument("--seed", type=common.seed_number, default=0, help="seed of the episode (default 0)")
    parser.add_argument("--width", type=int, default=480, help="width of a frame in pixels (default 480)")
    parser.add_argument("--fps", type=float, default=25.0, help="frames per second (default 25)")
    parser.add_argument("--columns", type=int, default=6, help="frames in the strip (default 6)")


def run(arguments: argparse.Namespace) -> int:
    """Run an episode, draw it, and print the names of the files."""
    from jaxbyz.environments.rendering import check_width, save_gif, save_strip
    from jaxbyz.errors import UsageError
    from jaxbyz.report.episodes import render_episode
    from jaxbyz.runs.run_folder import load_run

    common.check_at_least(arguments, columns=1, fps=1)
    out = Path(arguments.out)
    if out.suffix.lower() != ".gif":
        raise UsageError(f"out={out}: the name must end in .gif")
    data = load_run(arguments.folder)
    check_width(arguments.width)
    parameters = common.selected_parameters(arguments, data)
    common.check_index("run_seed", arguments.run_seed, len(parameters))
    episode = render_episode(data.config, parameters[arguments.run_seed], seed=arguments.seed, width=arguments.width)
    strip = out.with_name(f"{out.stem}-strip.png")
    with common.saying_what_is_replaced(out, strip):
        save_gif(episode.frames, out, arguments.fps)
        save_strip(episode.frames, strip, arguments.columns)
    print(f"return {episode.total_return:.1f} in {episode.steps} steps", out, strip, sep="\n")
    return 0
