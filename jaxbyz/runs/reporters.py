"""Reporters, which are told about the progress of a run: the protocol, a group of several, and TensorBoard."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.files import reason


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
        policy: the policies so far, as in `RunData`.
        evaluation: `[seeds]`, mean returns of fresh episodes, if the policy was evaluated after this segment.
    """

    iteration: int
    iterations: int
    trajectories: int
    honest_return: float
    steps: float
    metrics: dict[str, np.ndarray]
    policy: Mapping[str, np.ndarray] = MappingProxyType({})
    evaluation: np.ndarray | None = None


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

    `log` receives a line if writing fails while the run is in progress.

    The step is the number of trajectories per agent, the horizontal axis of the paper's figures; that of a mean is the
    number of the first seed.
    """

    def __init__(self, folder: str | Path, first_seed: int = 0, log: Callable[[str], None] = warnings.warn):
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ModuleNotFoundError:
            raise UsageError("TensorBoard needs the package tensorboardX: pip install 'jaxbyz[tensorboard]'") from None
        self.make_writer, self.folder, self.first_seed = EventsWriter, Path(folder), first_seed
        self.log, self.failed = log, False

    def __enter__(self) -> TensorBoard:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.writer = self.make_writer(str(self.folder / "events"))
        except OSError as error:
            raise UsageError(f"tensorboard={self.folder}: cannot be written ({reason(error)})") from error
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):
            self.writer.close()

    def update(self, progress: Progress) -> None:
        """Write the metrics of the segment. If the disk is full, the run goes on without TensorBoard."""
        if self.failed:
            return
        try:
            self._write(progress)
        except OSError as error:
            self.failed = True
            self.log(f"tensorboard={self.folder}: cannot be written ({reason(error)}); the run goes on without it")

    def _write(self, progress: Progress) -> None:
        trajectories = progress.metrics["trajectories"]
        for name, values in progress.metrics.items():
            if name == "trajectories" or values.ndim != 2:
                continue
            for step, mean in zip(trajectories[0], values.mean(axis=0), strict=True):
                self._add(name, mean, step)
            for seed, row in enumerate(values if len(values) > 1 else ()):
                for step, value in zip(trajectories[seed], row, strict=True):
                    self._add(f"seed-{self.first_seed + seed}/{name}", value, step)
        if progress.evaluation is not None:
            self._add("evaluation/returns", np.nanmean(progress.evaluation), trajectories[0, -1])
        self.writer.flush()

    def _add(self, name: str, value: Any, step: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        self.writer.write_event(Event(wall_time=time.time(), step=int(step), summary=scalar(name, float(value))))
