"""Progress of a run: a live bar in a terminal, plain lines in logs and pipes, or nothing."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from jaxbyz.runs.reporters import Progress, Reporter, ReporterGroup


class Pace:
    """Speed and remaining time, measured from the first report on to exclude compilation."""

    def __init__(self) -> None:
        self.first: tuple[float, Progress] | None = None

    def __call__(self, progress: Progress) -> tuple[float, float] | None:
        """Return environment steps per second and the remaining seconds, or None for the first report."""
        now = time.monotonic()
        if self.first is None:
            self.first = now, progress
            return None
        since, before = self.first
        elapsed, iterations = max(now - since, 1e-9), progress.iteration - before.iteration
        left = elapsed * (progress.iterations - progress.iteration) / max(iterations, 1)
        return (progress.steps - before.steps) / elapsed, left


class Lines:
    """Prints one plain line every few seconds at most."""

    def __init__(self, total: int, every: float = 10.0):
        self.total, self.every, self.started, self.last = total, every, time.monotonic(), 0.0
        self.pace = Pace()

    def __enter__(self) -> Lines:
        print("compiling, or loading what was compiled before …", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Print a line if the last one is old enough, or at the end."""
        now = time.monotonic()
        pace = self.pace(progress)
        if now - self.last < self.every and progress.iteration < progress.iterations:
            return
        self.last = now
        print(
            f"{progress.trajectories}/{self.total} trajectories  return {progress.honest_return:.1f}  "
            f"{now - self.started:.0f} s" + ("" if pace is None else f"  {pace[0]:,.0f} steps/s  {pace[1]:.0f} s left"),
            file=sys.stderr,
            flush=True,
        )


class Bar:
    """Shows a bar with trajectories per agent, honest return, speed, elapsed and remaining time, within 80 columns."""

    def __init__(self, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.total, self.pace = total, Pace()
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            expand=True,
        )

    def __enter__(self) -> Bar:
        self.bar.start()
        self.task: Any = self.bar.add_task("compiling", total=None, numbers="", left="")
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def update(self, progress: Progress) -> None:
        """Advance the bar."""
        pace = self.pace(progress)
        self.bar.update(
            self.task,
            description=f"{progress.trajectories}/{self.total}",
            total=progress.iterations,
            completed=progress.iteration,
            numbers=f"return [bold]{progress.honest_return:.1f}[/]"
            + ("" if pace is None else f"  {pace[0] / 1e6:.2f} M steps/s"),
            left="" if pace is None else f"{timedelta(seconds=round(pace[1]))} left",
        )


def someone_watches() -> bool:
    """Whether standard error is read by a person: in a terminal or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def make_progress(total: int, quiet: bool) -> Reporter:
    """Return the reporter that suits standard error; `total` is the number of trajectories per agent."""
    if quiet:
        return ReporterGroup()
    return Bar(total) if sys.stderr.isatty() else Lines(total)
