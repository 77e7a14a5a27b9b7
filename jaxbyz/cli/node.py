"""`jaxbyz node`: run one node of a federation of processes."""

from __future__ import annotations

import argparse

from jaxbyz.cli.common import add_quiet_option, check_at_least, message_printer, print_message
from jaxbyz.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the node and how it runs."""
    parser.add_argument("folder", metavar="DIR", help="folder of the node, for example DIR/node-03")
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="N",
        help="write a checkpoint every N iterations (default: only on SIGINT and SIGTERM)",
    )  # fmt: skip
    parser.add_argument(
        "--attack", default="none", metavar="NAME",
        help="be Byzantine, for experiments: a registered attack",
    )  # fmt: skip
    parser.add_argument("--accomplices", default="", metavar="NODES", help="numbers of nodes that play the same attack")
    parser.add_argument(
        "--bind", metavar="HOST:PORT", help="address to listen on, if it differs from the one of the list"
    )
    parser.add_argument(
        "--deadline", type=float, metavar="S", help="shortest time to wait for the last f nodes (default 0.5)"
    )
    parser.add_argument(
        "--start-wait", type=float, metavar="S", help="time to wait for the last f nodes at the start (default 60)"
    )
    parser.add_argument(
        "--patience", type=float, metavar="S", help="give up after so long without K − f nodes (default 600)"
    )
    parser.add_argument(
        "--slow", type=float, default=0.0, metavar="S", help="wait so long before every message, for experiments"
    )
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the node. The exit code is 0 after the last iteration, and 128 + the signal's number after a signal."""
    from pathlib import Path

    from jaxbyz.federation.inbox import Stopped
    from jaxbyz.federation.process import run_node
    from jaxbyz.federation.settings import NodeSettings
    from jaxbyz.runs.signals import catch_stop_request

    check_at_least(arguments, checkpoint_every=1, deadline=0, start_wait=0, patience=0, slow=0)
    times = {"floor": arguments.deadline, "start_wait": arguments.start_wait, "patience": arguments.patience}
    given = {name: value for name, value in times.items() if value is not None}
    settings = NodeSettings(
        attack=arguments.attack, accomplices=_numbers(arguments.accomplices), slow=arguments.slow, bind=arguments.bind,
        checkpoint_every=arguments.checkpoint_every, **given,
    )  # fmt: skip
    name = Path(arguments.folder).name

    def log(line: str) -> None:
        message_printer(arguments)(f"{name}: {line}")

    with catch_stop_request() as request:
        try:
            metrics = run_node(Path(arguments.folder), settings, log, lambda: bool(request.signal))
        except Stopped:
            print_message(f"{name}: stopped; the same command continues it")
            return 128 + request.signal
    if metrics:
        log(f"finished; the last return was {metrics['returns'][0, -1]:.1f}")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"accomplices={text!r}: must be numbers of nodes, separated by commas")
    return tuple(map(int, parts))
