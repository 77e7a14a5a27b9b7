"""`jaxbyz reproduce`: train and draw the figures of the paper, and check its claims."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container
from pathlib import Path

from jaxbyz.cli.common import seed_number
from jaxbyz.reproduction.figures import FIGURES, SETTINGS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the figures, the size of the trainings, and what to do."""
    parser.add_argument("figure", metavar="FIGURE", help=f"all, or one of {', '.join(FIGURES)}")
    parser.add_argument("--setting", choices=tuple(SETTINGS), default="steady", help="presets to use (default steady)")
    parser.add_argument("--seeds", type=int, default=10, help="seeds per curve (default 10)")
    parser.add_argument(
        "--seed", type=seed_number, default=0, help="first seed; results with other seeds are combined (default 0)"
    )
    parser.add_argument("--trajectories", type=int, default=8000, help="trajectories per agent (default 8000)")
    parser.add_argument(
        "--out", default="runs/reproduction", metavar="DIR", help="folder for the results (default runs/reproduction)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="only trainings whose name is or contains one of these"
    )
    parser.add_argument("--list", action="store_true", help="list the trainings and stop")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of trainings at a time, one process each (default 1)"
    )
    parser.add_argument("--draw", action="store_true", help="draw finished trainings only, train nothing")
    parser.add_argument("--no-draw", action="store_true", help="train only")
    parser.add_argument(
        "--no-spread", action="store_true", help="draw means without standard deviations; needed for a single seed"
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing, draw the figures and write the table; the exit code is 1 if a training failed."""
    if arguments.jobs > 1:  # processes that share a GPU must not reserve most of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jaxbyz.errors import UsageError
    from jaxbyz.experiments.progress import make_progress
    from jaxbyz.report.plots import save
    from jaxbyz.reproduction.comparison import write_comparison
    from jaxbyz.reproduction.drawing import draw_figure
    from jaxbyz.reproduction.figures import needed_trainings, select_figures
    from jaxbyz.reproduction.result_files import load_results, result_file, train_if_missing, training_config
    from jaxbyz.reproduction.subprocesses import run_in_processes

    figures = select_figures(arguments.figure)
    if arguments.seeds < 2 and not arguments.no_spread and not arguments.list:
        raise UsageError(f"seeds={arguments.seeds}: standard deviations need at least 2 seeds (or --no-spread)")
    needed = needed_trainings(figures)
    trainings = {
        name: training_config(
            arguments.setting, environment, curve, arguments.seeds, arguments.seed, arguments.trajectories
        )
        for name, (environment, curve) in needed.items()
        if is_selected(name, needed, arguments.only)
    }
    folder = Path(arguments.out) / arguments.setting
    if arguments.list:
        print(
            "\n".join(
                f"{name}{' (finished)' if result_file(folder, name, c).exists() else ''}"
                for name, c in trainings.items()
            )
        )
        return 0
    if arguments.jobs < 1:
        raise UsageError(f"jobs={arguments.jobs}: must be at least 1")
    if arguments.draw and arguments.no_draw:
        raise UsageError("--draw and --no-draw exclude each other")

    def log(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr, flush=True)

    failed = {}
    if not arguments.draw and arguments.jobs > 1:
        failed = run_in_processes({name: _arguments_for(name, arguments) for name in trainings}, arguments.jobs, log)
    elif not arguments.draw:
        for number, (name, config) in enumerate(trainings.items(), 1):
            log(f"[{number}/{len(trainings)}] {name}")
            train_if_missing(folder, name, config, make_progress(config.trajectories, arguments.quiet))
    for name, reason in failed.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
    if arguments.no_draw:
        return int(bool(failed))
    results = load_results(folder)
    if not results:
        raise UsageError(f"{folder}: no results here; run `jaxbyz reproduce` without --draw first")
    for name in figures:
        drawing = draw_figure(name, results, not arguments.no_spread)
        if drawing is not None:
            print(save(drawing, Path(arguments.out) / f"{name}-{arguments.setting}.png"))
    table = Path(arguments.out) / f"table-{arguments.setting}.md"
    print(write_comparison(figures, results, table, arguments.setting))
    return int(bool(failed))


def _arguments_for(name: str, arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of a process that runs one training."""
    numbers = {
        option: str(getattr(arguments, option)) for option in ("setting", "seeds", "seed", "trajectories", "out")
    }
    options = [word for option, value in numbers.items() for word in (f"--{option}", value)]
    spread = ["--no-spread"] if arguments.no_spread else []
    return ["reproduce", arguments.figure, "--only", name, "--no-draw", "--quiet", *options, *spread]


def is_selected(name: str, known: Container[str], only: list[str] | None) -> bool:
    """Return whether a training is selected; a text that is a full name selects only that training."""
    return not only or any(text == name if text in known else text in name for text in only)
