"""`jaxbyz plot`: learning curves of one or more run folders."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Folders and the picture."""
    parser.add_argument("folders", metavar="DIR", nargs="+", help="run folders")
    parser.add_argument("--out", metavar="FILE", default="curves.png", help="picture to write, .png or .svg")
    parser.add_argument("--metric", default="return", help="what to draw: return, diameter, ess, byzantine_weight, …")
    parser.add_argument("--width", type=int, default=100, help="trajectories a point averages over (default 100)")
    parser.add_argument("--title", help="title of the picture")


def run(arguments: argparse.Namespace) -> int:
    """Draw and say where."""
    from jaxbyz.report.plots import label, learning_curves
    from jaxbyz.report.tables import comparison
    from jaxbyz.results import load_run

    runs = [load_run(folder) for folder in arguments.folders]
    path = learning_curves(runs, arguments.out, metric=arguments.metric, width=arguments.width, title=arguments.title)
    levels = {"CartPole-v1": (195, 400, 450), "LunarLander-v3": (0, 100, 200)}.get(runs[0].config.env, ())
    print(comparison([(label(run), run.metrics) for run in runs], levels))
    print(path)
    return 0
