"""Several processes, on one host or many, that train one run together: a few words on top of JAX's distribution."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxbyz.errors import UsageError, first_line

HEARTBEAT_SECONDS = 20  # a process that says nothing for so long is taken for dead; JAX's default is 100
REFUSED = -1
START_SECONDS = 300  # how long processes wait for each other at the start


def initialise() -> None:
    """Join the other processes. Slurm, Open MPI and Kubernetes are recognised by JAX; elsewhere the environment says
    who and where: JAX_COORDINATOR_ADDRESS=host:port, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""

    def number(name: str) -> int | None:
        text = os.environ.get(name)
        if text is not None and not text.isdecimal():
            raise UsageError(f"{name}={text!r}: must be a whole number")
        return None if text is None else int(text)

    processes, process = number("JAX_NUM_PROCESSES"), number("JAX_PROCESS_ID")
    told = "JAX_COORDINATOR_ADDRESS" in os.environ and None not in (processes, process)
    try:
        jax.distributed.initialize(
            num_processes=processes,
            process_id=process,
            cluster_detection_method="deactivate" if told else None,
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"--distributed: {first_line(error)} Start it under Slurm, Open MPI or Kubernetes, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error


def leads() -> bool:
    """Whether this process writes files and speaks for all."""
    return jax.process_index() == 0


def largest(number: int) -> int:
    """The largest number that any process has."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def led(work: Callable[[], int | None]) -> int:
    """Let the first process do something and tell all its number; what is refused there is refused everywhere."""
    if jax.process_count() == 1:
        return work() or 0
    number, refusal = 0, None
    if leads():
        try:
            number = work() or 0
        except UsageError as error:
            number, refusal = REFUSED, error
    number = int(multihost_utils.broadcast_one_to_all(np.int32(number)))
    if number == REFUSED:
        raise refusal or UsageError("the first process refused to go on; its message says why")
    return number
