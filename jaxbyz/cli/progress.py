"""Progress on the terminal: a live bar where there is one, plain lines where there is none, silence on request."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from jaxbyz.experiments.reporters import Progress, Reporter


class Pace:
    """Steps a second and seconds left, counted from the first report on: what came before was mostly compilation."""

    def __init__(self) -> None:
        self.first: tuple[float, Progress] | None = None

    def __call__(self, progress: Progress) -> tuple[float, float] | None:
        """(environment steps a second, seconds left); None for the first report."""
        now = time.monotonic()
        if self.first is None:
            self.first = now, progress
            return None
        since, before = self.first
        spent, iterations = max(now - since, 1e-9), progress.iteration - before.iteration
        left = spent * (progress.iterations - progress.iteration) / max(iterations, 1)
        return (progress.steps - before.steps) / spent, left


class Silent:
    """Says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Nothing."""


class Lines:
    """One plain line at most every few seconds, for logs and pipes."""

    def __init__(self, total: int, every: float = 10.0):
        self.total, self.every, self.started, self.last = total, every, time.monotonic(), 0.0
        self.pace = Pace()

    def __enter__(self) -> Lines:
        print("compiling (some seconds; LunarLander a minute or two) …", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Print if it is time, or if this is the end."""
        now = time.monotonic()
        pace = self.pace(progress)
        if now - self.last < self.every and progress.iteration < progress.iterations:
            return
        self.last = now
        print(
            f"iteration {progress.iteration}/{progress.iterations}  {progress.trajectories}/{self.total} trajectories  "
            f"return {progress.honest_return:.1f}  {now - self.started:.0f} s"
            + ("" if pace is None else f"  {pace[0]:,.0f} steps/s  {pace[1]:.0f} s left"),
            file=sys.stderr,
            flush=True,
        )


class Bar:
    """A rich progress bar: iterations, trajectories, honest return, steps a second, time gone and left."""

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
        """Move the bar."""
        pace = self.pace(progress)
        self.bar.update(
            self.task,
            description=f"{progress.iteration}/{progress.iterations} iterations",
            total=progress.iterations,
            completed=progress.iteration,
            numbers=f"{progress.trajectories}/{self.total} trajectories  return [bold]{progress.honest_return:.1f}[/]"
            + ("" if pace is None else f"  {pace[0] / 1e6:.2f} M steps/s"),
            left="" if pace is None else f"{timedelta(seconds=round(pace[1]))} left",
        )


def make_progress(total: int, quiet: bool) -> Reporter:
    """The progress report that suits this terminal; `total` is trajectories per agent."""
    if quiet:
        return Silent()
    return Bar(total) if sys.stderr.isatty() else Lines(total)
