"""`jaxbyz plot`: draw one or more run folders."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from jaxbyz.cli.common import add, add_run_folders, load_runs, print_message, saying_what_is_replaced

if TYPE_CHECKING:
    from jaxbyz.runs.run_folder import RunData

KINDS = {
    "curves": "a metric against trajectories",
    "heatmap": "final value of a metric by rule and attack",
    "diameter": "largest distance between honest agents against iterations",
    "trust": "weight of each sender in the aggregate",
    "agreement": "animation of the agreement rounds of the first iterations (.gif)",
}
# option -> the kinds of pictures that read it, and its default
OPTIONS_OF_KINDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "metric": (("curves", "heatmap"), "returns"),
    "width": (("curves",), None),
    "statistic": (("curves",), "mean"),
    "facet": (("curves",), None),
    "range": (("heatmap",), None),
    "iterations": (("agreement",), 5),
    "run_seed": (("agreement",), 0),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders and the picture."""
    from jaxbyz.report.statistics import SEED_STATISTICS

    add_run_folders(parser)
    add(parser, "--kind", "; ".join(f"{name}: {line}" for name, line in KINDS.items()), "curves", choices=KINDS)
    add(parser, "--out", "picture to write, .png, .svg or .pdf (default: KIND.png)", metavar="FILE")
    add(
        parser, "--metric", "curves and heatmap: returns, worst_agent, diameter, ess, byzantine_weight, … (default "
        "returns)",
    )  # fmt: skip
    add(parser, "--width", "curves: average over this many trajectories (default: a fiftieth of the run)", least=1)
    add(parser, "--facet", "curves: one panel for each value of this option, like attack", metavar="OPTION")
    add(
        parser, "--range", "heatmap: values of the darkest and the brightest colour (default: the range of the task)",
        type=number_range, metavar="LOW,HIGH",
    )  # fmt: skip
    add(
        parser, "--statistic", "curves: mean and standard deviation (default), or interquartile mean and 95%% "
        "bootstrap interval", choices=SEED_STATISTICS,
    )  # fmt: skip
    add(parser, "--iterations", "agreement: iterations to show (default 5)", least=1)
    add(parser, "--run-seed", "agreement: which seed of the run, counted from 0", type=int)
    add(parser, "--title", "title of the picture")


def number_range(text: str) -> tuple[float, float]:
    """Return the two numbers that a text such as `0,500` names."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not (low < high and math.isfinite(high - low)):
        raise argparse.ArgumentTypeError(f"range={text!r}: must be two numbers like 0,500, the smaller one first")
    return low, high


def run(arguments: argparse.Namespace) -> int:
    """Draw, and print the name of the file."""
    from jaxbyz.errors import UsageError, check_ending
    from jaxbyz.report import plots
    from jaxbyz.report.runs import labels
    from jaxbyz.report.tables import RETURN_LEVELS, comparison

    _fill_in_defaults(arguments)
    runs, kind, title = load_runs(arguments.folders), arguments.kind, arguments.title
    out = arguments.out or (f"{kind}.gif" if kind == "agreement" else f"{kind}.png")
    if kind in ("trust", "agreement") and len(runs) > 1:
        raise UsageError(f"kind={kind} shows one run: {len(runs)} were given")
    if kind == "agreement":
        check_ending(out, ".gif")
        _animate_agreement(runs[0], out, arguments)
        return 0
    if kind == "curves":
        options = {name: getattr(arguments, name) for name in ("metric", "width", "statistic", "facet")}
        picture = plots.learning_curves(runs, title=title, **options)
    elif kind == "heatmap":
        picture = plots.heatmap(runs, metric=arguments.metric, limits=arguments.range, title=title)
    elif kind == "trust":
        picture = plots.trust(runs[0], title=title)
    else:
        picture = plots.diameters(runs, title=title)
    with saying_what_is_replaced(out):
        path = plots.save(picture, out)
    rows = [(name, run.metrics) for name, run in zip(labels(runs), runs, strict=True)]
    print(comparison(rows, RETURN_LEVELS.get(runs[0].config.env, ())))
    print(path)
    return 0


def _animate_agreement(run: RunData, out: str, arguments: argparse.Namespace) -> None:
    """Write the animation and print its name."""
    from jaxbyz.report import plots
    from jaxbyz.report.agreement_rounds import trace_run

    config = run.config
    title = arguments.title or f"{config.agreement}, K = {config.agents}, f = {config.byzantine}"
    trace = trace_run(config, arguments.run_seed, arguments.iterations)
    with saying_what_is_replaced(out):
        print(plots.agreement_animation(trace, out, title=title))


def _fill_in_defaults(arguments: argparse.Namespace) -> None:
    """Report options that this kind of picture does not read, and set those that were not given."""
    for name, (kinds, default) in OPTIONS_OF_KINDS.items():
        value = getattr(arguments, name)
        if value is None:
            setattr(arguments, name, default)
        elif arguments.kind not in kinds:
            reads = " and ".join(f"kind={kind}" for kind in kinds)
            print_message(f"{name}={value} has no effect: kind={arguments.kind} does not read it, only {reads} does")
