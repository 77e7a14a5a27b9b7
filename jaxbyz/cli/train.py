"""`jaxbyz train`: train an algorithm and write a run folder."""

from __future__ import annotations

import argparse
import json
import sys
import time


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of Config, the output folder, and how to report."""
    from jaxbyz.cli.options import add_config_options

    parser.add_argument("--out", metavar="DIR", help="folder for the results (default: nothing is written)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quiet", action="store_true", help="no progress, no table")
    parser.add_argument("--tensorboard", metavar="DIR", help="write every metric there for TensorBoard")
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train; 0 when all went well, 2 for a mistake in the options, 3 when honest parameters became non-finite."""
    from jaxbyz import experiment
    from jaxbyz.cli.options import config_from
    from jaxbyz.cli.progress import make_progress
    from jaxbyz.report.tables import summarise, summary_table
    from jaxbyz.reporters import TensorBoard, Together

    config = config_from(arguments)
    started = time.monotonic()
    reporter = make_progress(config.trajectories, arguments.quiet)
    if arguments.tensorboard is not None:
        reporter = Together(TensorBoard(arguments.tensorboard, config.seed), reporter)
    done = experiment.run(config, arguments.out, reporter)
    summary = summarise(done.metrics)
    if not arguments.quiet and not arguments.json:
        print(summary_table(config, summary))
    if arguments.json:
        summary["finite"] = done.finite
        print(json.dumps({"out": arguments.out, "seconds": round(time.monotonic() - started, 3), **summary}))
    if not done.finite:
        iteration = done.metrics["finite"].shape[1]
        kept = f"; what came before is in {arguments.out}" if arguments.out else ""
        print(
            f"jaxbyz: stopped: honest parameters became non-finite within the first {iteration} iterations "
            f"(aggregator {config.aggregator}, attack {config.attack}, eta {config.eta}){kept}",
            file=sys.stderr,
        )
        return 3
    return 0
