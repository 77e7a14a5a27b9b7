"""`jaxbyz reproduce`: train and draw the figures of the paper and the protocols of the literature."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbyz.cli.common import add, add_shared, message_printer, seed_number
from jaxbyz.configuration.protocol_presets import PROTOCOL_TASKS
from jaxbyz.reproduction.figures import FIGURES, SETTINGS

if TYPE_CHECKING:
    from jaxbyz.configuration.config import Config
    from jaxbyz.reproduction.training_results import TrainingResult

PAPER_TRAJECTORIES = 8000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the figures, the size of the trainings, and what to do."""
    protocols = ", ".join(PROTOCOL_TASKS)
    add(
        parser, "figure", f"all, or one of {', '.join(FIGURES)}; or a protocol of the literature: {protocols}",
        metavar="FIGURE",
    )  # fmt: skip
    add(parser, "--setting", "presets to use for the figures of the paper (default steady)", choices=tuple(SETTINGS))
    add(parser, "--seeds", "seeds per curve", 10)
    add(parser, "--seed", "first seed; results with other seeds are combined", 0, type=seed_number)
    trajectories = f"trajectories per agent (default {PAPER_TRAJECTORIES}, or those of the protocol)"
    add(parser, "--trajectories", trajectories, type=int)
    add(parser, "--out", "folder for the results", "runs/reproduction", metavar="DIR")
    add(parser, "--only", "only trainings whose name is or contains one of these", nargs="+", metavar="TEXT")
    add(parser, "--list", "list the trainings and stop", False)
    add(parser, "--jobs", "number of trainings at a time, one process each", 1, least=1, metavar="N")
    add(
        parser, "--together", "train attacks that can share a program in one: fewer compilations and a better filled "
        "GPU, no progress", False,
    )  # fmt: skip
    add(parser, "--draw", "draw finished trainings only, train nothing", False)
    add(parser, "--no-draw", "train only", False)
    add(parser, "--no-spread", "draw means without standard deviations; needed for a single seed", False)
    add_shared(parser, "--quiet")


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing, draw the figures and write the table; the exit code is 1 if a training failed."""
    if arguments.jobs > 1:  # processes that share a GPU must not reserve most of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jaxbyz.errors import UsageError, check_choice
    from jaxbyz.reproduction.subprocesses import run_in_processes
    from jaxbyz.reproduction.training_results import (
        batches_of_trainings,
        finished,
        load_results,
        row_name,
        train_if_missing,
    )
    from jaxbyz.runs.progress import make_progress

    if arguments.seeds < 2 and not arguments.no_spread and not arguments.list:
        raise UsageError(f"seeds={arguments.seeds}: standard deviations need at least 2 seeds (or --no-spread)")
    check_choice("figure", arguments.figure, ("all", *FIGURES, *PROTOCOL_TASKS))
    protocol = arguments.figure in PROTOCOL_TASKS
    if protocol and arguments.setting is not None:
        raise UsageError(f"setting={arguments.setting}: {arguments.figure} has its own; leave it out")
    needed = _protocol_trainings(arguments) if protocol else _figure_trainings(arguments)
    trainings = {name: config for name, config in needed.items() if is_selected(name, needed, arguments.only)}
    table = Path(arguments.out) / f"{arguments.figure if protocol else _setting(arguments)}.jsonl.gz"
    if arguments.list:
        rows = finished(table)
        for name, config in trainings.items():
            print(f"{name}{' (finished)' if row_name(name, config) in rows else ''}")
        return 0
    if arguments.draw and arguments.no_draw:
        raise UsageError("--draw and --no-draw exclude each other")
    failed, batches, log = {}, batches_of_trainings(trainings, arguments.together), message_printer(arguments)
    if not arguments.draw and arguments.jobs > 1:
        commands = {" + ".join(batch): _arguments_for(list(batch), arguments) for batch in batches}
        failed = run_in_processes(commands, arguments.jobs, log)
    elif not arguments.draw:
        for number, batch in enumerate(batches, 1):
            log(f"[{number}/{len(batches)}] {' + '.join(batch)}")
            trajectories = next(iter(batch.values())).trajectories
            train_if_missing(table, batch, make_progress(trajectories, arguments.quiet or len(batch) > 1))
    for name, reason in failed.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
    if arguments.no_draw:
        return int(bool(failed))
    results = load_results(table)
    if not results:
        raise UsageError(f"{table}: no results here; run `jaxbyz reproduce` without --draw first")
    written = (_draw_protocol if protocol else _draw_figures)(arguments, results)
    if not arguments.quiet:
        print("\n".join(map(str, written)))
    return int(bool(failed))


def _setting(arguments: argparse.Namespace) -> str:
    """Return the setting of the figures of the paper."""
    return arguments.setting or "steady"


def _figure_trainings(arguments: argparse.Namespace) -> dict[str, Config]:
    """Return the trainings behind the figures of the paper."""
    from jaxbyz.reproduction.figures import needed_trainings, select_figures
    from jaxbyz.reproduction.training_results import training_config

    trajectories = PAPER_TRAJECTORIES if arguments.trajectories is None else arguments.trajectories
    return {
        name: training_config(_setting(arguments), environment, curve, arguments.seeds, arguments.seed, trajectories)
        for name, (environment, curve) in needed_trainings(select_figures(arguments.figure)).items()
    }


def _protocol_trainings(arguments: argparse.Namespace) -> dict[str, Config]:
    """Return the trainings of a protocol of the literature."""
    from jaxbyz.reproduction.protocols import protocol_configs

    return protocol_configs(arguments.figure, arguments.seeds, arguments.seed, arguments.trajectories)


def _draw_figures(arguments: argparse.Namespace, results: dict[str, TrainingResult]) -> list[Path]:
    """Draw the figures of the paper and write the table of claims and curves; return what was written."""
    from jaxbyz.files import write_output_text
    from jaxbyz.report.plots import save
    from jaxbyz.reproduction.comparison import comparison
    from jaxbyz.reproduction.drawing import draw_figure
    from jaxbyz.reproduction.figures import select_figures

    figures, out, setting = select_figures(arguments.figure), Path(arguments.out), _setting(arguments)
    drawings = {name: draw_figure(name, results, not arguments.no_spread, setting) for name in figures}
    written = [
        save(drawing, out / f"{name}-{setting}.png") for name, drawing in drawings.items() if drawing is not None
    ]
    table = out / f"table-{setting}.md"
    write_output_text(table, comparison(figures, results, setting))
    return [*written, table]


def _draw_protocol(arguments: argparse.Namespace, results: dict[str, TrainingResult]) -> list[Path]:
    """Draw the figure of a protocol and write its table; return what was written."""
    from jaxbyz.files import write_output_text
    from jaxbyz.report.plots import save
    from jaxbyz.reproduction.protocols import draw_protocol, protocol_table

    name, out = arguments.figure, Path(arguments.out)
    picture = save(draw_protocol(name, results, not arguments.no_spread), out / f"{name}.png")
    table = out / f"{name}.md"
    write_output_text(table, protocol_table(name, results))
    return [picture, table]


def _arguments_for(names: list[str], arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of a process that runs one training, or several together."""
    values = {option: getattr(arguments, option) for option in ("setting", "seeds", "seed", "trajectories", "out")}
    options = [f"--{option}={value}" for option, value in values.items() if value is not None]
    options += [f"--{flag}" for flag in ("no-spread", "together") if getattr(arguments, flag.replace("-", "_"))]
    return ["reproduce", arguments.figure, "--only", *names, "--no-draw", "--quiet", *options]


def is_selected(name: str, known: Container[str], only: list[str] | None) -> bool:
    """Return whether a training is selected; a text that is a full name selects only that training."""
    return not only or any(text == name if text in known else text in name for text in only)
