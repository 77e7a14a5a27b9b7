"""`jaxbyz benchmark`: run a suite of tasks, federations and attacks, score entries, and publish a leaderboard."""

from __future__ import annotations

import argparse
import os

from jaxbyz.cli.common import add, add_shared, seed_number

FILTERS = ("task", "federation", "entry", "attack")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add one parser per action."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, line: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=line, description=line, allow_abbrev=False)
        optional = "?" if name == "list" else None
        added.add_argument("suite", metavar="SUITE", nargs=optional, help="v2-lite, v2, v1, v1-lite, or a .toml file")
        return added

    one = action("list", "list suites, or the cells of a suite and which of them are finished")
    _add_choice(one, *FILTERS)
    one.add_argument("--out", metavar="RESULTS", help="results, to mark finished cells")

    one = action("run", "train the cells that are not finished")
    _add_choice(one, *FILTERS)
    one.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    add(one, "--jobs", "number of processes", 1, least=1, metavar="N")
    one.add_argument("--tuned", metavar="RESULTS", help="use the step sizes that `benchmark tune` found")
    one.add_argument(
        "--tune", action="store_true",
        help="tune entries first where the folder of --tuned lacks them, in the same processes",
    )  # fmt: skip
    one.add_argument(
        "--together", action="store_true",
        help="train attacks that can share a program in one: fewer compilations, but no checkpoints",
    )  # fmt: skip
    one.add_argument("--part", metavar="I/N", help="only the I-th of N parts of the cells, for several machines")
    one.add_argument("--no-certify", action="store_true", help="do not certify the rules of the entries")
    add_shared(one, "--checkpoint-every", "--quiet")

    one = action("verify", "run a random part of the results again and compare")
    _add_results(one)
    add(one, "--count", "number of results to run again", 3, least=1)
    one.add_argument("--seed", type=seed_number, default=0, help="seed of the random choice")

    one = action("table", "print the leaderboard")
    _add_results(one)
    _add_filters(one, "task", "federation")
    one.add_argument("--json", action="store_true", help="print the whole leaderboard as JSON")
    one.add_argument("--attacks", action="store_true", help="print one table per setting, with a column per attack")

    one = action("page", "write the leaderboard as one HTML page")
    _add_results(one)
    one.add_argument("--out", metavar="FILE", default="leaderboard.html", help="page (default leaderboard.html)")

    one = action("export", "write results for marl-eval (.json) or rliable (.npz)")
    _add_results(one)
    one.add_argument("--out", metavar="FILE", required=True, help=".json for marl-eval, .npz for rliable")

    one = action("merge", "add results to a folder, or to one compressed file (.jsonl.gz)")
    one.add_argument("results", metavar="RESULTS", nargs="+", help="folders of results, or .jsonl.gz files")
    one.add_argument("--out", metavar="RESULTS", required=True, help="folder or .jsonl.gz file of all results")

    one = action("tune", "choose step sizes with the tuning budget of the suite")
    _add_choice(one, "task", "entry")
    one.add_argument("--out", metavar="DIR", required=True, help="folder that keeps what was tried")
    add(one, "--jobs", "number of processes", 1, least=1, metavar="N")


def _add_choice(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the entries and filters that choose what is run."""
    parser.add_argument("--entries", metavar="FILE", help=".toml file of entries (default: the package's)")
    _add_filters(parser, *names)


def _add_filters(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(f"--{name}", nargs="+", metavar="NAME", help=f"only this {name} (default: all)")


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", help="folder of results, or one .jsonl.gz file")


def run(arguments: argparse.Namespace) -> int:
    """Do what the action names."""
    if getattr(arguments, "jobs", 1) > 1:  # processes that share a GPU must not reserve most of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jaxbyz.cli.benchmark_actions import ACTIONS  # imports JAX

    return ACTIONS[arguments.action](arguments)
