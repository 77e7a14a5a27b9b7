"""Joining the processes of a distributed run."""

from __future__ import annotations

import os
import socket
import time

import jax

from jaxbyz.errors import UsageError, first_line

HEARTBEAT_SECONDS = 20  # a process that is silent for this long counts as dead; JAX's default is 100
START_SECONDS = 50  # how long processes wait for each other at the start, unless JAXBYZ_START_SECONDS says otherwise
ADDRESS = "JAX_COORDINATOR_ADDRESS"


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
        _check_coordinator(os.environ[ADDRESS], process, seconds)
    try:
        jax.distributed.initialize(
            num_processes=processes,
            process_id=process,
            cluster_detection_method="deactivate" if described else None,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError, IndexError) as error:
        raise UsageError(
            f"cannot join the other processes: {first_line(error)[:300]}; use Slurm, Open MPI or Kubernetes, or set "
            f"{ADDRESS}, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error


def _number(name: str) -> int | None:
    """Return the whole number in an environment variable, or None if it is not set."""
    text = os.environ.get(name)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"{name}={text[:60]!r}: must be a whole number")
    return None if text is None else int(text)


def _check_coordinator(address: str, process: int, seconds: float) -> None:
    """Refuse an address that cannot be used: the first process must be able to listen there, the others to connect.

    Raises:
        UsageError: if the address is malformed or unknown, its port is in use, or nobody answers in time.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 2**16):
        raise UsageError(f"{ADDRESS}={address!r}: must be written host:port, with a port from 1 to 65535")
    host = host.strip("[]")
    try:
        socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        if process == 0:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", int(port)))
            return
    except OSError as error:
        raise UsageError(f"{ADDRESS}={address!r}: cannot be used ({error.strerror})") from error
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{ADDRESS}={address!r}: the first process does not answer ({error.strerror or first_line(error)})"
                ) from error
        time.sleep(0.2)
