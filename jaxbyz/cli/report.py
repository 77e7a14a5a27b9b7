"""`jaxbyz report`: one self-contained HTML page about run folders."""

from __future__ import annotations

import argparse

from jaxbyz.cli.common import check_at_least, load_runs, print_message, saying_what_is_replaced


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders and the page."""
    parser.add_argument("folders", metavar="DIR", nargs="+", help="run folders, or folders that contain run folders")
    parser.add_argument("--out", metavar="FILE", default="report.html", help="page to write (default report.html)")
    parser.add_argument("--title", default="jaxbyz report", help="title of the page")
    parser.add_argument(
        "--width", type=int, help="average curves over this many trajectories (default: a fiftieth of the run)"
    )
    parser.add_argument(
        "--animations", type=int, default=4, metavar="N",
        help="animate the policy and the agreement of the first N runs; 0 for none (default 4)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its name."""
    from jaxbyz.report.html_report import write_report

    check_at_least(arguments, width=1, animations=0)
    with saying_what_is_replaced(arguments.out):
        page = write_report(
            load_runs(arguments.folders),
            arguments.out,
            title=arguments.title,
            width=arguments.width,
            animations=arguments.animations,
            log=print_message,
        )
    print(page)
    return 0
