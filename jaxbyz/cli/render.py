"""`jaxbyz render`: draw an episode of a trained policy as an animated GIF and a strip of frames."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxbyz.cli import common


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the policy, and how to draw."""
    common.add_policy_options(parser)
    common.add(parser, "--out", "GIF to write; the strip goes beside it", "episode.gif", metavar="FILE")
    common.add_shared(parser, "--run-seed")
    common.add(parser, "--seed", "seed of the episode", 0, type=common.seed_number)
    common.add(parser, "--width", "width of a frame in pixels", 480)
    common.add(parser, "--frames", "draw only so many frames, from the start of the episode", least=1)
    common.add(parser, "--fps", "frames per second", 25.0, least=1)
    common.add(parser, "--columns", "frames in the strip", 6, least=1)


def run(arguments: argparse.Namespace) -> int:
    """Run an episode, draw it, and print the names of the files."""
    from jaxbyz.environments.rendering import check_width, save_gif, save_strip
    from jaxbyz.errors import check_ending
    from jaxbyz.report.episodes import render_episode
    from jaxbyz.runs.run_folder import load_run

    check_ending(arguments.out, ".gif")
    check_width(arguments.width)
    data, out = load_run(arguments.folder, log=common.print_message), Path(arguments.out)
    theta = data.parameters(run_seed=arguments.run_seed, agent=arguments.agent, output=arguments.output)
    episode = render_episode(data.config, theta, seed=arguments.seed, width=arguments.width)
    strip = out.with_name(f"{out.stem}-strip.png")
    with common.saying_what_is_replaced(out, strip):
        frames = episode.frames[: arguments.frames]
        save_gif(frames, out, arguments.fps)
        save_strip(frames, strip, arguments.columns)
    print(f"return {episode.total_return:.1f} in {episode.steps} steps", out, strip, sep="\n")
    return 0
