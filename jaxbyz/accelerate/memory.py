"""How much memory the device that computes has left, and memory that a compiler leaves behind."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import jax

from jaxbyz.accelerate.platform import on_cpu

CGROUP = Path("/sys/fs/cgroup")  # limits of a container, in files of control groups version 2


def available_memory() -> int | None:
    """Return the bytes that programs may still allocate on one device; None if that is not known."""
    if not on_cpu():
        stats = jax.local_devices()[0].memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None
    known = [size for size in (_free_memory(), _left_in_container()) if size is not None]
    return min(known, default=None)


def return_free_memory() -> None:
    """Give memory that is no longer used back to the system, where the C library is able to (glibc).

    A compiler leaves many small gaps behind, which the C library would keep for the whole training.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _free_memory() -> int | None:
    """Return the memory that Linux says is available."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _left_in_container() -> int | None:
    """Return the memory that the container's limit leaves."""
    try:
        return max(0, int((CGROUP / "memory.max").read_text()) - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no limit, or no control groups
        return None
