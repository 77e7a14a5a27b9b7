"""Evaluate the policy of a run every so often while it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, write_arrays
from jaxbyz.runs.reporters import Progress, Reporter
from jaxbyz.runs.run_folder import EVALUATIONS
from jaxbyz.trained.evaluation import evaluate

EVALUATION_SEED = 10_000


class PeriodicEvaluation:
    """A reporter that plays fresh episodes with the policy of the first agent, and tells another reporter.

    It evaluates after the first segment that reaches a multiple of `every` iterations, and at the end. The episodes are
    the same ones every time, so that differences between evaluations are differences between policies.

    Attributes:
        iterations: `[n]`, after which iterations the policy was evaluated.
        returns: `[n, seeds]`, mean returns.
    """

    def __init__(
        self,
        config: Config,
        every: int,
        episodes: int = 20,
        *,
        greedy: bool = False,
        folder: str | Path | None = None,
        reporter: Reporter | None = None,
    ):
        """Prepare the evaluation of a run.

        Args:
            config: the configuration of the run.
            every: iterations between two evaluations.
            episodes: the number of episodes per seed.
            greedy: take the most likely actions instead of drawing them.
            folder: the run folder, where evaluations.npz is kept; earlier evaluations in it are continued.
            reporter: receives every `Progress`, with the evaluation if there was one.
        """
        for name, value in (("evaluate_every", every), ("evaluate_episodes", episodes)):
            if type(value) is not int or value < 1:
                raise UsageError(f"{name}={value}: must be a whole number of at least 1")
        self.config, self.every, self.episodes, self.greedy = config, every, episodes, greedy
        self.folder, self.reporter = None if folder is None else Path(folder), reporter
        self.iterations: list[int] = []
        self.returns: list[np.ndarray] = []

    def __enter__(self) -> PeriodicEvaluation:
        if self.folder is not None and (self.folder / EVALUATIONS).exists():
            stored = read_arrays(self.folder / EVALUATIONS)
            self.iterations, self.returns = stored["iteration"].tolist(), list(stored["returns"])
        if self.reporter is not None:
            self.reporter.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self.reporter is not None:
            self.reporter.__exit__(*details)

    def update(self, progress: Progress) -> None:
        """Evaluate if it is time, and pass the progress on."""
        if self._due(progress) and progress.policy:
            progress = progress._replace(evaluation=self._evaluate(progress))
        if self.reporter is not None:
            self.reporter.update(progress)

    def _due(self, progress: Progress) -> bool:
        """Return whether a multiple of `every` was reached since the last evaluation, or the run ends."""
        done = progress.iteration
        while self.iterations and self.iterations[-1] > done:  # of a session that ended without a checkpoint
            self.iterations.pop()
            self.returns.pop()
        last = self.iterations[-1] if self.iterations else 0
        return done > last and (done // self.every > last // self.every or done == progress.iterations)

    def _evaluate(self, progress: Progress) -> np.ndarray:
        """Play, remember and return the mean returns `[seeds]`; NaN for a seed without a finite policy."""
        parameters = progress.policy["last"][:, 0]
        played = evaluate(self.config, parameters, self.episodes, EVALUATION_SEED, self.greedy)["returns"].mean(axis=1)
        returns = np.where(np.isfinite(parameters).all(axis=1), played, np.nan)
        self.iterations.append(progress.iteration)
        self.returns.append(returns)
        if self.folder is not None:
            write_arrays(
                self.folder / EVALUATIONS, {"iteration": np.array(self.iterations), "returns": np.stack(self.returns)}
            )
        return returns
