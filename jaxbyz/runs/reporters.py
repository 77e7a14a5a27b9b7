"""Reporters, which are told about the progress of a run: the protocol, and a group of several."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np


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
