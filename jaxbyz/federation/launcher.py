"""Create a federation, run its nodes as processes of this machine, and see where they are."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.federation.keys import (
    FederationDescription,
    node_name,
    read_federation,
    refuse_federation,
    write_federation,
)
from jaxbyz.federation.options import check_supported
from jaxbyz.federation.status import STATUS_FILE, read_status
from jaxbyz.files import open_regular, reason, refuse_links
from jaxbyz.registry import Registry, import_options
from jaxbyz.runs.run_folder import is_finished

FIRST_NODE_SECONDS = 300.0  # how long the first node may take to compile the programs for all
LIARS_SECONDS = 15.0  # how long others may take to finish when the honest nodes have
LOG_FILE = "log.txt"
LOG_TAIL = 4096  # bytes in which the last line is looked for
# Many processes share the cores, so none of them should use several.
ONE_CORE_FLAGS = "--xla_cpu_multi_thread_eigen=false"


def create(
    folder: Path, config: Config, hosts: Sequence[str] = (), port: int | None = None, private_randomness: bool = False
) -> FederationDescription:
    """Write the folders of a new federation.

    Args:
        folder: the folder to create.
        config: the configuration that all nodes share.
        hosts: `host` or `host:port` of every node, in order; by default all nodes are on this machine.
        port: the port of every host that names none; on this machine, the first of K consecutive ports. By default
            free ports of this machine are chosen.
        private_randomness: whether nodes mix their private keys into their random numbers.

    Raises:
        UsageError: if the configuration or an address does not fit.
    """
    check_supported(config)
    if config.audit and private_randomness:
        raise UsageError(
            f"audit={config.audit} with --private-randomness: audits replay the random numbers; use one of them"
        )
    from jaxbyz.federation.programs import build_programs, format_of

    addresses = _addresses(config.agents, hosts, port)
    refuse_federation(folder)
    programs = build_programs(config)  # refuses what cannot be built before anything is written
    form_check = FederationDescription(config, (), "", private_randomness)
    format_of(form_check, programs)
    return write_federation(folder, config, addresses, private_randomness)


def _addresses(agents: int, hosts: Sequence[str], port: int | None) -> list[str]:
    """Return `host:port` of every node."""
    if not hosts:
        ports = _free_ports(agents) if port is None else range(port, port + agents)
        return [f"127.0.0.1:{number}" for number in ports]
    if len(hosts) != agents:
        raise UsageError(f"hosts: {len(hosts)} given for agents={agents}")
    addresses = [host if ":" in host else f"{host}:{port}" for host in hosts]
    for address in addresses:
        name, _, number = address.rpartition(":")
        if not name or not (number.isdecimal() and 0 < int(number) < 2**16):
            raise UsageError(f"hosts: {address!r} must be host:port, or give --port")
    if len(set(addresses)) != agents:
        raise UsageError("hosts: two nodes have the same address")
    return addresses


def _free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def node_command(folder: Path, index: int, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a node, which imports what this process imported."""
    program = [sys.executable, "-P", "-m", "jaxbyz", *import_options(Registry.imported)]
    return [*program, "node", str(folder / node_name(index)), *options]


def start_node(folder: Path, index: int, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a node as a process; its messages go to `log.txt` in its folder."""
    flags = os.environ.get("XLA_FLAGS", "")
    environment = {**os.environ, "XLA_FLAGS": f"{flags} {ONE_CORE_FLAGS}".strip()}
    environment.setdefault("PYTHONPATH", os.pathsep.join(path for path in sys.path if os.path.isabs(path)))
    with _open_log(folder / node_name(index)) as log:
        return subprocess.Popen(
            node_command(folder, index, options), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )


def _open_log(folder: Path) -> BinaryIO:
    """Open the log of a node to append to it; a link is not followed."""
    try:
        handle = os.open(
            folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
        )
    except OSError as error:
        raise UsageError(f"{folder / LOG_FILE}: cannot be written ({reason(error)})") from error
    return os.fdopen(handle, "ab")


def node_options(
    federation: FederationDescription, attacks: dict[int, str], checkpoint_every: int | None
) -> dict[int, list[str]]:
    """Return the command-line options of every node.

    Args:
        federation: what all nodes have in common.
        attacks: what Byzantine nodes play, by number; by default the last f nodes play the option `attack` of the
            configuration, as in the simulation.
        checkpoint_every: passed to honest nodes.
    """
    config = federation.config
    if not attacks and config.attack != "none":
        attacks = {index: config.attack for index in range(config.agents - config.byzantine, config.agents)}
    options: dict[int, list[str]] = {}
    for index in range(config.agents):
        attack = attacks.get(index)
        words = [] if checkpoint_every is None else ["--checkpoint-every", str(checkpoint_every)]
        if attack is not None:
            words = ["--attack", attack]
            partners = [str(i) for i, other in attacks.items() if other == attack and i != index]
            if partners:
                words += ["--accomplices", ",".join(partners)]
        options[index] = words
    return options


def run_all(
    folder: Path,
    attacks: dict[int, str],
    checkpoint_every: int | None,
    stop: Callable[[], int],
    log: Callable[[str], None],
) -> int:
    """Run all nodes on this machine until the honest ones have finished; return 0 if all of those succeeded.

    The first node compiles the programs; the others start when it is ready and find them in the cache.

    Args:
        folder: the federation.
        attacks: as in `node_options`.
        checkpoint_every: as in `node_options`.
        stop: returns the number of a signal that asks to stop, or 0.
        log: receives lines for people.
    """
    federation = read_federation(folder)
    for index in attacks:
        if not 0 <= index < federation.config.agents:
            raise UsageError(f"attack: node {index} must be from 0 to {federation.config.agents - 1}")
    options = node_options(federation, attacks, checkpoint_every)
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        order = sorted(options, key=lambda index: ("--attack" in options[index], index))
        for index in order:
            processes[index] = start_node(folder, index, options[index])
            if index == order[0]:
                _wait_until_ready(folder, index, processes[index], stop)
        log(f"{len(processes)} nodes started; `jaxbyz federation status {folder}` shows where they are")
        honest = {index for index in processes if "--attack" not in options[index]}
        return _wait_for_end(processes, honest, folder, stop, log)
    finally:
        end_processes(list(processes.values()))


def _wait_until_ready(folder: Path, index: int, process: subprocess.Popen[bytes], stop: Callable[[], int]) -> None:
    """Wait until a node has compiled its programs, which it says in its status, or has ended."""
    path, begun = folder / node_name(index) / STATUS_FILE, time.time()
    while time.time() - begun < FIRST_NODE_SECONDS and process.poll() is None and not stop():
        if path.exists() and path.stat().st_mtime >= begun:
            return
        time.sleep(0.1)


def _wait_for_end(
    processes: dict[int, subprocess.Popen[bytes]],
    honest: set[int],
    folder: Path,
    stop: Callable[[], int],
    log: Callable[[str], None],
) -> int:
    """Wait for all processes of honest nodes, and a while for the others, or until a signal asks to stop."""
    told: set[int] = set()
    honest_until: float | None = None
    while True:
        for index, process in processes.items():
            ended = process.poll()
            if ended is not None and index not in told and (ended or not is_finished(folder / node_name(index))):
                told.add(index)
                log(f"node {index} ended with code {process.returncode}: {last_line(folder / node_name(index))}")
        if all(processes[index].poll() is not None for index in honest):
            honest_until = honest_until or time.monotonic()
            late = time.monotonic() - honest_until > LIARS_SECONDS
            if late or all(process.poll() is not None for process in processes.values()):
                return int(bool(told & honest))
        if number := stop():
            return 128 + number
        time.sleep(0.2)


def end_processes(processes: Sequence[subprocess.Popen[bytes]], seconds: float = 20.0) -> None:
    """Ask processes to stop, and kill those that do not."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    until = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(folder: Path) -> str:
    """Return the last line of a node's log, without control characters."""
    try:
        with open_regular(refuse_links(folder, LOG_FILE)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except (UsageError, OSError):
        return "no log"
    return "".join(c if c.isprintable() else "?" for c in lines[-1]) if lines else "no log"


def statuses(folder: Path) -> list[dict[str, Any]]:
    """Return the status of every node, as `jaxbyz.federation.status.read_status` does."""
    federation = read_federation(folder, names=False)
    return [read_status(folder / node_name(index), index) for index in range(federation.config.agents)]
