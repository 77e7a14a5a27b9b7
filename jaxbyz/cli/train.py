"""`jaxbyz train`: train an algorithm and write a run folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jaxbyz.experiments.config import Config
    from jaxbyz.experiments.reporters import Reporter
    from jaxbyz.experiments.run import Experiment


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of Config, the output folder, and how to report."""
    from jaxbyz.cli.options import add_config_options

    parser.add_argument("--out", metavar="DIR", help="folder for the results (default: nothing is written)")
    add_reporting_options(parser)
    add_config_options(parser)


def add_reporting_options(parser: argparse.ArgumentParser) -> None:
    """What `train` and `resume` share."""
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="write a checkpoint every N iterations (default: only on SIGINT and SIGTERM); `jaxbyz resume DIR` goes on",
    )
    parser.add_argument("--mesh", metavar="…", help="spread runs and agents over devices: seeds=4,agents=2")
    parser.add_argument(
        "--distributed", action="store_true", help="join the processes that Slurm, Open MPI, Kubernetes or JAX_… name"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quiet", action="store_true", help="no progress, no table")
    parser.add_argument("--tensorboard", metavar="DIR", help="write every metric there for TensorBoard")


def run(arguments: argparse.Namespace) -> int:
    """Train; 0 when all went well, 2 for a mistake in the options or a folder that cannot be written, 3 when
    honest agents of a seed became non-finite, 128 + number when a signal stopped it and it can be resumed."""
    from jaxbyz.cli.options import config_from, options_given
    from jaxbyz.experiments import run as experiment

    keep_quiet(arguments)
    config = config_from(arguments)
    if not arguments.quiet:
        for line in ignored(config, options_given(arguments)):
            say(line)
    return reported(
        arguments,
        lambda: experiment.run(config, arguments.out, reporter_for(config, arguments), **manner(arguments)),
    )


def ignored(config: Config, given: dict[str, Any]) -> Iterator[str]:
    """A line for each option that will make no difference."""
    from jaxbyz.experiments.config import rule_spec

    if config.byzantine == 0 and given.get("attack", "none") != "none":
        yield f"attack={given['attack']}: nobody is Byzantine (--byzantine), so nobody attacks"
    for name, value in given.items():
        used = getattr(config, name)
        if value not in (used, rule_spec(config)):
            yield f"{name}={value}: {config.algorithm} does not read it; {name}={used}"


def keep_quiet(arguments: argparse.Namespace) -> None:
    """Of several processes only the first speaks."""
    from jaxbyz.training.processes import leads

    if arguments.distributed and not leads():
        arguments.quiet, arguments.json, arguments.tensorboard = True, False, None


def manner(arguments: argparse.Namespace) -> dict[str, Any]:
    """How a run is carried out, as the options say."""
    return {"checkpoint_every": arguments.checkpoint_every, "mesh": arguments.mesh}


def reporter_for(config: Config, arguments: argparse.Namespace) -> Reporter:
    """The terminal's progress, and TensorBoard if asked for."""
    from jaxbyz.cli.progress import make_progress
    from jaxbyz.experiments.reporters import TensorBoard, Together

    progress = make_progress(config.trajectories, arguments.quiet)
    if arguments.tensorboard is None:
        return progress
    return Together(TensorBoard(arguments.tensorboard, config.seed), progress)


def reported(arguments: argparse.Namespace, work: Callable[[], Experiment]) -> int:
    """Do the work, print how it went, choose the exit code."""
    from jaxbyz.errors import UsageError
    from jaxbyz.experiments.run import Interrupted

    started = time.monotonic()
    try:
        done = work()
    except Interrupted as stop:
        say(str(stop))
        return 128 + stop.signal
    except UsageError:
        raise
    except Exception as error:
        if not arguments.distributed:
            raise
        lost(arguments, error)
    return report(done, arguments, time.monotonic() - started)


def say(line: str) -> None:
    """One line on standard error."""
    print(f"jaxbyz: {line}", file=sys.stderr, flush=True)


def lost(arguments: argparse.Namespace, error: Exception) -> NoReturn:
    """End at once: the others are gone, and JAX would wait for them at the door."""
    from jaxbyz.errors import first_line

    again = f"; `jaxbyz resume {arguments.out} --distributed` with all of them goes on" if arguments.out else ""
    say(f"lost another process ({first_line(error)[:200]}){again}")
    os._exit(1)


def report(done: Experiment, arguments: argparse.Namespace, seconds: float) -> int:
    """Print how a run went and choose the exit code."""
    from jaxbyz.report.tables import summarise, summary_table

    config, summary = done.config, summarise(done.metrics)
    if not arguments.quiet and not arguments.json:
        print(summary_table(config, summary))
    if arguments.json:
        summary["finite"] = done.finite
        print(json.dumps({"out": arguments.out, "seconds": round(seconds, 3), **summary}))
    if arguments.out is None and not arguments.quiet:
        say("nothing was written; --out DIR keeps metrics and policy")
    if not done.finite:
        kept = f"; what came before is in {arguments.out}" if arguments.out else ""
        say(f"{diverged(done)} (aggregator {config.aggregator}, attack {config.attack}, eta {config.eta}){kept}")
        return 3
    return 0


def diverged(done: Experiment) -> str:
    """How many seeds went non-finite, and since when."""
    import numpy as np

    finite = done.metrics["finite"].astype(bool)
    lost = np.flatnonzero(~finite.all(axis=1))
    first = int(finite[lost].argmin(axis=1).min())
    ended = "stopped: " if len(lost) == len(finite) else ""
    return f"{ended}honest agents became non-finite in {len(lost)} of {len(finite)} seeds, first in iteration {first}"
