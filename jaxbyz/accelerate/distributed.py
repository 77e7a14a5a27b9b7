"""Joining the processes of a distributed run."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import jax

from jaxbyz.accelerate.peers import watch_peers
from jaxbyz.errors import UsageError, first_line

HEARTBEAT_SECONDS = 100  # after which JAX aborts a process that does not hear from another; `peers` notices earlier
START_SECONDS = 50  # how long processes wait for each other at the start, unless JAXBYZ_START_SECONDS says otherwise
JOIN_SECONDS = 300  # how long JAX then may take; it aborts the process afterwards
ADDRESS = "JAX_COORDINATOR_ADDRESS"
GREETING, GO = b"jaxbyz process ", b"go"


def join_processes() -> None:
    """Connect this process to the others of a distributed run.

    JAX recognises Slurm, Open MPI and Kubernetes. Elsewhere the environment variables
    `JAX_COORDINATOR_ADDRESS=host:port`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` describe the processes.

    Raises:
        UsageError: if the other processes cannot be found.
    """
    processes, process = _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID")
    seconds = _number("JAXBYZ_START_SECONDS") or START_SECONDS
    described = ADDRESS in os.environ and processes is not None and process is not None
    if described:
        assert processes is not None and process is not None
        if process >= processes:
            raise UsageError(f"JAX_PROCESS_ID={process}: must be from 0 to {processes - 1}")
        host, port = _check_coordinator(os.environ[ADDRESS])
        if process == 0:
            _gather(port, processes, seconds)
        else:
            _report(host, port, process, seconds)
    try:
        jax.distributed.initialize(
            num_processes=processes,
            process_id=process,
            cluster_detection_method="deactivate" if described else None,
            initialization_timeout=max(seconds, JOIN_SECONDS),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=20,
        )
    except (ValueError, RuntimeError, IndexError) as error:
        raise UsageError(
            f"cannot join the other processes: {first_line(error)[:300]}; use Slurm, Open MPI or Kubernetes, or set "
            f"{ADDRESS}, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error
    watch_peers(jax.process_index(), jax.process_count())


def _number(name: str) -> int | None:
    """Return the whole number in an environment variable, or None if it is not set."""
    text = os.environ.get(name)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"{name}={text[:60]!r}: must be a whole number")
    return None if text is None else int(text)


def _check_coordinator(address: str) -> tuple[str, int]:
    """Return the host and the port of the first process.

    Raises:
        UsageError: if the address is malformed.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 2**16):
        raise UsageError(f"{ADDRESS}={address!r}: must be written host:port, with a port from 1 to 65535")
    return host.strip("[]"), int(port)


def _gather(port: int, processes: int, seconds: float) -> None:
    """Wait in the first process until all others have reported, and let them go on.

    JAX aborts a process whose peers do not come; this happens before, on the same port, and ends in one line instead.

    Raises:
        UsageError: if the port is in use, or a process does not come.
    """
    deadline = time.monotonic() + seconds
    others: dict[int, socket.socket] = {}
    try:
        listener = socket.create_server(("", port), backlog=processes)  # sets SO_REUSEADDR
    except OSError as error:
        raise UsageError(f"port {port} of {ADDRESS} cannot be used ({error.strerror})") from error
    with listener:
        while len(others) < processes - 1:
            missing = sorted(set(range(1, processes)) - set(others))
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
                connection.settimeout(5)
                number = connection.recv(len(GREETING) + 10).removeprefix(GREETING)
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue  # somebody who connected and said nothing
                raise UsageError(f"cannot join the other processes: process {missing[0]} does not come") from None
            if number.isdigit() and int(number) in missing:
                others[int(number)] = connection
    for connection in others.values():
        with connection, contextlib.suppress(OSError):
            connection.sendall(GO)


def _report(host: str, port: int, process: int, seconds: float) -> None:
    """Report to the first process and wait until all have done so. Its host may be unknown until it has started.

    Raises:
        UsageError: if it does not answer, or another process does not come.
    """
    deadline, reason = time.monotonic() + seconds, "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(GREETING + str(process).encode())
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                if connection.recv(len(GO)) == GO:
                    return
        except OSError as error:
            reason = error.strerror or first_line(error)
        time.sleep(0.2)
    raise UsageError(f"cannot join the other processes: the first one, {host}:{port}, does not answer ({reason})")
