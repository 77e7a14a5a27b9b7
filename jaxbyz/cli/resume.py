"""`jaxbyz resume`: continue a run that was interrupted or killed, or extend one.

On the same devices and versions the result is bitwise that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbyz.cli import common

if TYPE_CHECKING:
    from jaxbyz.runs.loop import Experiment


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the new length, and how to report."""
    common.add(parser, "out", "folder of an unfinished run, or of one to extend", metavar="DIR")
    common.add(
        parser, "--trajectories", "let the run sample M trajectories per agent in total: more than planned, also if it "
        "has finished, or fewer if it has not sampled as many yet", type=int,
        metavar="M",
    )  # fmt: skip
    common.add_run_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume; the exit codes are those of `run_and_report`."""
    from jaxbyz.runs import run_record
    from jaxbyz.runs.extension import check_extension, extend
    from jaxbyz.runs.run import resume
    from jaxbyz.runs.run_folder import load_config
    from jaxbyz.training.processes import is_first_process

    common.silence_other_processes(arguments)
    config, total = load_config(arguments.out), arguments.trajectories
    if total is not None:
        config = check_extension(Path(arguments.out), config, total)
    record = run_record.read(Path(arguments.out))
    reporter = common.make_reporter(config, arguments, name=record.get("name"), tags=record.get("tags", ()))
    settings = common.run_settings(arguments)
    if is_first_process():
        settings |= {"log": common.print_message, "quiet": arguments.quiet}

    def train() -> Experiment:
        if total is None:
            return resume(arguments.out, reporter, **settings)
        return extend(arguments.out, total, reporter, **settings)

    return common.run_and_report(arguments, train, config.trajectories)
