"""Who is told how a run goes: the protocol, several at once, and TensorBoard."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxbyz.errors import UsageError


class Progress(NamedTuple):
    """Where a run stands after a segment.

    iteration:     iterations done, of `iterations`
    trajectories:  sampled per agent so far
    honest_return: mean over seeds in the latest iteration
    steps:         environment steps of all agents and seeds so far
    metrics:       this segment, name -> [seeds, n] under the names of metrics.npz, `trajectories` cumulative
                   (shares, byzantine: [seeds, n, K])
    """

    iteration: int
    iterations: int
    trajectories: int
    honest_return: float
    steps: float
    metrics: dict[str, np.ndarray]


class Reporter(Protocol):
    """A context manager that is told after every segment (20 iterations).

    Entered when all options are in order and compilation begins; left when the run ends, with the exception if there
    was one. An `update` that raises ends the run.
    """

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> None: ...
    def update(self, progress: Progress) -> None: ...


class Together:
    """Several reporters as one; all are left, whichever fails."""

    def __init__(self, *reporters: Reporter):
        self.reporters = reporters
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Together:
        with contextlib.ExitStack() as stack:
            for reporter in self.reporters:
                stack.enter_context(reporter)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        self.stack.__exit__(*details)

    def update(self, progress: Progress) -> None:
        """Tell everyone."""
        for reporter in self.reporters:
            reporter.update(progress)


class TensorBoard:
    """Every metric of every iteration as a scalar: the mean over seeds as `NAME`, each seed as `seed-S/NAME`.

    The step is trajectories per agent, the paper's axis.
    """

    def __init__(self, folder: str | Path, first_seed: int = 0):
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError:
            raise UsageError("--tensorboard needs tensorboardX: pip install 'jaxbyz[tensorboard]'") from None
        self.open, self.folder, self.first_seed = SummaryWriter, Path(folder), first_seed

    def __enter__(self) -> TensorBoard:
        try:
            self.writer = self.open(str(self.folder))
        except OSError as error:
            raise UsageError(f"tensorboard={self.folder}: cannot be written ({error.strerror})") from error
        return self

    def __exit__(self, *_: Any) -> None:
        self.writer.close()

    def update(self, progress: Progress) -> None:
        """Write the segment."""
        spent = progress.metrics["trajectories"]
        for name, values in progress.metrics.items():
            if name == "trajectories" or values.ndim != 2:
                continue
            means = values.mean(axis=0)
            for i, mean in enumerate(means):
                self.writer.add_scalar(name, mean, int(spent[0, i]))
            for seed, row in enumerate(values if len(values) > 1 else ()):
                for step, value in zip(spent[seed], row, strict=True):
                    self.writer.add_scalar(f"seed-{self.first_seed + seed}/{name}", value, int(step))
        self.writer.flush()
