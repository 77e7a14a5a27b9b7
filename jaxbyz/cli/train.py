"""`jaxbyz train`: train an algorithm and write a run folder."""

from __future__ import annotations

import argparse

from jaxbyz.cli import common


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Config`, the output folder, and how to report."""
    from jaxbyz.cli.options import add_config_options

    parser.add_argument("--out", metavar="DIR", help="folder for the results (default: write nothing)")
    parser.add_argument(
        "--from", dest="start", metavar="PATH", type=lambda path: f"from:{path}", default=argparse.SUPPRESS,
        help="start from the learnt policy of a run folder or exported .npz file; same as --start from:PATH",
    )  # fmt: skip
    common.add_run_options(parser)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train; the exit codes are those of `run_and_report`."""
    from jaxbyz.cli.options import config_from, options_given
    from jaxbyz.experiments.ineffective import without_effect
    from jaxbyz.experiments.run import run as run_config
    from jaxbyz.training.processes import is_first_process

    common.silence_other_processes(arguments)
    config = config_from(arguments)
    if is_first_process():
        for line in without_effect(config, options_given(arguments)):
            common.print_message(line)
    reporter, settings = common.make_reporter(config, arguments), common.run_settings(arguments)
    return common.run_and_report(arguments, lambda: run_config(config, arguments.out, reporter, **settings))
