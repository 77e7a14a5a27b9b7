"""`jaxbyz node`: run one node of a federation of processes."""

from __future__ import annotations

import argparse
from typing import Any

from jaxbyz.cli.common import add, add_shared, message_printer, print_message


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the node and how it runs."""
    from jaxbyz.federation.settings import NodeSettings

    defaults = NodeSettings()
    add(parser, "folder", "folder of the node, for example DIR/node-03", metavar="DIR")
    add_shared(parser, "--checkpoint-every")
    add(parser, "--attack", "be Byzantine, for experiments: a registered attack", defaults.attack, metavar="NAME")
    parser.add_argument(
        "--accomplices", type=node_numbers, default=(), metavar="NODES",
        help="numbers of nodes that play the same attack",
    )  # fmt: skip
    add(parser, "--bind", "address to listen on, if it differs from the one of the list", metavar="HOST:PORT")
    seconds: dict[str, Any] = {"least": 0, "metavar": "S"}
    add(parser, "--deadline", "shortest time to wait for the last f nodes", defaults.floor, dest="floor", **seconds)
    add(parser, "--start-wait", "time to wait for the last f nodes at the start", defaults.start_wait, **seconds)
    add(parser, "--patience", "give up after so long without K − f nodes", defaults.patience, **seconds)
    add(parser, "--slow", "wait so long before every message, for experiments", defaults.slow, **seconds)
    add(
        parser, "--env-file", "Python file whose function environment() returns the environment of this node, one of "
        "gymnasium for example (default: that of the federation)", metavar="FILE",
    )  # fmt: skip
    add_shared(parser, "--quiet")


def node_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes in a text such as `3,12`."""
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"accomplices={text!r}: must be numbers of nodes, separated by commas")
    return tuple(map(int, parts))


def run(arguments: argparse.Namespace) -> int:
    """Run the node. The exit code is 0 after the last iteration, and 128 + the signal's number after a signal."""
    from pathlib import Path

    from jaxbyz.federation.inbox import Stopped
    from jaxbyz.federation.process import run_node
    from jaxbyz.federation.settings import NodeSettings
    from jaxbyz.runs.signals import catch_stop_request

    settings = NodeSettings(**{name: getattr(arguments, name) for name in NodeSettings._fields})
    folder = Path(arguments.folder)
    name, report = folder.name, message_printer(arguments)

    def log(line: str) -> None:
        report(f"{name}: {line}")

    with catch_stop_request() as request:
        try:
            metrics = run_node(folder, settings, log, lambda: bool(request.signal))
        except Stopped:
            print_message(f"{name}: stopped; the same command continues it")
            return 128 + request.signal
    if metrics:
        log(f"finished; the last return was {metrics['returns'][0, -1]:.1f}")
    return 0
