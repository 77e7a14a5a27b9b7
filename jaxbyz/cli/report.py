"""`jaxbyz report`: one self-contained HTML page about run folders."""

from __future__ import annotations

import argparse

from jaxbyz.cli.common import add, add_run_folders, load_runs, print_message, saying_what_is_replaced


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders and the page."""
    add_run_folders(parser)
    add(parser, "--out", "page to write", "report.html", metavar="FILE")
    parser.add_argument("--title", default="jaxbyz report", help="title of the page")
    add(parser, "--width", "average curves over this many trajectories (default: a fiftieth of the run)", least=1)
    add(
        parser, "--animations", "animate the policy and the agreement of the first N runs; 0 for none", 4, least=0,
        metavar="N",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its name."""
    from jaxbyz.report.html_report import write_report

    runs, look = load_runs(arguments.folders), {name: getattr(arguments, name) for name in ("title", "width")}
    with saying_what_is_replaced(arguments.out):
        print(write_report(runs, arguments.out, **look, animations=arguments.animations, log=print_message))
    return 0
