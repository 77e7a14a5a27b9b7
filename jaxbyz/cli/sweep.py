"""`jaxbyz sweep`: train every member of a grid, skipping what is finished and resuming what is half done."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxbyz.experiments.sweep import Outcome


def add_options(parser: argparse.ArgumentParser) -> None:
    """The file, the folder, and how to report."""
    parser.add_argument("file", metavar="FILE", help="TOML file with [fixed] options and a [grid] of lists")
    parser.add_argument("--out", metavar="DIR", help="folder of the members' folders (default: `out` in the file)")
    parser.add_argument("--checkpoint-every", type=int, metavar="N", help="as in `jaxbyz train` (default: the file's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep; 0 when every member is finished or being worked on, 1 when some failed or went non-finite."""
    from jaxbyz.cli.progress import make_progress
    from jaxbyz.cli.train import say
    from jaxbyz.errors import UsageError
    from jaxbyz.experiments.run import Interrupted
    from jaxbyz.experiments.sweep import load_sweep, run_sweep

    sweep = load_sweep(arguments.file)
    out = arguments.out or sweep.out
    if out is None:
        raise UsageError(f'{arguments.file}: where to? give --out DIR, or out = "DIR" in the file')
    every = sweep.checkpoint_every if arguments.checkpoint_every is None else arguments.checkpoint_every
    if every is not None and every < 1:
        raise UsageError(f"checkpoint_every={every}: must be at least 1")
    try:
        outcomes = run_sweep(
            sweep, out, checkpoint_every=every, reporter=lambda total: make_progress(total, arguments.quiet), say=say
        )
    except Interrupted as stop:
        say(f"{stop.folder} stopped at iteration {stop.done}; the same `jaxbyz sweep` goes on")
        return 128 + stop.signal
    rows = [row(outcome) for outcome in outcomes]
    print(json.dumps({"out": out, "members": rows})) if arguments.json else print_table(rows)
    return int(any(outcome.status in ("failed", "non-finite") for outcome in outcomes))


def row(outcome: Outcome) -> dict[str, Any]:
    """A member in plain values."""
    from jaxbyz.report.statistics import final_returns

    returns = None if outcome.done is None else [float(value) for value in final_returns(outcome.done.metrics)]
    return {"name": outcome.name, "status": outcome.status, "note": outcome.note, "return": returns}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Members, how they ended and what they reached; then why, where something went wrong."""
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
