"""Several processes, on one host or many, that train one run together."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxbyz.errors import UsageError, first_line

HEARTBEAT_SECONDS = 20  # a process that is silent for this long counts as dead; JAX's default is 100
START_SECONDS = 300  # how long processes wait for each other at the start
FAILED = -1  # what the first process broadcasts instead of a result


def join_processes() -> None:
    """Connect this process to the others of a distributed run.

    JAX recognises Slurm, Open MPI and Kubernetes. Elsewhere the environment variables
    `JAX_COORDINATOR_ADDRESS=host:port`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` describe the processes.

    Raises:
        UsageError: if the other processes cannot be found.
    """

    def number(name: str) -> int | None:
        text = os.environ.get(name)
        if text is not None and not text.isdecimal():
            raise UsageError(f"{name}={text!r}: must be a whole number")
        return None if text is None else int(text)

    processes, process = number("JAX_NUM_PROCESSES"), number("JAX_PROCESS_ID")
    described = "JAX_COORDINATOR_ADDRESS" in os.environ and None not in (processes, process)
    try:
        jax.distributed.initialize(
            num_processes=processes,
            process_id=process,
            cluster_detection_method="deactivate" if described else None,
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"cannot join the other processes: {first_line(error)} Use Slurm, Open MPI or Kubernetes, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error


def is_first_process() -> bool:
    """Return whether this is the process that writes files and prints messages."""
    return jax.process_index() == 0


def max_over_processes(number: int) -> int:
    """Return the largest of the numbers that the processes pass."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def on_first_process(work: Callable[[], int | None]) -> int:
    """Call a function in the first process only and return its result in all processes.

    Args:
        work: returns a number of at least 0; None counts as 0.

    Raises:
        UsageError: in every process if `work` raises it in the first one.
    """
    if jax.process_count() == 1:
        return work() or 0
    result, failure = 0, None
    if is_first_process():
        try:
            result = work() or 0
        except UsageError as error:
            result, failure = FAILED, error
    result = int(multihost_utils.broadcast_one_to_all(np.int32(result)))
    if result == FAILED:
        raise failure or UsageError("the first process refused to continue; its message says why")
    return result
