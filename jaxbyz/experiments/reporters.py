"""Reporters, which are told about the progress of a run: the protocol, a group of several, and TensorBoard."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxbyz.errors import UsageError


class Progress(NamedTuple):
    """The state of a run after a segment.

    Attributes:
        iteration: the number of iterations so far.
        iterations: the number of iterations of the whole run.
        trajectories: the trajectories per agent of the first seed so far.
        honest_return: the return of the latest iteration, averaged over honest agents and seeds.
        steps: the environment steps of all agents and seeds so far.
        metrics: the n iterations of this segment, `[seeds, n]` by the names of metrics.npz (`shares` and `byzantine`:
            `[seeds, n, K]`); `trajectories` is cumulative.
    """

    iteration: int
    iterations: int
    trajectories: int
    honest_return: float
    steps: float
    metrics: dict[str, np.ndarray]


class Reporter(Protocol):
    """A context manager whose `update` is called after every segment of 20 iterations.

    It is entered after the options were checked, before compilation, and left when the run ends, with the exception if
    there was one. An exception in `update` ends the run.
    """

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> None: ...
    def update(self, progress: Progress) -> None: ...


class ReporterGroup:
    """Several reporters as one. All of them are left at the end, even if one fails."""

    def __init__(self, *reporters: Reporter):
        self.reporters = reporters
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> ReporterGroup:
        with contextlib.ExitStack() as stack:
            for reporter in self.reporters:
                stack.enter_context(reporter)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        self.stack.__exit__(*details)

    def update(self, progress: Progress) -> None:
        """Update all reporters."""
        for reporter in self.reporters:
            reporter.update(progress)


class TensorBoard:
    """Writes every metric of every iteration: the mean over seeds as `NAME`, and every seed as `seed-S/NAME`.

    The step is the number of trajectories per agent, the horizontal axis of the paper's figures; that of a mean is the
    number of the first seed.
    """

    def __init__(self, folder: str | Path, first_seed: int = 0):
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError:
            raise UsageError("TensorBoard needs the package tensorboardX: pip install 'jaxbyz[tensorboard]'") from None
        self.make_writer, self.folder, self.first_seed = SummaryWriter, Path(folder), first_seed

    def __enter__(self) -> TensorBoard:
        try:
            self.writer = self.make_writer(str(self.folder))
        except OSError as error:
            raise UsageError(f"tensorboard={self.folder}: cannot be written ({error.strerror})") from error
        return self

    def __exit__(self, *_: Any) -> None:
        self.writer.close()

    def update(self, progress: Progress) -> None:
        """Write the metrics of the segment."""
        trajectories = progress.metrics["trajectories"]
        for name, values in progress.metrics.items():
            if name == "trajectories" or values.ndim != 2:
                continue
            for step, mean in zip(trajectories[0], values.mean(axis=0), strict=True):
                self.writer.add_scalar(name, mean, int(step))
            for seed, row in enumerate(values if len(values) > 1 else ()):
                for step, value in zip(trajectories[seed], row, strict=True):
                    self.writer.add_scalar(f"seed-{self.first_seed + seed}/{name}", value, int(step))
        self.writer.flush()
