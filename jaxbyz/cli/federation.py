"""`jaxbyz federation create`, `run` and `status`: federations of separate processes."""

from __future__ import annotations

import argparse
import time
from typing import Any

from jaxbyz.cli.common import check_at_least, print_message
from jaxbyz.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the three actions."""
    from jaxbyz.cli.options import add_config_options

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    create = actions.add_parser(
        "create", help="write the common configuration and one key pair per node", allow_abbrev=False
    )
    create.add_argument("folder", metavar="DIR", help="folder to create")
    create.add_argument(
        "--hosts", metavar="LIST", default="", help="host or host:port of every node (default: all on this machine)"
    )
    create.add_argument("--port", type=int, help="port of hosts that name none; on this machine, the first port")
    create.add_argument(
        "--private-randomness", action="store_true",
        help="mix private keys into the random numbers, so that nobody can predict those of others",
    )  # fmt: skip
    add_config_options(create)
    run = actions.add_parser("run", help="run all nodes on this machine, for trials", allow_abbrev=False)
    run.add_argument("folder", metavar="DIR", help="folder of the federation")
    run.add_argument(
        "--attack", action="append", default=[], metavar="NODE=NAME",
        help="attack that this node plays; may be repeated (default: the configured one, on the last f nodes)",
    )  # fmt: skip
    run.add_argument("--checkpoint-every", type=int, metavar="N", help="passed to every node")
    status = actions.add_parser("status", help="show where every node is", allow_abbrev=False)
    status.add_argument("folder", metavar="DIR", help="folder of the federation")
    status.add_argument(
        "--watch", type=float, metavar="S", help="show it again every S seconds until all nodes have ended"
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Carry out one action."""
    return {"create": _create, "run": _run, "status": _status}[arguments.action](arguments)


def _create(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxbyz.cli.options import config_from
    from jaxbyz.federation.keys import node_name
    from jaxbyz.federation.launcher import create

    hosts = [host for host in arguments.hosts.split(",") if host]
    folder = Path(arguments.folder)
    federation = create(folder, config_from(arguments), hosts, arguments.port, arguments.private_randomness)
    last = folder / node_name(len(federation.members) - 1)
    print(f"{len(federation.members)} nodes, {folder / node_name(0)} to {last}; their private keys are in secret.key")
    print(f"run all of them here: jaxbyz federation run {folder}; or one: jaxbyz node {folder / node_name(0)}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxbyz.federation.launcher import run_all, statuses
    from jaxbyz.runs.signals import catch_stop_request

    check_at_least(arguments, checkpoint_every=1)
    with catch_stop_request() as request:
        code = run_all(
            Path(arguments.folder),
            _attacks(arguments.attack),
            arguments.checkpoint_every,
            lambda: request.signal,
            print_message,
        )
    print(_table(statuses(Path(arguments.folder))))
    return code


def _attacks(given: list[str]) -> dict[int, str]:
    """Return the attack of every node that `--attack NODE=NAME` names."""
    attacks = {}
    for text in given:
        number, equals, name = text.partition("=")
        if not (equals and name and number.isdecimal()):
            raise UsageError(f"attack={text!r}: must be NODE=NAME, for example 12=large-noise")
        attacks[int(number)] = name
    return attacks


def _status(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxbyz.federation.launcher import statuses
    from jaxbyz.files import json_text

    check_at_least(arguments, watch=0.1)
    while True:
        found = statuses(Path(arguments.folder))
        print(json_text({"nodes": found}) if arguments.json else _table(found), flush=True)
        ended = all(status["phase"] in ("finished", "stopped", "unreadable status") for status in found)
        if arguments.watch is None or ended:
            return 0
        time.sleep(arguments.watch)


def _table(found: list[dict[str, Any]]) -> str:
    """Return one line per node."""
    columns = ("node", "phase", "iteration", "return", "rejoined", "suspects", "MB in", "MB out", "refused", "seen")
    rows: list[tuple[str, ...]] = [columns]
    for status in found:
        refused = sum(status.get("refused", {}).values())
        seen = f"{max(0.0, time.time() - status['time']):.0f} s ago" if "time" in status else ""
        phase = status["phase"] if status.get("attack") in (None, "none") else f"{status['phase']} ({status['attack']})"
        iteration = f"{status['iteration']}/{status['iterations']}" if "iteration" in status else ""
        value = "" if status.get("return") is None else f"{status['return']:.1f}"
        megabytes = [f"{status[name] / 1e6:.2f}" if name in status else "" for name in ("bytes_in", "bytes_out")]
        suspects = ",".join(map(str, status.get("suspected", ())))
        rows.append(
            (
                str(status["node"]),
                phase,
                iteration,
                value,
                str(status.get("rejoined", "")),
                suspects,
                *megabytes,
                str(refused),
                seen,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
