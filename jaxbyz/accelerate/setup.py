"""What must happen before JAX starts: host devices, XLA flags, the cache of programs, and joining other processes."""

from __future__ import annotations

import os
import shutil

import jax

from jaxbyz.accelerate.platform import on_cpu
from jaxbyz.errors import UsageError, first_line

HEARTBEAT_SECONDS = 20  # a process that is silent for this long counts as dead; JAX's default is 100
START_SECONDS = 300  # how long processes wait for each other at the start

# XLA ends a process whose host devices have waited 40 s for each other. Episodes differ in length, so allow more.
LONG_WAITS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=3600",
    "--xla_cpu_collective_call_terminate_timeout_seconds=86400",
)
# On a CPU, XLA runs a loop as a list of calls with a fixed cost each. This flag compiles every loop that touches fewer
# bytes per iteration than this threshold into one function. LunarLander's solver is three times faster with it.
FUSED_SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=500000"
# By default XLA uses half of a CPU's widest vector registers. Sorting networks are twice as fast with all of them.
WIDE_VECTORS = "--xla_cpu_prefer_vector_width=512"

# XLA's default is 3. With 2, LLVM takes a third less time, and our programs run as fast.
LESS_OPTIMISATION = "--xla_backend_optimization_level=2"


def set_flags() -> None:
    """Add our XLA flags to the environment, except those that are set already. Call it before JAX starts."""
    given = os.environ.get("XLA_FLAGS", "")
    flags = (*LONG_WAITS, FUSED_SMALL_LOOPS, WIDE_VECTORS, LESS_OPTIMISATION)
    ours = [flag for flag in flags if flag.partition("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *ours]).strip()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def unused_hardware() -> list[str]:
    """Return a line for each kind of hardware that JAX does not use, with what to do about it."""
    problems, devices, cores = [], len(jax.devices()), available_cores()
    if on_cpu() and devices < cores:
        problems.append(
            f"{devices} device(s) on {cores} cores: unset the XLA_FLAGS or jax_num_cpu_devices that limits them"
        )
    if on_cpu() and shutil.which("nvidia-smi"):
        problems.append("JAX does not use the NVIDIA GPU: pip install 'jax[cuda12]', unset JAX_PLATFORMS")
    return problems


def agents_can_share_cores() -> bool:
    """Whether the agents of a run can be spread over CPU cores whose devices wait for each other."""
    return on_cpu() and "collective_call" in os.environ.get("XLA_FLAGS", "")


def prepare() -> None:
    """Prepare JAX as the command line does: one host device per core, XLA flags, and a cache of compiled programs.

    Call it first in a script. If JAX has already started, only the cache is set.
    """
    try:
        jax.config.update("jax_num_cpu_devices", available_cores())
    except RuntimeError:  # JAX has started already, for example in a notebook
        pass
    else:
        set_flags()
    if jax.config.values.get("jax_compilation_cache_dir") is None:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(root, "jaxbyz"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # there are dozens of small programs


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
            f"cannot join the other processes: {first_line(error)}; use Slurm, Open MPI or Kubernetes, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error
