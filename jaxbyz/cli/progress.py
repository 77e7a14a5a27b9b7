"""Progress on the terminal: a live bar where there is one, plain lines where there is none, silence on request."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol


class Progress(Protocol):
    """What training reports to: entered once, told after every segment."""

    def __enter__(self) -> Progress: ...
    def __exit__(self, *_: object) -> None: ...
    def update(self, trajectories: int, honest_return: float, steps: float) -> None: ...


class Silent:
    """Says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, trajectories: int, honest_return: float, steps: float) -> None:
        """Nothing."""


class Lines:
    """One plain line at most every few seconds, for logs and pipes."""

    def __init__(self, total: int, every: float = 10.0):
        self.total, self.every, self.started, self.last = total, every, time.monotonic(), 0.0

    def __enter__(self) -> Lines:
        print("compiling …", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, trajectories: int, honest_return: float, steps: float) -> None:
        """Print if it is time, or if this is the end."""
        now = time.monotonic()
        if now - self.last < self.every and trajectories < self.total:
            return
        self.last = now
        spent = now - self.started
        left = spent * (self.total - trajectories) / max(trajectories, 1)
        print(
            f"{trajectories}/{self.total} trajectories  return {honest_return:.1f}  "
            f"{steps / max(spent, 1e-9):,.0f} steps/s  {spent:.0f} s  {max(left, 0):.0f} s left",
            file=sys.stderr,
            flush=True,
        )


class Bar:
    """A rich progress bar: trajectories, honest return, steps a second, time left."""

    def __init__(self, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.total, self.started = total, time.monotonic()
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("return [bold]{task.fields[honest_return]}"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Bar:
        self.bar.start()
        self.task: Any = self.bar.add_task("compiling", total=self.total, honest_return="–", speed="")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, trajectories: int, honest_return: float, steps: float) -> None:
        """Move the bar."""
        rate = steps / max(time.monotonic() - self.started, 1e-9)
        self.bar.update(
            self.task,
            description="trajectories",
            completed=min(trajectories, self.total),
            honest_return=f"{honest_return:.1f}",
            speed=f"{rate / 1e6:.2f} M steps/s",
        )


def make_progress(total: int, quiet: bool) -> Progress:
    """The progress report that suits this terminal."""
    if quiet:
        return Silent()
    return Bar(total) if sys.stderr.isatty() else Lines(total)
