"""`jaxbyz resume`: continue a run that was interrupted or killed.

On the same devices and versions the result is bitwise that of an uninterrupted run.
"""

from __future__ import annotations

import argparse

from jaxbyz.cli import common


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and how to report."""
    parser.add_argument("out", metavar="DIR", help="folder of an unfinished run")
    common.add_run_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume; the exit codes are those of `run_and_report`."""
    from jaxbyz.experiments.run import resume
    from jaxbyz.experiments.run_folder import load_config
    from jaxbyz.training.processes import is_first_process

    common.silence_other_processes(arguments)
    reporter, settings = common.make_reporter(load_config(arguments.out), arguments), common.run_settings(arguments)
    if is_first_process():
        settings["log"] = common.print_message
    return common.run_and_report(arguments, lambda: resume(arguments.out, reporter, **settings))
