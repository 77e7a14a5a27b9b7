"""What must happen before JAX starts: host devices, XLA flags, and the cache of programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys

import jax

from jaxbyz.accelerate.platform import on_cpu

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

# On a GPU, XLA looks for normalisations of rows that one Triton kernel could compute, and searches for a tiling
# whenever it considers fusing something with one. That is two thirds to four fifths of the time it takes to compile a
# training step.
NO_TILING_SEARCH = "--xla_disable_hlo_passes=triton-softmax-rewriter"

# On a GPU, XLA times several kernels and takes the fastest, so a program that is compiled anew may round otherwise.
# These flags take the first kernel, and only those that add numbers in a fixed order.
REPEATABLE = ("--xla_gpu_autotune_level=0", "--xla_gpu_deterministic_ops=true")


WRITABLE = stat.S_IWGRP | stat.S_IWOTH  # by others than the owner


def set_flags() -> None:
    """Add our XLA flags to the environment, except those that are set already. Call it before JAX starts."""
    given = os.environ.get("XLA_FLAGS", "")
    repeatable = REPEATABLE if os.environ.get("JAXBYZ_DETERMINISTIC", "0") != "0" else ()
    flags = (*LONG_WAITS, FUSED_SMALL_LOOPS, WIDE_VECTORS, LESS_OPTIMISATION, NO_TILING_SEARCH, *repeatable)
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
    if (problem := cache_problem(jax.config.values["jax_compilation_cache_dir"])) is not None:
        print(f"jaxbyz: {problem}; programs are not cached", file=sys.stderr)
        jax.config.update("jax_compilation_cache_dir", None)


def cache_problem(folder: str) -> str | None:
    """Create the folder of compiled programs, readable by its owner only; return why it must not be used, or None.

    Programs in the cache are run, so nobody else may be able to put one there.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        return f"cache {folder}: cannot be used ({error.strerror})"
    if status.st_uid not in (os.geteuid(), 0):
        return f"cache {folder}: belongs to another user"
    if status.st_mode & WRITABLE:
        return f"cache {folder}: other users can write to it (chmod go-w {folder})"
    if status.st_mode & (stat.S_IXGRP | stat.S_IXOTH) and (found := _writable_inside(folder)) is not None:
        return f"cache {folder}: other users could write to {found} (chmod 700 {folder})"
    return None


def _writable_inside(folder: str) -> str | None:
    """Return what others can write to in a folder that they can enter; None if there is nothing and never will be."""
    umask = os.umask(0)
    os.umask(umask)
    if WRITABLE & ~umask:
        return f"programs that are stored there, with the umask {umask:03o}"
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                if not stat.S_ISLNK(mode := os.lstat(path := os.path.join(parent, name)).st_mode) and mode & WRITABLE:
                    return path
    return None
