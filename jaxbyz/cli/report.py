"""`jaxbyz report`: one self-contained HTML page about run folders."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Folders, the page, and how much to animate."""
    parser.add_argument("folders", metavar="DIR", nargs="+", help="run folders, or folders of them")
    parser.add_argument("--out", metavar="FILE", default="report.html", help="page to write (default report.html)")
    parser.add_argument("--title", default="jaxbyz report", help="title of the page")
    parser.add_argument("--width", type=int, default=100, help="trajectories a point averages over (default 100)")
    parser.add_argument(
        "--animations", type=int, default=4, metavar="N",
        help="animate the policy and the agreement of the first N runs; 0 for none (default 4)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the page and say where."""
    from jaxbyz.errors import UsageError
    from jaxbyz.report.html_report import write_report
    from jaxbyz.report.runs import load_runs

    for name, least in (("width", 1), ("animations", 0)):
        if getattr(arguments, name) < least:
            raise UsageError(f"{name}={getattr(arguments, name)}: must be at least {least}")
    path = write_report(
        load_runs(arguments.folders),
        arguments.out,
        title=arguments.title,
        width=arguments.width,
        animations=arguments.animations,
    )
    print(path)
    return 0
