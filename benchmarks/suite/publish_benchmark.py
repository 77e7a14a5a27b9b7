"""Publish results of the benchmark: add them to the file of the suite, and write its page and its tables.

    python benchmarks/suite/publish_benchmark.py v1-lite runs/lite --tuned runs/lite-tuned

Results are added to benchmarks/results/benchmark/SUITE.jsonl.gz, and what `tune` tried to
benchmarks/results/tuning/SUITE.jsonl.gz; results that are there are never replaced. The page is
docs/leaderboard-SUITE.html. The tables replace what is between the comments `<!-- leaderboard SUITE -->` and
`<!-- end -->` in the pages that have them; entries that lack results are left out. Without folders, the page and the
tables are written again.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from jaxbyz.benchmark.html_page import write_page
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.benchmark.merging import merge
from jaxbyz.benchmark.suite import load_suite
from jaxbyz.benchmark.table import both_tables, counted_settings, interval, mean_unattacked, number

ROOT = Path(__file__).parents[2]


def published(kind: str, suite: str) -> Path:
    """Return the file of a suite: its results (`benchmark`) or what `tune` tried (`tuning`)."""
    return ROOT / "benchmarks" / "results" / kind / f"{suite}.jsonl.gz"


def headline(board: dict[str, Any], most: int = 6) -> str:
    """Return a short table of the best entries and the naive one."""
    names = [entry["name"] for entry in board["entries"]]
    shown = [*names[:most], *(["naive"] if "naive" in names[most:] else [])]
    lines = ["| entry | score under the worst attack | without attack |", "| --- | --: | --: |"]
    for entry in board["entries"]:
        if entry["name"] in shown:
            unattacked = number(mean_unattacked(counted_settings(board, entry)))
            lines.append(f"| {entry['name']} | {interval(entry['overall'])} | {unattacked} |")
    return "\n".join(lines)


def blocks(board: dict[str, Any]) -> dict[str, str]:
    """Return the tables by the file that shows them."""
    tables = dict.fromkeys(("docs/benchmark.md", "docs/measurements/benchmark_v1.md"), both_tables(board))
    return {**tables, "README.md": headline(board)}


def replace_block(path: Path, suite: str, text: str) -> None:
    """Replace what is between the comments of a suite; leave a file without them as it is."""
    pattern = re.compile(rf"(<!-- leaderboard {re.escape(suite)} -->\n).*?(<!-- end -->)", re.DOTALL)
    content = path.read_text()
    path.write_text(pattern.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="name of the suite")
    parser.add_argument("results", nargs="*", help="folders or .jsonl.gz files of new results")
    parser.add_argument("--tuned", nargs="+", default=[], metavar="DIR", help="folders of `jaxbyz benchmark tune`")
    arguments = parser.parse_args()
    suite = load_suite(arguments.suite)
    for kind, sources in (("benchmark", arguments.results), ("tuning", arguments.tuned)):
        if sources:
            added = merge(sources, published(kind, suite.name), suite, print)
            print(f"{published(kind, suite.name)}: {added} record(s) added")
    board = load_leaderboard(arguments.suite, published("benchmark", suite.name))
    board["entries"] = [entry for entry in board["entries"] if entry["overall"] is not None]
    print(write_page(board, ROOT / "docs" / f"leaderboard-{suite.name}.html"))
    for name, text in blocks(board).items():
        replace_block(ROOT / name, suite.name, text)


if __name__ == "__main__":
    main()
