"""`jaxbyz resume`: continue a run that was interrupted or killed, to the same bits as if it had not been."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """The folder, and how to report."""
    from jaxbyz.cli.train import add_reporting_options

    parser.add_argument("out", metavar="DIR", help="folder of an unfinished run")
    add_reporting_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume; exit codes as for `jaxbyz train`."""
    from jaxbyz.cli.train import keep_quiet, manner, reported, reporter_for, say
    from jaxbyz.experiments import run as experiment
    from jaxbyz.experiments.run_folder import load_config
    from jaxbyz.training.processes import leads

    keep_quiet(arguments)
    reporter = reporter_for(load_config(arguments.out), arguments)
    tell = say if leads() else lambda line: None
    return reported(arguments, lambda: experiment.resume(arguments.out, reporter, say=tell, **manner(arguments)))
