"""What must be set before JAX starts: host devices, XLA flags, and the cache of compiled programs."""

from __future__ import annotations

import os

import jax

from jaxbyz.accelerate.platform import on_cpu

# XLA ends a process whose host devices have waited 40 s for each other. Episodes differ in length, so allow more.
LONG_WAITS = " ".join(
    f"--xla_cpu_collective_call_{what}_timeout_seconds={seconds}"
    for what, seconds in (("warn_stuck", 3600), ("terminate", 86400))
)
# On a CPU, XLA runs a loop as a list of calls with a fixed cost each. This flag compiles every loop that touches fewer
# bytes per iteration into one function. LunarLander's solver is three times faster with it.
FUSED_SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=500000"
# By default XLA uses half of a CPU's widest vector registers. Sorting networks are twice as fast with all of them.
WIDE_VECTORS = "--xla_cpu_prefer_vector_width=512"


def set_flags() -> None:
    """Add our XLA flags to the environment, except those that the user has set. Call it before JAX starts."""
    given = os.environ.get("XLA_FLAGS", "")
    ours = [flags for flags in (LONG_WAITS, FUSED_SMALL_LOOPS, WIDE_VECTORS) if flags.partition("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *ours]).strip()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


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
