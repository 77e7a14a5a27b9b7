"""Progress of a run: a live bar in a terminal, plain lines in logs and pipes, or nothing."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from jaxbyz.runs.reporters import Progress, Reporter, ReporterGroup

Describe = Callable[[Progress], str]


class Pace:
    """Speed and remaining time as they are now: over the last seconds, so that they follow the load of the machine.

    Compilation, which comes before the first report, does not count.
    """

    def __init__(self, seconds: float = 30.0):
        self.seconds = seconds
        self.recent: deque[tuple[float, int, float]] = deque()  # time, iterations and steps so far

    def __call__(self, progress: Progress) -> tuple[float, float] | None:
        """Return environment steps per second and the remaining seconds, or None for the first report."""
        now = time.monotonic()
        self.recent.append((now, progress.iteration, progress.steps))
        while len(self.recent) > 2 and self.recent[1][0] <= now - self.seconds:
            self.recent.popleft()
        since, iteration, steps = self.recent[0]
        if iteration == progress.iteration:
            return None
        elapsed = max(now - since, 1e-9)
        left = elapsed * (progress.iterations - progress.iteration) / (progress.iteration - iteration)
        return (progress.steps - steps) / elapsed, left


class WorkLeft:
    """Describes how far a sweep is, and how long it will take at the speed that it has had so far.

    Attributes:
        work: the trajectories of every member that is not finished, over all seeds.
    """

    def __init__(self, work: dict[str, int]):
        self.work, self.started = work, time.monotonic()
        self.current: list[str] = []
        self.begun: list[str] = []

    def begin(self, names: Sequence[str]) -> None:
        """Note that the members so far have ended, and that these are trained now."""
        self.begun += self.current
        self.current = [name for name in names if name in self.work]

    def __call__(self, progress: Progress) -> str:
        """Return, for example, `3 of 9 members done, about 120 s left in all`."""
        total, before, now = (sum(self.work[name] for name in names) for names in (self.work, self.begun, self.current))
        done = before + now * progress.iteration / progress.iterations
        seconds = (time.monotonic() - self.started) * (total - done) / max(done, 1)
        return f"{len(self.begun)} of {len(self.work)} members done, about {seconds:.0f} s left in all"


class Lines:
    """Prints one plain line every few seconds at most."""

    def __init__(self, total: int, every: float = 10.0, more: Describe | None = None):
        self.more = more
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
        time_used = (
            f"{now - self.started:.0f} s so far" if pace is None else f"{pace[0]:,.0f} steps/s, {pace[1]:.0f} s left"
        )
        more = "" if self.more is None else f"; sweep: {self.more(progress)}"
        print(
            f"{progress.trajectories} of {max(self.total, progress.trajectories)} trajectories per agent, "
            f"return {progress.honest_return:.1f}, {time_used}{more}",
            file=sys.stderr,
            flush=True,
        )


class Bar:
    """Shows a bar with trajectories per agent, honest return, speed, elapsed and remaining time, within 80 columns."""

    def __init__(self, total: int, more: Describe | None = None):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.total, self.pace, self.more = total, Pace(), more
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
        if self.more is not None:
            self.sweep: Any = self.bar.add_task("sweep", total=None, numbers="", left="", visible=True)
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def update(self, progress: Progress) -> None:
        """Advance the bar."""
        pace = self.pace(progress)
        self.bar.update(
            self.task,
            description=f"{progress.trajectories}/{max(self.total, progress.trajectories)} trajectories per agent",
            total=progress.iterations,
            completed=progress.iteration,
            numbers=f"return [bold]{progress.honest_return:.1f}[/]"
            + ("" if pace is None else f"  {pace[0] / 1e6:.2f} M steps/s"),
            left="" if pace is None else f"{timedelta(seconds=round(pace[1]))} left",
        )
        if self.more is not None:
            self.bar.update(self.sweep, description=f"sweep: {self.more(progress)}")


def someone_watches() -> bool:
    """Whether standard error is read by a person: in a terminal or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def make_progress(total: int, quiet: bool, more: Describe | None = None) -> Reporter:
    """Return the reporter that suits standard error.

    Args:
        total: the number of trajectories per agent.
        quiet: whether nothing is to be printed.
        more: describes how far the sweep is that the run belongs to.
    """
    if quiet:
        return ReporterGroup()
    return Bar(total, more) if sys.stderr.isatty() else Lines(total, more=more)
