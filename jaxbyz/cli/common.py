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

from jaxbyz.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from jaxbyz.configuration.config import Config
    from jaxbyz.runs.reporters import Progress, Reporter
    from jaxbyz.runs.run import Experiment
    from jaxbyz.runs.run_folder import RunData


def print_message(line: str) -> None:
    """Print one line on standard error."""
    print(f"jaxbyz: {line}", file=sys.stderr, flush=True)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples at the end, and wraps everything else."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def seed_number(text: str) -> int:
    """Return the seed that an argument names."""
    from jaxbyz.configuration.config import MAX_SEED, SEED

    if not (text.isdecimal() and int(text) <= MAX_SEED):
        raise argparse.ArgumentTypeError(f"seed={text!r}: must be {SEED.wording}")
    return int(text)


def check_at_least(arguments: argparse.Namespace, **limits: float) -> None:
    """Refuse options that are smaller than their limit; None is accepted."""
    for name, least in limits.items():
        value = getattr(arguments, name)
        if value is not None and not value >= least:
            raise UsageError(f"{name}={value}: must be at least {least}")


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a policy of a run folder."""
    from jaxbyz.configuration.config import OUTPUTS

    parser.add_argument("folder", metavar="DIR", help="run folder")
    parser.add_argument("--agent", type=int, default=0, help="agent whose parameters to use (default 0)")
    parser.add_argument("--output", choices=OUTPUTS, help="parameters to use (default: the run's option output)")


def selected_parameters(arguments: argparse.Namespace, data: RunData) -> np.ndarray:
    """Return the parameters `[seeds, D]` that the options of `add_policy_options` select."""
    if not data.policy:
        raise UsageError(f"{arguments.folder}: no policy was saved, because no seed stayed finite")
    parameters = data.policy[arguments.output or data.config.output]
    check_index("agent", arguments.agent, parameters.shape[1])
    return parameters[:, arguments.agent]


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


def check_index(name: str, index: int, size: int) -> None:
    """Refuse an index that is not one of 0 to size − 1."""
    if not 0 <= index < size:
        raise UsageError(f"{name}={index}: must be from 0 to {size - 1}")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `train` and `resume` share."""
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="N",
        help="write a checkpoint every N iterations (default: only on SIGINT and SIGTERM)",
    )  # fmt: skip
    parser.add_argument("--mesh", metavar="SHAPE", help="devices for seeds and agents, for example seeds=4,agents=2")
    parser.add_argument(
        "--distributed", action="store_true",
        help="join the processes that Slurm, Open MPI, Kubernetes or the JAX_… variables describe",
    )  # fmt: skip
    add_deterministic_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    add_quiet_option(parser)
    group = parser.add_argument_group("logging")
    group.add_argument("--tensorboard", metavar="DIR", help="write every metric there for TensorBoard")
    group.add_argument("--wandb", metavar="PROJECT", help="log every metric to this project of Weights & Biases")
    group.add_argument("--mlflow", metavar="EXPERIMENT", help="log every metric to this experiment of MLflow")
    group.add_argument(
        "--evaluate-every", type=int, metavar="N",
        help="play fresh episodes with the policy of the first agent every N iterations, and at the end",
    )  # fmt: skip
    group.add_argument(
        "--evaluate-episodes", type=int, metavar="M", default=20, help="episodes per evaluation and seed (default 20)"
    )


def add_deterministic_option(parser: argparse.ArgumentParser) -> None:
    """Add --deterministic, which `main` reads before JAX starts."""
    parser.add_argument(
        "--deterministic", action="store_true",
        help="on a GPU, give the same bits in every process, also if programs are compiled anew; slower",
    )  # fmt: skip


def add_quiet_option(parser: argparse.ArgumentParser) -> None:
    """Add --quiet, which means the same in all commands."""
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")


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
    return {"checkpoint_every": arguments.checkpoint_every, "mesh": arguments.mesh}


class _Announcement:
    """A reporter that says where a run writes, after its options were accepted and before it is compiled."""

    def __init__(self, out: str):
        self.out = out

    def __enter__(self) -> None:
        print_message(f"writing to {self.out}")

    def __exit__(self, *_: Any) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Do nothing."""


def make_reporter(
    config: Config, arguments: argparse.Namespace, name: str | None = None, tags: Sequence[str] = ()
) -> Reporter:
    """Return the progress on the terminal, and the loggers and evaluations that the options request."""
    from jaxbyz.runs.loggers import MLflow, TensorBoard, WeightsAndBiases
    from jaxbyz.runs.periodic_evaluation import PeriodicEvaluation
    from jaxbyz.runs.progress import make_progress
    from jaxbyz.runs.reporters import ReporterGroup

    reporters: list[Reporter] = [] if arguments.quiet or not arguments.out else [_Announcement(arguments.out)]
    if arguments.tensorboard is not None:
        reporters.append(TensorBoard(arguments.tensorboard, config.seed, print_message))
    if arguments.wandb is not None:
        reporters.append(WeightsAndBiases(config, arguments.wandb, name, tags, print_message))
    if arguments.mlflow is not None:
        reporters.append(MLflow(config, arguments.mlflow, name, tags, print_message))
    group = ReporterGroup(*reporters, make_progress(config.trajectories, arguments.quiet))
    if arguments.evaluate_every is None:
        return group
    every, episodes = arguments.evaluate_every, arguments.evaluate_episodes
    return PeriodicEvaluation(config, every, episodes, folder=arguments.out, reporter=group)


def run_and_report(arguments: argparse.Namespace, train: Callable[[], Experiment]) -> int:
    """Train, print the results and return the exit code.

    The codes are 0 for success, 3 if honest agents of a seed became non-finite, and 128 + the signal's number if a
    signal stopped the run.
    """
    from jaxbyz.runs.run import Interrupted

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
    _print_results(experiment, arguments, time.monotonic() - started)
    if experiment.finite:
        return 0
    config, kept = experiment.config, f"; the results so far are in {arguments.out}" if arguments.out else ""
    components = f"aggregator {config.aggregator}, attack {config.attack}, eta {config.eta}"
    print_message(f"{_divergence(experiment)} ({components}){kept}")
    return 3


def _print_results(experiment: Experiment, arguments: argparse.Namespace, seconds: float) -> None:
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
