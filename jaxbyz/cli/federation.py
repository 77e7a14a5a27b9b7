"""`jaxbyz federation create`, `run` and `status`: federations of separate processes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from jaxbyz.cli.common import add, print_message


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the three actions."""
    from jaxbyz.cli.options import add_config_options

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))

    def action(name: str, line: str, folder: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=line, allow_abbrev=False)
        add(added, "folder", folder, metavar="DIR")
        return added

    create = action("create", "write the common configuration and one key pair per node", "folder to create")
    create.add_argument(
        "--hosts", metavar="LIST", default="", help="host or host:port of every node (default: all on this machine)"
    )
    add(create, "--port", "port of hosts that name none; on this machine, the first port", type=int)
    add(
        create, "--private-randomness", "mix private keys into the random numbers, so that nobody can predict those of "
        "others", False,
    )  # fmt: skip
    add_config_options(create)
    run = action("run", "run all nodes on this machine, for trials", "folder of the federation")
    run.add_argument(
        "--attack", type=attack_of_node, action="append", default=[], metavar="NODE=NAME",
        help="attack that this node plays; may be repeated (default: the configured one, on the last f nodes)",
    )  # fmt: skip
    add(run, "--checkpoint-every", "passed to every node", least=1, metavar="N")
    status = action("status", "show where every node is", "folder of the federation")
    add(
        status, "--watch", "show it again every S seconds until all nodes have ended", type=float, least=0.1,
        metavar="S",
    )  # fmt: skip
    add(status, "--json", "print one JSON object", False)


def attack_of_node(text: str) -> tuple[int, str]:
    """Return the number of a node and the attack that it plays, from a text such as `12=large-noise`."""
    number, equals, name = text.partition("=")
    if not (equals and name and number.isdecimal()):
        raise argparse.ArgumentTypeError(f"attack={text!r}: must be NODE=NAME, for example 12=large-noise")
    return int(number), name


def run(arguments: argparse.Namespace) -> int:
    """Carry out one action."""
    return {"create": _create, "run": _run, "status": _status}[arguments.action](arguments)


def _create(arguments: argparse.Namespace) -> int:
    from jaxbyz.cli.options import choice_from
    from jaxbyz.federation.keys import node_name
    from jaxbyz.federation.launcher import create

    hosts = [host for host in arguments.hosts.split(",") if host]
    folder = Path(arguments.folder)
    choice = choice_from(arguments)
    federation = create(folder, choice.config, hosts, arguments.port, arguments.private_randomness)
    last = folder / node_name(len(federation.members) - 1)
    print(choice)
    print(f"{len(federation.members)} nodes, {folder / node_name(0)} to {last}; their private keys are in secret.key")
    print(f"run all of them here: jaxbyz federation run {folder}; or one: jaxbyz node {folder / node_name(0)}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from jaxbyz.federation.launcher import run_all, statuses
    from jaxbyz.runs.signals import catch_stop_request

    folder, attacks = Path(arguments.folder), dict(arguments.attack)
    with catch_stop_request() as request:
        code = run_all(folder, attacks, arguments.checkpoint_every, lambda: request.signal, print_message)
    print(_table(statuses(folder)))
    return code


def _status(arguments: argparse.Namespace) -> int:
    from jaxbyz.federation.launcher import statuses
    from jaxbyz.files import json_text

    while True:
        found = statuses(Path(arguments.folder))
        print(json_text({"nodes": found}) if arguments.json else _table(found), flush=True)
        ended = all(status["phase"] in ("finished", "stopped", "killed", "unreadable status") for status in found)
        if arguments.watch is None or ended:
            return 0
        time.sleep(arguments.watch)


def _table(found: list[dict[str, Any]]) -> str:
    """Return one line per node, and one per node that others do not trust."""
    from jaxbyz.federation.status import trust_lines

    columns = ("node", "phase", "iteration", "return", "rejoined", "suspects", "MB in", "MB out", "refused", "seen")
    rows = [columns, *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *trust_lines(found)])


def _row(status: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a node; what its status does not say stays empty."""
    attack = status.get("attack")
    return (
        str(status["node"]),
        status["phase"] if attack in (None, "none") else f"{status['phase']} ({attack})",
        f"{status['iteration']}/{status['iterations']}" if "iteration" in status else "",
        "" if status.get("return") is None else f"{status['return']:.1f}",
        str(status.get("rejoined", "")),
        ",".join(map(str, status.get("suspected", ()))),
        *(f"{status[name] / 1e6:.2f}" if name in status else "" for name in ("bytes_in", "bytes_out")),
        str(sum(status.get("refused", {}).values())),
        f"{max(0.0, time.time() - status['time']):.0f} s ago" if "time" in status else "",
    )
