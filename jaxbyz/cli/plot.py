"""`jaxbyz plot`: draw one or more run folders."""

from __future__ import annotations

import argparse

from jaxbyz.cli.common import check_at_least

KINDS = {
    "curves": "a metric against trajectories",
    "heatmap": "final return by rule and attack",
    "diameter": "largest distance between honest agents against iterations",
    "trust": "weight of each sender in the aggregate",
    "agreement": "animation of the agreement rounds of the first iterations (.gif)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders and the picture."""
    from jaxbyz.report.statistics import SEED_STATISTICS

    parser.add_argument("folders", metavar="DIR", nargs="+", help="run folders, or folders that contain run folders")
    parser.add_argument(
        "--kind", choices=KINDS, default="curves", help="; ".join(f"{name}: {line}" for name, line in KINDS.items())
    )
    parser.add_argument("--out", metavar="FILE", help="picture to write, .png, .svg or .pdf (default: KIND.png)")
    parser.add_argument(
        "--metric",
        default="returns",
        help="curves: returns, worst_agent, diameter, ess, byzantine_weight, … (default returns)",
    )
    parser.add_argument(
        "--width", type=int, default=100, help="curves: average over this many trajectories (default 100)"
    )
    parser.add_argument(
        "--statistic", default="mean", choices=SEED_STATISTICS,
        help="curves: mean and standard deviation, or interquartile mean and 95%% bootstrap interval",
    )  # fmt: skip
    parser.add_argument("--iterations", type=int, default=5, help="agreement: iterations to show (default 5)")
    parser.add_argument("--run-seed", type=int, default=0, help="agreement: which seed of the run, counted from 0")
    parser.add_argument("--title", help="title of the picture")


def run(arguments: argparse.Namespace) -> int:
    """Draw, and print the name of the file."""
    from jaxbyz.errors import UsageError
    from jaxbyz.report import plots
    from jaxbyz.report.runs import labels, load_runs
    from jaxbyz.report.tables import RETURN_LEVELS, comparison

    check_at_least(arguments, width=1, iterations=1)
    runs = load_runs(arguments.folders)
    kind, title = arguments.kind, arguments.title
    out = arguments.out or (f"{kind}.gif" if kind == "agreement" else f"{kind}.png")
    if kind in ("trust", "agreement") and len(runs) > 1:
        raise UsageError(f"kind={kind} shows one run: {len(runs)} were given")
    if kind == "agreement" and not out.lower().endswith(".gif"):
        raise UsageError(f"out={out}: the name must end in .gif")
    if kind == "agreement":
        from jaxbyz.report.agreement_rounds import trace_run

        trace = trace_run(runs[0].config, arguments.run_seed, arguments.iterations)
        print(plots.agreement_animation(trace, out, title=title))
        return 0
    if kind == "curves":
        picture = plots.learning_curves(
            runs, metric=arguments.metric, width=arguments.width, title=title, statistic=arguments.statistic
        )
    elif kind == "trust":
        picture = plots.trust(runs[0], title=title)
    else:
        picture = {"heatmap": plots.heatmap, "diameter": plots.diameters}[kind](runs, title=title)
    path = plots.save(picture, out)
    rows = [(name, run.metrics) for name, run in zip(labels(runs), runs, strict=True)]
    print(comparison(rows, RETURN_LEVELS.get(runs[0].config.env, ())))
    print(path)
    return 0
