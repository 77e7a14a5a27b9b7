"""The actions of `jaxbyz benchmark`, apart from their options because they import JAX."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from jaxbyz.benchmark.checks import load_results
from jaxbyz.benchmark.entries import (
    NO_ATTACK,
    NOT_ENTRIES,
    ONE_AGENT,
    BenchmarkEntry,
    Cell,
    cells_of,
    check_tasks,
    load_entries,
    select,
    with_step_sizes,
)
from jaxbyz.benchmark.export import marl_eval, rliable
from jaxbyz.benchmark.html_page import write_page
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.benchmark.merging import merge
from jaxbyz.benchmark.records import read_records
from jaxbyz.benchmark.running import certify_rules, rules_to_certify, run_cells, tune_and_run_cells
from jaxbyz.benchmark.suite import Suite, load_suite, suite_names
from jaxbyz.benchmark.table import attack_tables, both_tables
from jaxbyz.benchmark.tuning import load_step_sizes, tune_if_missing
from jaxbyz.benchmark.verify import choose, verify
from jaxbyz.cli.common import message_printer, print_message, saying_what_is_replaced
from jaxbyz.errors import UsageError
from jaxbyz.files import json_text, write_output, write_output_text
from jaxbyz.registry import import_options
from jaxbyz.reproduction.subprocesses import run_in_processes
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.progress import make_progress
from jaxbyz.runs.run_folder import make_folder

# Options that processes with a part of the work receive.
SHARED_OPTIONS = (
    "out", "entries", "tuned", "tune", "part", "checkpoint_every", "together", "no_certify",
    "task", "federation", "entry", "attack",
)  # fmt: skip


def list_cells(arguments: argparse.Namespace) -> int:
    """List the suites, or the cells of a suite."""
    if arguments.suite is None:
        for suite in map(load_suite, suite_names()):
            names = ", ".join(load_entries(arguments.entries, suite.entries))
            print(f"{suite.name:<10} {suite.hash}  {suite.summary}\n    entries: {names}")
        return 0
    suite, out = load_suite(arguments.suite), arguments.out
    entries = load_entries(arguments.entries, suite.entries)
    finished = read_records(out, suite) if out is not None and Path(out).exists() else {}
    for cell in _selected(arguments, suite, entries):
        print(f"{cell.name}{' (finished)' if cell.name in finished else ''}")
    return 0


def run_suite(arguments: argparse.Namespace) -> int:
    """Train what is not finished and certify rules, here or in several processes."""
    suite = load_suite(arguments.suite)
    entries = load_entries(arguments.entries, suite.entries)
    if arguments.tune and arguments.tuned is None:
        raise UsageError("--tune needs --tuned DIR, the folder of the step sizes")
    if arguments.tuned is not None and not arguments.tune:
        entries = with_step_sizes(suite, entries, load_step_sizes(arguments.tuned, suite))
    cells = _part(arguments.part, _selected(arguments, suite, entries))
    log = message_printer(arguments)
    if arguments.jobs > 1:  # every process gets all cells, and takes the next one that nobody works on
        words = _words_of(arguments)
        return _exit_code(run_in_processes({f"process {i}": words for i in range(arguments.jobs)}, arguments.jobs, log))
    try:
        train = partial(tune_and_run_cells, tuned=arguments.tuned) if arguments.tune else run_cells
        failed = train(
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
    rules = [] if arguments.no_certify else rules_to_certify(suite, entries, cells)
    return _exit_code(failed | certify_rules(suite, rules, arguments.out, log))


def verify_results(arguments: argparse.Namespace) -> int:
    """Run some results again and compare."""
    suite = load_suite(arguments.suite)
    found = verify(suite, choose(arguments.results, suite, arguments.count, arguments.seed), print_message)
    for one in found:
        numbers = f"largest difference {one.difference:.2g}, {one.standard_errors:.2g} standard errors"
        print(f"{one.verdict:<10} {one.name} ({numbers})")
    return int(any(one.verdict == "different" for one in found))


def print_table(arguments: argparse.Namespace) -> int:
    """Print the leaderboard."""
    board = load_leaderboard(arguments.suite, arguments.results, arguments.task, arguments.federation)
    if arguments.attacks:
        print(attack_tables(board))
    else:
        print(json_text(board) if arguments.json else both_tables(board))
    if incomplete := sum(entry["overall"] is None for entry in board["entries"]):
        print_message(
            f"{incomplete} of {len(board['entries'])} entries lack results and have no overall score; --task and "
            "--federation choose the settings that count"
        )
    return 0


def draw_page(arguments: argparse.Namespace) -> int:
    """Write the page of the leaderboard."""
    board = load_leaderboard(arguments.suite, arguments.results)
    with saying_what_is_replaced(arguments.out):
        print(write_page(board, arguments.out))
    return 0


def export_results(arguments: argparse.Namespace) -> int:
    """Write the results in the format of another tool."""
    out, suite = Path(arguments.out), load_suite(arguments.suite)
    if out.suffix not in (".json", ".npz"):
        raise UsageError(f"out={out}: the name must end in .json for marl-eval or .npz for rliable")
    results = load_results(arguments.results, suite)
    with saying_what_is_replaced(out):
        if out.suffix == ".json":
            write_output_text(out, json_text(marl_eval(suite, results)))
        else:
            arrays = rliable(suite, results)
            write_output(out, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    print(out)
    return 0


def merge_results(arguments: argparse.Namespace) -> int:
    """Add results to a folder or a file."""
    added = merge(arguments.results, arguments.out, load_suite(arguments.suite), print_message)
    print(f"{arguments.out}: {added} record(s) added")
    return 0


def tune_entries(arguments: argparse.Namespace) -> int:
    """Choose step sizes, here or in several processes."""
    suite, out = load_suite(arguments.suite), make_folder(arguments.out)
    entries = load_entries(arguments.entries, suite.entries)
    check_tasks(suite, entries)
    tasks = select("task", arguments.task, list(dict.fromkeys(task for task, _ in suite.settings)))
    names = select("entry", arguments.entry, [*suite.references, *entries])
    pairs = {f"{task}.{name}": (task, name) for task in tasks for name in names}
    failed: dict[str, str] = {}
    if arguments.jobs > 1:
        commands = {pair: _words_of(arguments, task=[t], entry=[n]) for pair, (t, n) in pairs.items()}
        failed = run_in_processes(commands, arguments.jobs, print_message)
    for pair, (task, name) in pairs.items():
        if pair not in failed:
            try:
                print(f"{task:<12} {name:<28} eta = {tune_if_missing(suite, entries, name, task, out)}", flush=True)
            except UsageError as error:
                failed[pair] = str(error)
    return _exit_code(failed)


ACTIONS = {
    "list": list_cells, "run": run_suite, "verify": verify_results, "table": print_table, "page": draw_page,
    "export": export_results, "merge": merge_results, "tune": tune_entries,
}  # fmt: skip


def _selected(arguments: argparse.Namespace, suite: Suite, entries: dict[str, BenchmarkEntry]) -> list[Cell]:
    """Return the cells that the filters leave. Filters on entries and attacks keep the references of the settings."""
    check_tasks(suite, entries)
    tasks = select("task", arguments.task, list(suite.tasks))
    federations = select("federation", arguments.federation, list(suite.federations))
    names = select("entry", arguments.entry, [*entries, *suite.references])
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
        if cell.entry in NOT_ENTRIES or (cell.entry in names and cell.attack in attacks)
    ]
    needed = {cell.task for cell in cells if cell.federation != ONE_AGENT}
    return [cell for cell in cells if cell.task in needed]


def _part(text: str | None, cells: list[Cell]) -> list[Cell]:
    """Return every N-th cell, from the I-th on, for the text I/N."""
    if text is None:
        return cells
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"part={text!r}: must be like 1/4, from 1/4 to 4/4")
    return cells[int(number) - 1 :: int(count)]


def _words_of(arguments: argparse.Namespace, **changes: Sequence[str]) -> list[str]:
    """Return the words of this command with these changes, for one of several processes."""
    words = [*import_options(arguments.sources), "benchmark", arguments.action, arguments.suite]
    for name, value in {**vars(arguments), **changes}.items():
        if name in SHARED_OPTIONS and value is not None and value is not False:
            values = value if isinstance(value, list) else [] if value is True else [str(value)]
            words += [f"--{name.replace('_', '-')}", *values]
    return words


def _exit_code(failed: dict[str, str]) -> int:
    """Return 1 if something failed, after printing every reason once, with the names that it holds for."""
    for reason in dict.fromkeys(failed.values()):
        names = [name for name, other in failed.items() if other == reason]
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print_message(f"{names[0]}{others} failed: {reason}")
    return int(bool(failed))
