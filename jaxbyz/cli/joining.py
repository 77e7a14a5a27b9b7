"""Join the processes of a distributed run. This module imports nothing that starts JAX."""

from __future__ import annotations

import os
import socket

import jax

from jaxbyz.errors import UsageError, first_line

HEARTBEAT_SECONDS = 30  # JAX ends the processes that have not heard from another one for so long
ADDRESS = "JAX_COORDINATOR_ADDRESS"


def join_processes() -> None:
    """Connect this process to the others of a distributed run.

    JAX recognises Slurm, Open MPI and Kubernetes. Elsewhere the environment variables
    `JAX_COORDINATOR_ADDRESS=host:port`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` describe the processes.

    Raises:
        UsageError: if the processes are not described, or the port of the first one is in use.
    """
    address, processes, process = map(os.environ.get, (ADDRESS, "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    described = None not in (address, processes, process)
    try:
        if described and process == "0":
            _, _, port = str(address).rpartition(":")
            socket.create_server(("", int(port))).close()  # JAX crashes if the port is in use
        jax.distributed.initialize(
            num_processes=None if processes is None else int(processes),
            process_id=None if process is None else int(process),
            cluster_detection_method="deactivate" if described else None,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=20,
        )
    except (ValueError, RuntimeError, IndexError, OverflowError, OSError) as error:
        raise UsageError(
            f"cannot join the other processes: {first_line(error)[:300]}; use Slurm, Open MPI or Kubernetes, or set "
            f"{ADDRESS}=host:port, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error
