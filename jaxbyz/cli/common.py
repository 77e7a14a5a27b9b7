"""What several commands share: options, checks, messages, and how a run is reported."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jaxbyz.errors import UsageError, printable

if TYPE_CHECKING:
    from jaxbyz.configuration.config import Config
    from jaxbyz.runs.reporters import Progress, Reporter
    from jaxbyz.runs.run import Experiment
    from jaxbyz.runs.run_folder import RunData


def print_message(line: str) -> None:
    """Print one line on standard error. What it names may come from files of others."""
    print(f"jaxbyz: {printable(line)}", file=sys.stderr, flush=True)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples at the end, and wraps everything else."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


# Options that mean the same in all commands that have them.
SHARED_OPTIONS: dict[str, dict[str, Any]] = {
    "--quiet": {"help": "print warnings and errors only", "default": False},
    "--json": {"help": "print one JSON object as the last line", "default": False},
    "--deterministic": {  # `main` reads it before JAX starts
        "help": "on a GPU, give the same bits in every process, also if programs are compiled anew; slower",
        "default": False,
    },
    "--checkpoint-every": {
        "help": "write a checkpoint every N iterations (default: only on SIGINT and SIGTERM)", "metavar": "N",
        "least": 1,
    },
    "--agent": {"help": "agent whose parameters to use", "default": 0},
    "--run-seed": {"help": "which seed of the run, counted from 0", "default": 0},
}  # fmt: skip


def add(
    parser: argparse._ActionsContainer, name: str, help: str, default: Any = None, *, least: float | None = None,
    **settings: Any,
) -> None:  # fmt: skip
    """Add an option that has the type of its default, which the help text names. False is the default of a flag.

    Args:
        parser: where to add it.
        name: the option, `"--episodes"`, or the name of a positional argument.
        help: one line without the default.
        default: the default; None if there is none, or if it is not one value.
        least: refuse smaller numbers. Without a default, the option is a whole number.
        **settings: passed on to `add_argument`.
    """
    if default is False:
        parser.add_argument(name, action="store_true", help=help, **settings)
        return
    if default is not None:
        help += f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
        settings.setdefault("type", type(default))
    if least is not None:
        settings["type"] = _at_least(least, name.lstrip("-").replace("-", "_"), settings.get("type", int))
    parser.add_argument(name, default=default, help=help, **settings)


def _at_least(least: float, name: str, kind: type) -> Callable[[str], Any]:
    """Return a parser of numbers of at least `least`."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{name}={text}: must be at least {least}")
        return value

    parse.__name__ = kind.__name__  # argparse calls a text that is not a number an "invalid int value"
    return parse


def add_shared(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add some of the options that several commands share."""
    for name in names:
        add(parser, name, **SHARED_OPTIONS[name])


def seed_number(text: str) -> int:
    """Return the seed that an argument names."""
    from jaxbyz.configuration.config import MAX_SEED, SEED

    if not (text.isdecimal() and int(text) <= MAX_SEED):
        raise argparse.ArgumentTypeError(f"seed={text!r}: must be {SEED.wording}")
    return int(text)


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a policy of a run folder."""
    from jaxbyz.configuration.config import OUTPUTS

    add(parser, "folder", "run folder", metavar="DIR")
    add_shared(parser, "--agent")
    add(parser, "--output", "parameters to use (default: the run's option output)", choices=OUTPUTS)


def add_run_folders(parser: argparse.ArgumentParser) -> None:
    """Add the folders of the runs to draw."""
    add(parser, "folders", "run folders, or folders that contain run folders", metavar="DIR", nargs="+")


def load_runs(folders: Sequence[str]) -> list[RunData]:
    """Load runs to draw, and say which of them are not finished."""
    from jaxbyz.report.runs import load_runs as load

    runs = load(folders)
    for run in runs:
        if not run.finished:
            print_message(
                f"{run.folder} is not finished; its first {run.metrics['returns'].shape[1]} iterations are shown"
            )
    return runs


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `train` and `resume` share."""
    add_shared(parser, "--checkpoint-every")
    add(
        parser, "--stop-at", "end the run once the honest return reaches this: the mean over the last 100 trajectories "
        "per agent and over all seeds, looked at every 20 iterations", metavar="RETURN", type=float,
    )  # fmt: skip
    add(parser, "--mesh", "devices for seeds and agents, for example seeds=4,agents=2", metavar="SHAPE")
    add(
        parser, "--distributed", "join the processes that Slurm, Open MPI, Kubernetes or the JAX_… variables describe",
        False,
    )  # fmt: skip
    add_shared(parser, "--deterministic", "--json", "--quiet")
    group = parser.add_argument_group("logging")
    add(group, "--tensorboard", "write every metric there for TensorBoard", metavar="DIR")
    add(group, "--wandb", "log every metric to this project of Weights & Biases", metavar="PROJECT")
    add(group, "--mlflow", "log every metric to this experiment of MLflow", metavar="EXPERIMENT")
    add(
        group, "--evaluate-every", "play fresh episodes with the policy of the first agent every N iterations, and at "
        "the end", metavar="N", type=int,
    )  # fmt: skip
    add(group, "--evaluate-episodes", "episodes per evaluation and seed", 20, metavar="M")


def message_printer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return what prints messages that are neither warnings nor errors: nothing with --quiet."""
    return (lambda line: None) if arguments.quiet else print_message


@contextlib.contextmanager
def saying_what_is_replaced(*paths: str | Path) -> Iterator[None]:
    """Write files inside this context; afterwards it says which of them existed before."""
    existing = [path for path in paths if Path(path).exists()]
    yield
    for path in existing:
        print_message(f"{path} existed and was replaced")


def silence_other_processes(arguments: argparse.Namespace) -> None:
    """Let only the first of several processes print and log."""
    from jaxbyz.training.processes import is_first_process

    if arguments.distributed and not is_first_process():
        arguments.quiet, arguments.json, arguments.tensorboard = True, False, None
        arguments.wandb = arguments.mlflow = arguments.evaluate_every = None


def run_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `run` and `resume` that the options of `add_run_options` set."""
    return {name: getattr(arguments, name) for name in ("checkpoint_every", "mesh", "stop_at")}


class _Opening:
    """A reporter that prints messages once the options of a run were accepted, before it is compiled."""

    def __init__(self, messages: Sequence[str]):
        self.messages = messages

    def __enter__(self) -> None:
        for message in self.messages:
            print_message(message)

    def __exit__(self, *_: Any) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Do nothing."""


def make_reporter(
    config: Config,
    arguments: argparse.Namespace,
    messages: Sequence[str] = (),
    name: str | None = None,
    tags: Sequence[str] = (),
) -> Reporter:
    """Return the progress on the terminal, and the loggers and evaluations that the options request.

    Args:
        config: the configuration of the run.
        arguments: those of `add_run_options`, and the folder `out`.
        messages: what to print before the run starts.
        name: the name of the run, for loggers.
        tags: its tags, for loggers.
    """
    from jaxbyz.runs.loggers import MLflow, TensorBoard, WeightsAndBiases
    from jaxbyz.runs.periodic_evaluation import PeriodicEvaluation
    from jaxbyz.runs.progress import make_progress
    from jaxbyz.runs.reporters import ReporterGroup

    folder = [] if arguments.quiet or arguments.out is None else [f"writing to {arguments.out}"]
    reporters: list[Reporter] = [_Opening([*messages, *folder])]
    if arguments.tensorboard is not None:
        reporters.append(TensorBoard(arguments.tensorboard, config.seed, print_message))
    for logger, project in ((WeightsAndBiases, arguments.wandb), (MLflow, arguments.mlflow)):
        if project is not None:
            reporters.append(logger(config, project, name, tags, print_message))
    group = ReporterGroup(*reporters, make_progress(config.trajectories, arguments.quiet))
    if arguments.evaluate_every is None:
        return group
    every, episodes = arguments.evaluate_every, arguments.evaluate_episodes
    return PeriodicEvaluation(config, every, episodes, folder=arguments.out, reporter=group)


def run_and_report(
    arguments: argparse.Namespace, train: Callable[[], Experiment], planned: int, chosen: str | None = None
) -> int:
    """Train, print the results, whether `--stop-at` ended the run, and what was chosen for it; return the exit code.

    The codes are 0 for success, 3 if honest agents of a seed became non-finite, and 128 + the signal's number if a
    signal stopped the run.

    Args:
        arguments: those of `add_run_options`, and the folder `out`.
        train: trains and returns the results.
        planned: the trajectories per agent that the run was asked for.
        chosen: what was chosen for the run, and why; by default its components.
    """
    from jaxbyz.runs.loop import Interrupted

    started = time.monotonic()
    try:
        experiment = train()
    except Interrupted as stop:
        print_message(str(stop))
        return 128 + stop.signal
    except UsageError:
        raise
    except Exception as error:
        if not arguments.distributed:
            raise
        _exit_after_lost_process(arguments, error)
    if experiment.config.trajectories < planned and not arguments.quiet:
        print_message(
            f"--stop-at ended the run after {experiment.config.trajectories} of {planned} trajectories per agent"
        )
    _print_results(experiment, arguments, time.monotonic() - started, chosen)
    if experiment.finite:
        return 0
    config, kept = experiment.config, f"; the results so far are in {arguments.out}" if arguments.out else ""
    components = f"aggregator {config.aggregator}, attack {config.attack}, eta {config.eta}"
    print_message(f"{_divergence(experiment)} ({components}){kept}")
    return 3


def _print_results(experiment: Experiment, arguments: argparse.Namespace, seconds: float, chosen: str | None) -> None:
    from jaxbyz.files import json_text
    from jaxbyz.report.tables import summarise, summary_table

    summary = summarise(experiment.metrics)
    if arguments.json:
        summary["finite"] = experiment.finite
        print(json_text({"out": arguments.out, "seconds": round(seconds, 3), **summary}))
    elif not arguments.quiet:
        print(summary_table(experiment.config, summary))
    if arguments.out is None and not arguments.quiet:
        print_message("nothing was written (--no-save)")
    if not arguments.quiet:
        config = experiment.config
        components = f"algorithm {config.algorithm}, rule {config.rule}, agreement {config.agreement}"
        print_message(chosen or f"{components} (as it was started)")


def _exit_after_lost_process(arguments: argparse.Namespace, error: Exception) -> NoReturn:
    """Exit without cleaning up, because JAX would wait for the lost process."""
    from jaxbyz.errors import first_line

    again = f"; `jaxbyz resume {arguments.out} --distributed` with all processes continues" if arguments.out else ""
    print_message(f"lost another process ({first_line(error)[:200]}){again}")
    os._exit(1)


def _divergence(experiment: Experiment) -> str:
    """Return how many seeds became non-finite, and when the first did."""
    import numpy as np

    finite = experiment.metrics["finite"].astype(bool)
    diverged = np.flatnonzero(~finite.all(axis=1))
    first = 1 + int(finite[diverged].argmin(axis=1).min())
    stopped = "stopped: " if len(diverged) == len(finite) else ""
    counts = f"{len(diverged)} of {len(finite)} seeds, first in iteration {first}"
    return f"{stopped}honest agents became non-finite in {counts}"
