"""`jaxbyz benchmark`: run a suite of tasks, federations and attacks, score entries, and publish a leaderboard."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbyz.cli.common import (
    add_quiet_option,
    check_at_least,
    message_printer,
    print_message,
    saying_what_is_replaced,
    seed_number,
)
from jaxbyz.registry import import_options

if TYPE_CHECKING:
    from jaxbyz.benchmark.entries import Cell, Entry
    from jaxbyz.benchmark.suite import Suite

ACTIONS = {
    "list": "list suites, or the cells of a suite and which of them are finished",
    "run": "train the cells that are not finished",
    "verify": "run a random part of the results again and compare",
    "table": "print the leaderboard",
    "page": "write the leaderboard as one HTML page",
    "export": "write results for marl-eval (.json) or rliable (.npz)",
    "merge": "copy the results of several folders into one",
    "tune": "choose step sizes with the tuning budget of the suite",
}
FILTERS = ("task", "federation", "entry", "attack")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add one parser per action."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, line in ACTIONS.items():
        action = actions.add_parser(name, help=line, description=line, allow_abbrev=False)
        action.add_argument(
            "suite", metavar="SUITE", nargs="?" if name == "list" else None, help="v1, v1-lite, or a .toml file"
        )
        if name in ("list", "run", "tune"):
            action.add_argument("--entries", metavar="FILE", help=".toml file of entries (default: the package's)")
        _OPTIONS[name](action)


def _add_filters(parser: argparse.ArgumentParser, names: tuple[str, ...] = FILTERS) -> None:
    for name in names:
        parser.add_argument(f"--{name}", nargs="+", metavar="NAME", help=f"only this {name} (default: all)")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder of the results")


def _add_list(parser: argparse.ArgumentParser) -> None:
    _add_filters(parser)
    parser.add_argument("--out", metavar="DIR", help="folder of the results, to mark finished cells")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_filters(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes (default 1)")
    parser.add_argument("--tuned", metavar="DIR", help="use the step sizes that `benchmark tune` found, in its folder")
    parser.add_argument(
        "--together", action="store_true",
        help="train attacks that can share a program in one: fewer compilations, but no checkpoints",
    )  # fmt: skip
    parser.add_argument("--part", metavar="I/N", help="only the I-th of N parts of the cells, for several machines")
    parser.add_argument("--no-certify", action="store_true", help="do not certify the rules of the entries")
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="N",
        help="write a checkpoint every N iterations (default: only on SIGINT and SIGTERM)",
    )  # fmt: skip
    add_quiet_option(parser)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("--count", type=int, default=3, help="number of results to run again (default 3)")
    parser.add_argument("--seed", type=seed_number, default=0, help="seed of the random choice")


def _add_table(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    _add_filters(parser, ("task", "federation"))
    parser.add_argument("--json", action="store_true", help="print the whole leaderboard as JSON")
    parser.add_argument("--attacks", action="store_true", help="print one table per setting, with a column per attack")


def _add_page(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("--out", metavar="FILE", default="leaderboard.html", help="page (default leaderboard.html)")


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("--out", metavar="FILE", required=True, help=".json for marl-eval, .npz for rliable")


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", metavar="DIR", nargs="+", help="folders of results")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of all results")


def _add_tune(parser: argparse.ArgumentParser) -> None:
    _add_filters(parser, ("task", "entry"))
    parser.add_argument("--out", metavar="DIR", required=True, help="folder that keeps what was tried")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes (default 1)")


_OPTIONS = {
    "list": _add_list, "run": _add_run, "verify": _add_verify, "table": _add_table, "page": _add_page,
    "export": _add_export, "merge": _add_merge, "tune": _add_tune,
}  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do what the action names."""
    if getattr(arguments, "jobs", 1) > 1:  # processes that share a GPU must not reserve most of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    actions = {
        "list": _list, "run": _run, "verify": _verify, "table": _table, "page": _page, "export": _export,
        "merge": _merge, "tune": _tune,
    }  # fmt: skip
    return actions[arguments.action](arguments)


def _selected(arguments: argparse.Namespace, suite: Suite, entries: dict[str, Entry]) -> list[Cell]:
    """Return the cells that the filters leave. Filters on entries and attacks keep the references of the settings."""
    from jaxbyz.benchmark.entries import ALONE, MEAN, NO_ATTACK, ONE_AGENT, cells_of, check_tasks, select
    from jaxbyz.errors import UsageError

    check_tasks(suite, entries)
    tasks = select("task", arguments.task, list(suite.tasks))
    federations = select("federation", arguments.federation, list(suite.federations))
    names = select("entry", arguments.entry, [*entries, ALONE, MEAN])
    try:
        attacks = select("attack", arguments.attack, [NO_ATTACK, *suite.attacks])
    except UsageError as error:
        raise UsageError(f"{error}; a suite fixes its attacks, and a suite file of your own can name others") from error
    for task, federation in suite.settings:
        known = (NO_ATTACK, *suite.attacks_in(task, federation))
        left_out = [name for name in arguments.attack or () if name not in known]
        if left_out and task in tasks and federation in federations:
            print_message(f"task {task}, federation {federation}: run without {', '.join(left_out)}")
    cells = [
        cell
        for cell in cells_of(suite, entries)
        if cell.task in tasks and cell.federation in (*federations, ONE_AGENT)
        if cell.entry in (ALONE, MEAN) or (cell.entry in names and cell.attack in attacks)
    ]
    needed = {cell.task for cell in cells if cell.federation != ONE_AGENT}
    return [cell for cell in cells if cell.task in needed]


def _list(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.entries import load_entries
    from jaxbyz.benchmark.records import read_records
    from jaxbyz.benchmark.suite import load_suite, suite_names

    entries = load_entries(arguments.entries)
    if arguments.suite is None:
        for name in suite_names():
            suite = load_suite(name)
            print(f"{name:<10} {suite.hash}  {suite.summary}")
        print(f"\nentries: {', '.join(entries)}")
        return 0
    suite, out = load_suite(arguments.suite), arguments.out
    finished = read_records(out, suite) if out is not None and Path(out).exists() else {}
    for cell in _selected(arguments, suite, entries):
        print(f"{cell.name}{' (finished)' if cell.name in finished else ''}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.entries import load_entries, with_step_sizes
    from jaxbyz.benchmark.running import certify_rules, rules_to_certify, run_cells
    from jaxbyz.benchmark.suite import load_suite
    from jaxbyz.benchmark.tuning import load_step_sizes
    from jaxbyz.reproduction.subprocesses import run_in_processes
    from jaxbyz.runs.progress import make_progress
    from jaxbyz.runs.run import Interrupted

    check_at_least(arguments, jobs=1)
    suite, entries = load_suite(arguments.suite), load_entries(arguments.entries)
    if arguments.tuned is not None:
        entries = with_step_sizes(suite, entries, load_step_sizes(arguments.tuned, suite))
    cells = _part(arguments.part, _selected(arguments, suite, entries))

    log = message_printer(arguments)
    if arguments.jobs > 1:
        # All processes get the same cells; each takes the next one that nobody works on.
        words = _worker_arguments(arguments)
        failed = run_in_processes({f"process {i}": words for i in range(arguments.jobs)}, arguments.jobs, log)
    else:
        try:
            failed = run_cells(
                suite,
                entries,
                cells,
                arguments.out,
                together=arguments.together,
                checkpoint_every=arguments.checkpoint_every,
                reporter=lambda total: make_progress(total, quiet=True),
                log=log,
            )
        except Interrupted as stop:
            print_message(f"{stop.folder.parent.name} stopped at iteration {stop.done}; the same command continues")
            return 128 + stop.signal
    _print_failures(failed)
    if arguments.jobs == 1 and not arguments.no_certify:
        refused = certify_rules(suite, rules_to_certify(suite, entries, cells), arguments.out, log)
        _print_failures(refused)
        failed |= refused
    return int(bool(failed))


def _print_failures(failed: dict[str, str]) -> None:
    """Print every reason once, with the first name that it holds for and the number of others."""
    for reason in dict.fromkeys(failed.values()):
        names = [name for name, other in failed.items() if other == reason]
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print_message(f"{names[0]}{others} failed: {reason}")


def _part(text: str | None, cells: list[Cell]) -> list[Cell]:
    """Return every N-th cell, from the I-th on, for the text I/N."""
    from jaxbyz.errors import UsageError

    if text is None:
        return cells
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"part={text!r}: must be like 1/4, from 1/4 to 4/4")
    return cells[int(number) - 1 :: int(count)]


def _worker_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of one of several processes."""
    words = [*import_options(arguments.sources), "benchmark", "run", arguments.suite, "--out", arguments.out]
    words += _given(arguments, "entries", "tuned", "part", "checkpoint_every")
    for name in FILTERS:
        if getattr(arguments, name):
            words += [f"--{name}", *getattr(arguments, name)]
    flags = {"--no-certify": arguments.no_certify, "--together": arguments.together}
    return [*words, *(flag for flag, given in flags.items() if given)]


def _given(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return those of the named options that were given, for another process."""
    values = {name: getattr(arguments, name) for name in names}
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def _verify(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.suite import load_suite
    from jaxbyz.benchmark.verify import choose, verify

    check_at_least(arguments, count=1)
    suite = load_suite(arguments.suite)
    found = verify(suite, choose(arguments.folder, suite, arguments.count, arguments.seed), print_message)
    for one in found:
        numbers = f"largest difference {one.difference:.2g}, {one.standard_errors:.2g} standard errors"
        print(f"{one.verdict:<10} {one.name} ({numbers})")
    return int(any(one.verdict == "different" for one in found))


def _table(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.leaderboard import load_leaderboard
    from jaxbyz.benchmark.table import attack_tables, both_tables
    from jaxbyz.files import json_text

    board = load_leaderboard(arguments.suite, arguments.folder, arguments.task, arguments.federation)
    if arguments.attacks:
        print(attack_tables(board))
    else:
        print(json_text(board) if arguments.json else both_tables(board))
    if incomplete := [entry["name"] for entry in board["entries"] if entry["overall"] is None]:
        print_message(
            f"{len(incomplete)} of {len(board['entries'])} entries lack results and have no overall score; --task and "
            "--federation choose the settings that count"
        )
    return 0


def _page(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.html_page import write_page
    from jaxbyz.benchmark.leaderboard import load_leaderboard

    board = load_leaderboard(arguments.suite, arguments.folder)
    with saying_what_is_replaced(arguments.out):
        print(write_page(board, arguments.out))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    import numpy as np

    from jaxbyz.benchmark.export import marl_eval, rliable
    from jaxbyz.benchmark.results import load_results
    from jaxbyz.benchmark.suite import load_suite
    from jaxbyz.errors import UsageError
    from jaxbyz.files import json_text, write_output, write_output_text

    out, suite = Path(arguments.out), load_suite(arguments.suite)
    if out.suffix not in (".json", ".npz"):
        raise UsageError(f"out={out}: the name must end in .json for marl-eval or .npz for rliable")
    results = load_results(arguments.folder, suite)
    with saying_what_is_replaced(out):
        if out.suffix == ".json":
            write_output_text(out, json_text(marl_eval(suite, results)))
        else:
            arrays = rliable(suite, results)
            write_output(out, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    print(out)
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.records import merge
    from jaxbyz.benchmark.suite import load_suite

    written = merge(arguments.folders, arguments.out, load_suite(arguments.suite), print_message)
    print(f"{arguments.out}: {written} record(s) added")
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    from jaxbyz.benchmark.entries import ALONE, MEAN, check_tasks, load_entries, select
    from jaxbyz.benchmark.suite import load_suite
    from jaxbyz.benchmark.tuning import tune_if_missing
    from jaxbyz.errors import UsageError
    from jaxbyz.reproduction.subprocesses import run_in_processes
    from jaxbyz.runs.run_folder import make_folder

    check_at_least(arguments, jobs=1)
    suite, entries, out = load_suite(arguments.suite), load_entries(arguments.entries), make_folder(arguments.out)
    check_tasks(suite, entries)
    tasks = select("task", arguments.task, list(dict.fromkeys(task for task, _ in suite.settings)))
    pairs = [(task, name) for task in tasks for name in select("entry", arguments.entry, [ALONE, MEAN, *entries])]
    failed = {}
    if arguments.jobs > 1:
        commands: dict[str, Sequence[str]] = {
            f"{task}.{name}": [*import_options(arguments.sources), "benchmark", "tune", arguments.suite,
                               "--out", arguments.out, "--task", task, "--entry", name, *_given(arguments, "entries")]
            for task, name in pairs
        }  # fmt: skip
        failed = run_in_processes(commands, arguments.jobs, print_message)
    for task, name in pairs:
        if f"{task}.{name}" not in failed:
            try:
                print(f"{task:<12} {name:<28} eta = {tune_if_missing(suite, entries, name, task, out)}", flush=True)
            except UsageError as error:
                failed[f"{task}.{name}"] = str(error)
    _print_failures(failed)
    return int(bool(failed))
