"""Trainings side by side, each in a process of its own with its share of the cores.

Compilation runs on one core, and a GPU has room for many small programs: several processes use what one leaves idle.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from jaxbyz.experiments import signals


def run_apart(commands: dict[str, Sequence[str]], jobs: int, say: Callable[[str], None]) -> dict[str, str]:
    """Run `jaxbyz` with each command's arguments, so many at a time; returns why those that failed did.

    When this process is interrupted or told to end, so are they.
    """
    jobs = max(1, min(jobs, len(commands)))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(jobs):
        shares.put(cores[i::jobs])
    running: set[subprocess.Popen] = set()

    def run(arguments: Sequence[str]) -> str | None:
        share = shares.get()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "jaxbyz", *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.add(process)
            if share:  # none left for it: wherever the system puts it
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(process.pid, share)
            messages = process.communicate()[1]
            running.discard(process)
        except OSError as error:
            return str(error)
        finally:
            shares.put(share)
        return reason(process.returncode, messages) if process.returncode else None

    failed = {}
    with signals.handled(_end, signal.SIGTERM), ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(run, arguments): name for name, arguments in commands.items()}
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                say(f"[{number}/{len(commands)}] {waiting[future]}")
                if (why := future.result()) is not None:
                    failed[waiting[future]] = why
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise
    return failed


def reason(code: int, messages: str) -> str:
    """The last line that names an error, or else how the process ended."""
    if code < 0:
        return f"ended by signal {signal.Signals(-code).name}"
    lines = re.findall(r"^(?:jaxbyz: error: |[\w.]*(?:Error|Exception)\b).*", messages, re.MULTILINE)
    return lines[-1] if lines else f"ended with code {code}"


def _end(number: int, _: Any) -> None:
    """End this process as an exception does, not at once."""
    raise SystemExit(128 + number)
