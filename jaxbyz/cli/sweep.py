"""`jaxbyz sweep`: train all members of a grid; skip those that are finished and resume those that are not."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from jaxbyz.cli.common import add, add_shared, print_message

if TYPE_CHECKING:
    from jaxbyz.runs.sweep import MemberResult

FAILURES = ("failed", "non-finite")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the file, the folder, and how to report."""
    add(parser, "file", "TOML file with [fixed] options and a [grid] of lists", metavar="FILE")
    add(parser, "--out", "folder of the members' folders (default: `out` in the file)", metavar="DIR")
    checkpoints = "write a checkpoint every N iterations (default: `checkpoint_every` in the file)"
    add(parser, "--checkpoint-every", checkpoints, type=int, metavar="N")
    side_by_side = "members that may be trained side by side in one program (default: `at_once` in the file, or 8)"
    add(parser, "--at-once", side_by_side, type=int, metavar="N")
    add_shared(parser, "--deterministic", "--json", "--quiet")


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep; the exit code is 1 if a member failed or became non-finite."""
    from jaxbyz.errors import UsageError
    from jaxbyz.files import json_text
    from jaxbyz.runs.loop import Interrupted
    from jaxbyz.runs.progress import make_progress
    from jaxbyz.runs.sweep import load_sweep, run_sweep

    sweep = load_sweep(arguments.file)
    out = arguments.out or sweep.out
    if out is None:
        raise UsageError(f'{arguments.file}: names no folder; give --out DIR, or out = "DIR" in the file')
    try:
        members = run_sweep(
            sweep,
            out,
            checkpoint_every=arguments.checkpoint_every,
            at_once=arguments.at_once,
            reporter=lambda total, left: make_progress(total, arguments.quiet, left),
            log=print_message,
            quiet=arguments.quiet,
        )
    except Interrupted as stop:
        print_message(f"{stop.folder} stopped at iteration {stop.done}; the same `jaxbyz sweep` command continues")
        return 128 + stop.signal
    rows = [table_row(member) for member in members]
    if arguments.json:
        print(json_text({"out": out, "members": rows}))
    elif not arguments.quiet:
        print_table(rows)
    for row in rows if arguments.quiet else ():
        if row["status"] in FAILURES:
            print_message(f"{row['name']}: {row['status']}{f' ({note})' if (note := row['note']) else ''}")
    return int(any(member.status in FAILURES for member in members))


def table_row(member: MemberResult) -> dict[str, Any]:
    """Return a member as JSON values."""
    from jaxbyz.report.statistics import final_returns

    returns = None if member.experiment is None else final_returns(member.experiment.metrics).tolist()
    return {"name": member.name, "status": member.status, "note": member.note, "return": returns}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a table of all members, then the reasons of failures, then a summary."""
    from rich.console import Console
    from rich.table import Table

    table = Table("member", "status", "honest return", "worst seed")
    colours = {"finished": "green", "elsewhere": "yellow"}
    for row in rows:
        returns = row["return"]
        mean, worst = ("", "") if returns is None else (f"{sum(returns) / len(returns):.1f}", f"{min(returns):.1f}")
        colour = colours.get(row["status"], "red")
        table.add_row(row["name"], f"[{colour}]{row['status']}[/]", mean, worst)
    Console().print(table)
    for row in filter(lambda row: row["note"], rows):
        print(f"{row['name']}: {row['note']}")
    counts = Counter(row["status"] for row in rows)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
