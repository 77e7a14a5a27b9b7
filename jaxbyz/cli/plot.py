"""`jaxbyz plot`: pictures of one or more run folders."""

from __future__ import annotations

import argparse

KINDS = {
    "curves": "a metric against trajectories",
    "heatmap": "final return by rule and attack",
    "diameter": "distance between honest agents against iterations",
    "trust": "share of each sender in the aggregate",
    "agreement": "an animation of the first iterations' agreement (.gif)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Folders and the picture."""
    parser.add_argument("folders", metavar="DIR", nargs="+", help="run folders, or folders of them")
    parser.add_argument("--kind", choices=KINDS, default="curves", help=_choices())
    parser.add_argument("--out", metavar="FILE", help="picture to write, .png, .svg or .pdf (default: KIND.png)")
    parser.add_argument("--metric", default="returns", help="curves: return, diameter, ess, byzantine_weight, …")
    parser.add_argument("--width", type=int, default=100, help="curves: trajectories a point averages (default 100)")
    parser.add_argument(
        "--statistic", default="mean", choices=("mean", "iqm"),
        help="curves: mean and standard deviation, or interquartile mean and 95%% bootstrap interval",
    )  # fmt: skip
    parser.add_argument("--iterations", type=int, default=5, help="agreement: iterations to show (default 5)")
    parser.add_argument("--run-seed", type=int, default=0, help="agreement: which seed of the run, counted from 0")
    parser.add_argument("--title", help="title of the picture")


def _choices() -> str:
    return "; ".join(f"{name}: {line}" for name, line in KINDS.items())


def run(arguments: argparse.Namespace) -> int:
    """Draw and say where."""
    from jaxbyz.errors import UsageError
    from jaxbyz.report import plots
    from jaxbyz.report.runs import labels, load_runs
    from jaxbyz.report.tables import RETURN_LEVELS, comparison

    runs = load_runs(arguments.folders)
    kind, title = arguments.kind, arguments.title
    out = arguments.out or (f"{kind}.gif" if kind == "agreement" else f"{kind}.png")
    if kind in ("trust", "agreement") and len(runs) > 1:
        raise UsageError(f"kind={kind} shows one run: {len(runs)} were given")
    if kind == "agreement" and not out.lower().endswith(".gif"):
        raise UsageError(f"out={out}: the name must end in .gif")
    if arguments.width < 1 or arguments.iterations < 1:
        raise UsageError(f"width={arguments.width}, iterations={arguments.iterations}: must be at least 1")
    if kind == "agreement":
        from jaxbyz.report.agreement_rounds import trace_run

        trace = trace_run(runs[0].config, arguments.run_seed, arguments.iterations)
        print(plots.agreement_animation(trace, out))
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
