"""Reporters for TensorBoard, Weights & Biases and MLflow, which show every metric of every iteration."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError, first_line, install_command
from jaxbyz.files import reason
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


class Logger:
    """A reporter for another program, the base of `TensorBoard`, `WeightsAndBiases` and `MLflow`.

    A program that cannot be started is an error of the user. One that fails later does not end the run, which goes on
    without it; `log` receives a line.

    Attributes:
        option: the option of the command line.
        target: its value: the folder, project or experiment.
        log: receives a line if the program fails.
    """

    option = ""

    def __init__(self, target: str | Path, log: Callable[[str], None]):
        self.target, self.log, self.failed = target, log, False

    def package(self, module: str) -> Any:
        """Return a module of the package that this logger needs."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError:
            install = install_command(self.option)
            raise UsageError(f"{self.option}={self.target}: needs another package: {install}") from None

    def open(self) -> None:
        """Start the program's record of a run."""
        raise NotImplementedError

    def write(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent."""
        raise NotImplementedError

    def close(self, failed: bool) -> None:
        """End the program's record of the run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.open()
        except Exception as error:  # whatever the program raises: its settings, the network, its files
            raise UsageError(f"{self.option}={self.target}: cannot be opened ({_shown(error)})") from error
        return self

    def update(self, progress: Progress) -> None:
        """Log the iterations of a segment, unless the program failed before."""
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
    """Return why something failed, in the words of the operating system if it has some."""
    return (reason(error) if isinstance(error, OSError) else first_line(error))[:300]


class TensorBoard(Logger):
    """Writes every metric of every iteration: the mean over seeds as `NAME`, and every seed as `seed-S/NAME`.

    The step of a mean is that of the first seed.
    """

    option = "tensorboard"

    def __init__(self, folder: str | Path, first_seed: int = 0, log: Callable[[str], None] = warnings.warn):
        super().__init__(folder, log)
        self.make_writer = self.package("tensorboardX.event_file_writer").EventsWriter
        self.first_seed = first_seed

    def open(self) -> None:
        """Create the file of events."""
        Path(self.target).mkdir(parents=True, exist_ok=True)
        self.writer = self.make_writer(str(Path(self.target) / "events"))

    def write(self, progress: Progress) -> None:
        """Write the metrics of a segment."""
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
            self._add(EVALUATION, np.nanmean(progress.evaluation), trajectories[0, -1])
        self.writer.flush()

    def close(self, failed: bool) -> None:
        """Close the file."""
        self.writer.close()

    def _add(self, name: str, value: Any, step: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        self.writer.write_event(Event(wall_time=time.time(), step=int(step), summary=scalar(name, float(value))))


class Service(Logger):
    """A logger of a service that shows the options of a run beside its metrics.

    Args:
        config: the configuration of the run.
        target: the project or experiment.
        name: the name of the run.
        tags: its tags.
        log: as in `Logger`.
    """

    def __init__(
        self,
        config: Config,
        target: str,
        name: str | None = None,
        tags: Sequence[str] = (),
        log: Callable[[str], None] = warnings.warn,
    ):
        super().__init__(target, log)
        self.module = self.package(self.option)
        self.config, self.name, self.tags = config, name, tags


class WeightsAndBiases(Service):
    """Logs a run to the project `target` of Weights & Biases, with the options of the run as its configuration."""

    option = "wandb"

    def open(self) -> None:
        """Start a run of the project."""
        self.run = self.module.init(
            project=self.target, name=self.name, tags=list(self.tags), config=to_dict(self.config)
        )

    def write(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent."""
        for step, row in rows(progress):
            self.run.log(row, step=step)

    def close(self, failed: bool) -> None:
        """End the run, which the service shows as finished or failed."""
        self.run.finish(exit_code=int(failed))


class MLflow(Service):
    """Logs a run to the experiment `target` of MLflow, with the options of the run as its parameters.

    Where to is decided by MLflow's own settings, such as the variable MLFLOW_TRACKING_URI.
    """

    option = "mlflow"

    def open(self) -> None:
        """Start a run of the experiment."""
        self.module.set_experiment(self.target)
        run = self.module.start_run(run_name=self.name, tags=dict.fromkeys(self.tags, "true"))
        self.client, self.run_id = self.module.MlflowClient(), run.info.run_id
        self.module.log_params(to_dict(self.config))

    def write(self, progress: Progress) -> None:
        """Log the iterations of a segment; the step is the number of trajectories per agent.

        They are sent together, because every call of MLflow is a transaction of several milliseconds.
        """
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for step, row in rows(progress) for name, value in row.items()]
        for start in range(0, len(metrics), LARGEST_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + LARGEST_BATCH])

    def close(self, failed: bool) -> None:
        """End the run."""
        self.module.end_run("FAILED" if failed else "FINISHED")
