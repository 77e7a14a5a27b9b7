"""Reporters for Weights & Biases and MLflow. Both log the mean over seeds of every metric of every iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.experiments.config import Config
from jaxbyz.experiments.reporters import Progress
from jaxbyz.experiments.resolving import to_dict

EVALUATION = "evaluation/returns"


def rows(progress: Progress) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the trajectories per agent of the first seed and the metrics, mean over seeds, of every iteration.

    Metrics that are not finite are left out, because services refuse them. The last row has the evaluation, if there
    was one.
    """
    steps = progress.metrics["trajectories"][0]
    means = {
        name: values.mean(axis=0)
        for name, values in progress.metrics.items()
        if values.ndim == 2 and name != "trajectories"
    }
    for i, step in enumerate(steps):
        row = {name: float(values[i]) for name, values in means.items() if np.isfinite(values[i])}
        if progress.evaluation is not None and i == len(steps) - 1 and np.isfinite(progress.evaluation).any():
            row[EVALUATION] = float(np.nanmean(progress.evaluation))
        yield int(step), row


class WeightsAndBiases:
    """Logs a run to Weights & Biases, with the options of the run as its configuration."""

    def __init__(self, config: Config, project: str, name: str | None = None, tags: Sequence[str] = ()):
        try:
            import wandb
        except ModuleNotFoundError:
            raise UsageError("Weights & Biases needs the package wandb: pip install 'jaxbyz[wandb]'") from None
        self.wandb, self.options = wandb, {"project": project, "name": name, "tags": list(tags)}
        self.config = config

    def __enter__(self) -> WeightsAndBiases:
        self.run = self.wandb.init(config=to_dict(self.config), **self.options)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.run.finish(exit_code=int(kind is not None))

    def update(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent."""
        for step, row in rows(progress):
            self.run.log(row, step=step)


class MLflow:
    """Logs a run to MLflow, with the options of the run as its parameters.

    Where to is decided by MLflow's own settings, such as the variable MLFLOW_TRACKING_URI.
    """

    def __init__(self, config: Config, experiment: str, name: str | None = None, tags: Sequence[str] = ()):
        try:
            import mlflow
        except ModuleNotFoundError:
            raise UsageError("MLflow needs the package mlflow: pip install 'jaxbyz[mlflow]'") from None
        self.mlflow, self.experiment, self.name = mlflow, experiment, name
        self.config, self.tags = config, dict.fromkeys(tags, "true")

    def __enter__(self) -> MLflow:
        self.mlflow.set_experiment(self.experiment)
        self.mlflow.start_run(run_name=self.name, tags=self.tags)
        self.mlflow.log_params(to_dict(self.config))
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.mlflow.end_run("FINISHED" if kind is None else "FAILED")

    def update(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent."""
        for step, row in rows(progress):
            self.mlflow.log_metrics(row, step=step)
