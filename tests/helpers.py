"""Helpers that several test files share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
needs_results = pytest.mark.skipif(not RESULTS.exists(), reason="an sdist does not contain the results")
longest_seconds = 600.0  # for a process of a test; set before each test from the limit of the test
started: list[tuple[subprocess.Popen, threading.Timer]] = []  # by the current test
# From linux/capability.h. Without these two capabilities, the permissions of a file count for root as for everyone.
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAPABILITY_VERSION_3 = 1, 2, 0x20080522


@contextlib.contextmanager
def held_to_permissions():
    """Let the permissions of files count in this thread, even if the tests run as root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable capabilities, then those numbered from 32
    assert libc.capget(header, before) == 0, os.strerror(ctypes.get_errno())
    without = (ctypes.c_uint32 * 6)(*before)
    without[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(header, without) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0, os.strerror(ctypes.get_errno())


class StopAt:
    """A reporter that sends this process a signal once, when a run reaches an iteration."""

    def __init__(self, iteration: int, number: int = signal.SIGTERM):
        self.iteration, self.number, self.sent = iteration, number, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def update(self, progress):
        if progress.iteration >= self.iteration and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self.number)


def flags(options: dict) -> list[str]:
    """Options of `Config` as command-line arguments."""

    def text(value):
        return ",".join(map(str, value)) if isinstance(value, tuple) else value

    return [f"--{name.replace('_', '-')}={text(value)}" for name, value in options.items()]


def spawn(*arguments: str, **environment: str) -> subprocess.Popen:
    """Start Python with the compilation cache of these tests; standard error goes to standard output.

    Nobody waits for it for ever: it is killed with the processes that it started shortly before pytest would end the
    test, so that every read from it ends, and after the test (`tests/conftest.py`).
    """
    settings = {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **settings, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(longest_seconds, kill, [process])
    watchdog.daemon = True
    watchdog.start()
    started.append((process, watchdog))
    return process


def kill(process: subprocess.Popen) -> None:
    """Kill a process that `spawn` started, and those that it started, unless it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def end_processes() -> None:
    """Kill what is left of the processes that `spawn` started."""
    while started:
        process, watchdog = started.pop()
        watchdog.cancel()
        kill(process)
        process.wait()
        process.stdout.close()


def finish(process: subprocess.Popen, code: int = 0) -> str:
    """Wait for a process, check its exit code, and return its output."""
    output, _ = process.communicate()
    assert process.returncode == code, output
    return output


def assert_same_run(a, b) -> None:
    """Two experiments have bitwise equal metrics and policies."""
    for one, other in ((a.metrics, b.metrics), (a.policy, b.policy)):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def cuda_kernels_in(function, *args) -> int:
    """The number of Triton kernels in the program of a function, lowered for a GPU that need not be there."""
    try:
        program = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",))
    except RuntimeError as error:
        if "No supported GPU devices found" not in str(error):
            raise
        pytest.skip("this version of JAX lowers Triton kernels only where there is a GPU")
    return program.as_text().count("__gpu$xla.gpu.triton")
