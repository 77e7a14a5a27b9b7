"""What programs are traced for: some are written differently for a CPU and for a GPU."""

from __future__ import annotations

import os
from typing import Any

import jax


def on_cpu() -> bool:
    """Whether programs are traced for a CPU."""
    return _device().platform == "cpu"


def kernels_run() -> bool:
    """Whether programs are traced for a GPU that runs Triton's kernels: NVIDIA's from Ampere on."""
    device = _device()
    capability = str(getattr(device, "compute_capability", ""))
    return device.platform == "gpu" and capability[:1].isdigit() and float(capability) >= 8.0


# XLA ends a process whose host devices wait 40 s for each other. Agents' episodes need not be equally long.
PATIENCE = " ".join(
    f"--xla_cpu_collective_call_{what}_timeout_seconds={seconds}"
    for what, seconds in (("warn_stuck", 3600), ("terminate", 86400))
)
# On a CPU a loop is a list of calls, each with its own cost. One that touches fewer bytes a turn becomes one function:
# LunarLander's solver is three times faster so.
SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=500000"
# XLA uses half of a CPU's widest registers by default. Sorting networks are twice as fast with all of them.
WIDE = "--xla_cpu_prefer_vector_width=512"


def set_flags() -> None:
    """Before JAX starts: host devices wait for each other as long as it takes, small loops are compiled whole, and
    the widest registers are used."""
    given = os.environ.get("XLA_FLAGS", "")
    ours = [flags for flags in (PATIENCE, SMALL_LOOPS, WIDE) if flags.partition("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *ours]).strip()


def available_cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def prepare() -> None:
    """What the command line does before JAX starts: one host device a core, XLA's flags (`set_flags`), and compiled
    programs are kept between runs. Call it first in a script of your own; once JAX runs, only the last is done."""
    try:
        jax.config.update("jax_num_cpu_devices", available_cores())
    except RuntimeError:  # JAX has started already, in a notebook or a test: take it as it is
        pass
    else:
        set_flags()
    if jax.config.values.get("jax_compilation_cache_dir") is None:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(root, "jaxbyz"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # there are dozens of small ones


def patient() -> bool:
    """Whether host devices wait for each other."""
    return "collective_call" in os.environ.get("XLA_FLAGS", "")


def small_loops_are_whole() -> bool:
    """Whether programs are traced for a CPU and XLA makes one function of a small loop."""
    return on_cpu() and "small_while_loop" in os.environ.get("XLA_FLAGS", "")


def _device() -> Any:
    """The device that JAX would put an array on."""
    chosen = jax.config.values.get("jax_default_device")
    if isinstance(chosen, str):
        return jax.devices(chosen)[0]
    return chosen if chosen is not None else jax.devices()[0]
