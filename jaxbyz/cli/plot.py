"""`jaxbyz plot`: draw one or more run folders."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from jaxbyz.cli.common import add, add_run_folders, load_runs, saying_what_is_replaced

if TYPE_CHECKING:
    from jaxbyz.runs.run_folder import RunData

KINDS = {
    "curves": "a metric against trajectories",
    "heatmap": "final value of a metric by method and attack, or by two options",
    "option": "final value of a metric against an option, with intervals",
    "diameter": "largest distance between honest agents against iterations",
    "trust": "weight of each sender in the aggregate",
    "agreement": "animation of the agreement rounds of the first iterations (.gif)",
}
# option -> the kinds of pictures that read it, and its default
OPTIONS_OF_KINDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "metric": (("curves", "heatmap", "option"), "returns"),
    "x": (("heatmap", "option"), None),
    "y": (("heatmap",), None),
    "width": (("curves",), None),
    "statistic": (("curves",), "mean"),
    "facet": (("curves",), None),
    "range": (("heatmap",), None),
    "paper": (("curves", "heatmap", "option", "diameter", "trust"), None),
    "iterations": (("agreement",), 5),
    "run_seed": (("agreement",), 0),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders and the picture."""
    from jaxbyz.report.statistics import SEED_STATISTICS

    add_run_folders(parser)
    add(parser, "--kind", "; ".join(f"{name}: {line}" for name, line in KINDS.items()), "curves", choices=KINDS)
    add(
        parser,
        "--out",
        "picture to write, .png, .svg or .pdf (default: KIND.png; with --paper KIND.pdf)",
        metavar="FILE",
    )
    add(
        parser, "--paper", "a picture for a paper, 1 or 2 columns wide: no title, small letters, legend inside",
        type=int, metavar="COLUMNS",
    )  # fmt: skip
    add(
        parser, "--metric", "curves, heatmap and option: returns, worst_agent, diameter, ess, … (default "
        "returns)",
    )  # fmt: skip
    add(parser, "--width", "curves: average over this many trajectories (default: a fiftieth of the run)", least=1)
    add(parser, "--facet", "curves: one panel for each value of this option, like attack", metavar="OPTION")
    add(
        parser, "--x", "heatmap and option: the option of the horizontal axis (heatmap: default attack)",
        metavar="OPTION",
    )  # fmt: skip
    add(parser, "--y", "heatmap: the option of the vertical axis (default: methods)", metavar="OPTION")
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
    """Draw, and print the results and the name of the file."""
    from jaxbyz.errors import UsageError, check_ending
    from jaxbyz.report import plots
    from jaxbyz.report.runs import labels
    from jaxbyz.report.tables import RETURN_LEVELS, comparison

    _check_and_fill_in(arguments)
    runs, kind = load_runs(arguments.folders), arguments.kind
    ending = "gif" if kind == "agreement" else "png" if arguments.paper is None else "pdf"
    out = arguments.out or f"{kind}.{ending}"
    if kind in ("trust", "agreement") and len(runs) > 1:
        raise UsageError(f"kind={kind} shows one run: {len(runs)} were given")
    if kind == "agreement":
        check_ending(out, ".gif")
        _animate_agreement(runs[0], out, arguments)
        return 0
    picture = _drawn(runs, arguments)
    with saying_what_is_replaced(out):
        path = plots.save(picture, out)
    rows = [(name, run.metrics) for name, run in zip(labels(runs), runs, strict=True)]
    print(comparison(rows, RETURN_LEVELS.get(runs[0].config.env, ())))
    if arguments.paper is not None:
        print(f"caption: {picture.caption}")
    print(path)
    return 0


def _drawn(runs: list[RunData], arguments: argparse.Namespace) -> Any:
    """Return the picture as a matplotlib figure."""
    from jaxbyz.report import heatmaps, option_lines, plots

    common = {"title": arguments.title, "paper": arguments.paper}
    if arguments.kind == "curves":
        options = {name: getattr(arguments, name) for name in ("metric", "width", "statistic", "facet")}
        return plots.learning_curves(runs, **options, **common)
    if arguments.kind == "heatmap":
        axes = {"x": arguments.x or "attack", "y": arguments.y}
        return heatmaps.heatmap(runs, metric=arguments.metric, limits=arguments.range, **axes, **common)
    if arguments.kind == "option":
        return option_lines.final_against_option(runs, arguments.x, metric=arguments.metric, **common)
    if arguments.kind == "trust":
        return heatmaps.trust(runs[0], **common)
    return plots.diameters(runs, **common)


def _animate_agreement(run: RunData, out: str, arguments: argparse.Namespace) -> None:
    """Write the animation and print its name."""
    from jaxbyz.report.agreement_animation import agreement_animation
    from jaxbyz.report.agreement_rounds import trace_run

    config = run.config
    title = arguments.title or f"{config.agreement}, K = {config.agents}, f = {config.byzantine}"
    trace = trace_run(config, arguments.run_seed, arguments.iterations)
    with saying_what_is_replaced(out):
        print(agreement_animation(trace, out, title=title))


def _check_and_fill_in(arguments: argparse.Namespace) -> None:
    """Refuse options that this kind of picture does not read, and set those that were not given."""
    from jaxbyz.errors import UsageError

    for name, (kinds, default) in OPTIONS_OF_KINDS.items():
        value = getattr(arguments, name)
        if value is None:
            setattr(arguments, name, default)
        elif arguments.kind not in kinds:
            shown = f"{name.replace('_', '-')}={value}"
            raise UsageError(f"{shown}: kind={arguments.kind} does not read it; it is for kind={', '.join(kinds)}")
    if arguments.kind == "option" and arguments.x is None:
        raise UsageError("kind=option needs the option of the horizontal axis, for example --x eta")
