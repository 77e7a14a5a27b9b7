"""Reporters for Weights & Biases and MLflow. Both log the mean over seeds of every metric of every iteration."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError, first_line
from jaxbyz.runs.reporters import Progress

EVALUATION = "evaluation/returns"
LARGEST_BATCH = 1000  # metrics in one call of MLflow, which refuses more


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


class ServiceLogger:
    """A reporter for a service, the base of `WeightsAndBiases` and `MLflow`.

    A service that cannot be opened is an error of the user. One that fails later does not end the run, which goes on
    without it; `log` receives a line.
    """

    option = ""  # of the command line

    def __init__(
        self,
        config: Config,
        target: str,
        name: str | None = None,
        tags: Sequence[str] = (),
        log: Callable[[str], None] = warnings.warn,
    ):
        self.config, self.target, self.name, self.tags = config, target, name, tags
        self.log, self.failed = log, False

    def open(self) -> None:
        """Start a run of the service."""
        raise NotImplementedError

    def write(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent."""
        raise NotImplementedError

    def close(self, failed: bool) -> None:
        """End the run of the service."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.open()
        except Exception as error:  # whatever the service raises: its settings, the network, its files
            raise UsageError(f"{self.option}={self.target}: cannot be opened ({_shown(error)})") from error
        return self

    def update(self, progress: Progress) -> None:
        """Log the iterations of a segment, unless the service failed before."""
        if not self.failed:
            self._try(lambda: self.write(progress), "; the run goes on without it")

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._try(lambda: self.close(kind is not None))

    def _try(self, action: Callable[[], None], consequence: str = "") -> None:
        try:
            action()
        except Exception as error:
            self.failed = True
            self.log(f"{self.option}={self.target}: failed ({_shown(error)}){consequence}")


def _shown(error: Exception) -> str:
    """Return the beginning of an error's message."""
    return first_line(error)[:300]


class WeightsAndBiases(ServiceLogger):
    """Logs a run to the project `target` of Weights & Biases, with the options of the run as its configuration."""

    option = "wandb"

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        try:
            import wandb
        except ModuleNotFoundError:
            raise UsageError("Weights & Biases needs the package wandb: pip install 'jaxbyz[wandb]'") from None
        self.wandb = wandb

    def open(self) -> None:
        """Start a run of the project."""
        self.run = self.wandb.init(
            project=self.target, name=self.name, tags=list(self.tags), config=to_dict(self.config)
        )

    def write(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent."""
        for step, row in rows(progress):
            self.run.log(row, step=step)

    def close(self, failed: bool) -> None:
        """End the run, which the service shows as finished or failed."""
        self.run.finish(exit_code=int(failed))


class MLflow(ServiceLogger):
    """Logs a run to the experiment `target` of MLflow, with the options of the run as its parameters.

    Where to is decided by MLflow's own settings, such as the variable MLFLOW_TRACKING_URI.
    """

    option = "mlflow"

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        try:
            import mlflow
            import mlflow.entities
        except ModuleNotFoundError:
            raise UsageError("MLflow needs the package mlflow: pip install 'jaxbyz[mlflow]'") from None
        self.mlflow = mlflow

    def open(self) -> None:
        """Start a run of the experiment."""
        self.mlflow.set_experiment(self.target)
        run = self.mlflow.start_run(run_name=self.name, tags=dict.fromkeys(self.tags, "true"))
        self.client, self.run_id = self.mlflow.MlflowClient(), run.info.run_id
        self.mlflow.log_params(to_dict(self.config))

    def write(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent.

        They are sent together, because every call of MLflow is a transaction of several milliseconds.
        """
        now = int(1000 * time.time())
        metrics = [
            self.mlflow.entities.Metric(name, value, now, step)
            for step, row in rows(progress)
            for name, value in row.items()
        ]
        for start in range(0, len(metrics), LARGEST_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + LARGEST_BATCH])

    def close(self, failed: bool) -> None:
        """End the run."""
        self.mlflow.end_run("FAILED" if failed else "FINISHED")
