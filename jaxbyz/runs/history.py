"""What a run has measured so far: its metrics, which seeds are finite, and their last finite policies."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import Config
from jaxbyz.runs.reporters import Progress


class History:
    """The record of a run, extended after every segment.

    Attributes:
        parts: the metrics `[seeds, n]` of consecutive groups of iterations, each more than twice as long as the next.
        iterations: their number.
        trajectories: `[seeds, 1]`, trajectories per agent so far.
        latest: the metrics that were added last, by name, with cumulative `trajectories`.
        finite: `[seeds]`, whether a seed has been finite throughout.
        policy: as in `RunData`.
        steps: the environment steps of all agents and seeds.
    """

    def __init__(self, config: Config):
        self.config = config
        self.parts: list[Metrics] = []
        self.iterations = 0
        self.trajectories = np.zeros((config.seeds, 1), np.int64)
        self.latest: dict[str, np.ndarray] = {}
        self.finite = np.ones(config.seeds, bool)
        self.policy: dict[str, np.ndarray] = {}
        self.steps = 0.0

    def add(self, metrics: Metrics, policies: Mapping[str, np.ndarray]) -> None:
        """Append the metrics `[seeds, n]` of the next n iterations, after which the policies are these."""
        self.latest = with_trajectories(metrics)
        self.latest["trajectories"] += self.trajectories
        self.trajectories = self.latest["trajectories"][:, -1:]
        self.iterations += metrics.returns.shape[1]
        self.parts.append(jax.tree.map(np.asarray, metrics))
        while len(self.parts) > 1 and self.parts[-2].returns.shape[1] < 2 * self.parts[-1].returns.shape[1]:
            self.parts[-2:] = [_joined(self.parts[-2:])]  # few parts, and every iteration is copied a few times only
        self.steps += environment_steps(self.config, metrics)
        self.finite &= np.all(metrics.finite, axis=1)
        if self.finite.any():
            self.policy = {
                name: np.where(self.finite[:, None, None], values, self.policy.get(name, np.float32(np.nan)))
                for name, values in policies.items()
            }

    def merge(self) -> Metrics:
        """Join all parts into one and return it."""
        self.parts = [_joined(self.parts)]
        return self.parts[0]

    def mean_return(self, window: int) -> float:
        """Return the mean honest return of the last `window` trajectories per agent, averaged over seeds.

        -inf if a seed has not sampled as many yet.
        """
        last: list[Metrics] = []
        for part in reversed(self.parts):
            last.insert(0, jax.tree.map(lambda values: values[:, -window:], part))
            if last[0].batch.shape[1] == window:
                break
        recent = _joined(last)
        rest = np.cumsum(recent.batch[:, ::-1], axis=1)[:, ::-1] - recent.batch  # sampled after each iteration
        weight = np.clip(window - rest, 0, recent.batch)
        if (self.trajectories < window).any():
            return -np.inf
        return float(np.mean(np.sum(recent.returns * weight, axis=1) / window))

    def metrics(self) -> dict[str, np.ndarray]:
        """Return all metrics by name, with the cumulative number of trajectories per agent as `trajectories`."""
        return with_trajectories(self.merge())

    def progress(self, iterations: int) -> Progress:
        """Return what reporters are told after a segment of a run of this many iterations."""
        latest = self.latest
        return Progress(
            iteration=self.iterations,
            iterations=iterations,
            trajectories=int(latest["trajectories"][0, -1]),  # of the first seed
            honest_return=float(np.mean(latest["returns"][:, -1])),
            steps=self.steps,
            metrics=latest,
            policy=self.policy,
        )


def _joined(parts: list[Metrics]) -> Metrics:
    """Join the metrics of consecutive iterations."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)


def with_trajectories(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return metrics by name, with the cumulative number of trajectories per agent."""
    arrays = {name: np.asarray(values) for name, values in metrics._asdict().items()}
    return {**arrays, "trajectories": np.cumsum(arrays["batch"], axis=1)}


def environment_steps(config: Config, metrics: Metrics) -> float:
    """Estimate the steps of all agents and seeds in these iterations from the mean length of honest episodes."""
    server_only = config.server_samples_alone & (np.asarray(metrics.coin) == 0)
    return float(np.sum(metrics.length * metrics.batch * np.where(server_only, 1, config.agents)))
