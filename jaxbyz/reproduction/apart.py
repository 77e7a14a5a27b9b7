"""Trainings side by side, each in a process of its own with its share of the cores.

Compilation runs on one core, and a GPU has room for many small programs: several processes use what one leaves idle.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed


def run_apart(commands: dict[str, Sequence[str]], jobs: int, say: Callable[[str], None]) -> dict[str, str]:
    """Run `jaxbyz` with each command's arguments, so many at a time; returns why those that failed did."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(jobs):
        shares.put(cores[i::jobs])
    # Processes that share a GPU may not each take most of its memory.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}

    def run(arguments: Sequence[str]) -> str | None:
        share = shares.get()
        command = [sys.executable, "-m", "jaxbyz", *arguments]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            if share:  # none left for it: wherever the system puts it
                os.sched_setaffinity(process.pid, share)
            messages = process.communicate()[1].strip().splitlines()
        shares.put(share)
        return (messages or [f"ended with {process.returncode}"])[-1] if process.returncode else None

    failed = {}
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(run, arguments): name for name, arguments in commands.items()}
        for number, future in enumerate(as_completed(running), 1):
            say(f"[{number}/{len(commands)}] {running[future]}")
            if (reason := future.result()) is not None:
                failed[running[future]] = reason
    return failed
