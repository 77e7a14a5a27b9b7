"""Run several trainings at the same time, each in its own process with its share of the cores.

Compilation uses one core, and one small program does not fill a GPU, so several processes finish sooner than one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jaxbyz
from jaxbyz.runs.signals import signal_handler

# This package as a program, wherever it was imported from. Its folder comes last, to import nothing else from there.
JAXBYZ = (
    "-c",
    f"import sys; sys.path.append({str(Path(jaxbyz.__file__).parents[1])!r})\n"
    "from jaxbyz.cli import main\nsys.exit(main())",
)


def run_in_processes(
    commands: Mapping[str, Sequence[str]],
    jobs: int,
    log: Callable[[str], None],
    program: Sequence[str] = JAXBYZ,
) -> dict[str, str]:
    """Run `jaxbyz` with the arguments of each command, at most `jobs` at a time.

    If this process is interrupted or terminated, it terminates the others.

    Args:
        commands: name -> arguments.
        jobs: how many processes run at the same time.
        log: receives one line per finished command.
        program: what Python runs instead of `jaxbyz`, a script or a module.

    Returns:
        The commands that failed: name -> reason.
    """
    jobs = max(1, min(jobs, len(commands)))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    free_cores: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(jobs):
        free_cores.put(cores[i::jobs])
    running: set[subprocess.Popen] = set()

    def run(arguments: Sequence[str]) -> str | None:
        own_cores = free_cores.get()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", *program, *arguments],  # -P: nothing is imported from the current folder
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.add(process)
            if own_cores:  # with more jobs than cores, some processes are not bound to a core
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(process.pid, own_cores)
            messages = process.communicate()[1]
            running.discard(process)
        except OSError as error:
            return str(error)
        finally:
            free_cores.put(own_cores)
        return failure_reason(process.returncode, messages) if process.returncode else None

    failed = {}
    with signal_handler(_exit_with_exception, signal.SIGTERM), ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(run, arguments): name for name, arguments in commands.items()}
        try:
            for number, future in enumerate(as_completed(pending), 1):
                log(f"[{number}/{len(commands)}] {pending[future]}")
                if (reason := future.result()) is not None:
                    failed[pending[future]] = reason
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise
    return failed


def failure_reason(code: int, messages: str) -> str:
    """Return the last line of the messages that names an error, or else how the process ended."""
    if code < 0:
        return f"ended by signal {signal.Signals(-code).name}"
    lines = re.findall(r"^(?:jaxbyz: error: |[\w.]*(?:Error|Exception)\b).*", messages, re.MULTILINE)
    return lines[-1] if lines else f"ended with code {code}"


def _exit_with_exception(number: int, _: Any) -> None:
    """Handle a signal by raising, so that cleanup code runs before the process ends."""
    raise SystemExit(128 + number)
