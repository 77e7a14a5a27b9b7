"""`jaxbyz compare`: a table of methods with intervals and differences from a baseline, for the terminal and papers."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxbyz.cli.common import add, add_run_folders, load_runs, saying_what_is_replaced

FORMATS = {".md": "markdown", ".csv": "csv", ".tex": "latex"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders, the baseline and the files."""
    add_run_folders(parser)
    add(
        parser, "--baseline", "method that others are compared with: a run folder, or a name in the table (default: "
        "that of the first run)", metavar="DIR",
    )  # fmt: skip
    parser.add_argument(
        "--out", action="append", default=[], metavar="FILE",
        help="also write the table to this file, .md, .csv or .tex; may be repeated",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Compare, print the table as Markdown, and write the files."""
    from jaxbyz.errors import check_ending
    from jaxbyz.files import write_output_text
    from jaxbyz.report.compare import compare

    for out in arguments.out:
        check_ending(out, *FORMATS)
    found = compare(load_runs(arguments.folders), baseline=arguments.baseline)
    print(found)
    for out in arguments.out:
        with saying_what_is_replaced(out):
            write_output_text(Path(out), getattr(found, FORMATS[Path(out).suffix.lower()])().rstrip("\n") + "\n")
    return 0
