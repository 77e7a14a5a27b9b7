"""Results of cells: what a record keeps of a training, and what is read back, with every part checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import Cell
from jaxbyz.benchmark.records import CELL, CERTIFICATE, StoredRecord, record_path, write_record
from jaxbyz.benchmark.suite import Suite
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError
from jaxbyz.report.statistics import window_averages
from jaxbyz.runs.run_folder import describe_environment

POINTS = 40  # of a learning curve
FINAL_SHARE_OF_BUDGET = 0.1  # the last tenth of the budget defines the final return


class CellResult(NamedTuple):
    """The result of a cell.

    Attributes:
        cell: which training.
        options: of the entry.
        config: the whole configuration, as JSON values.
        environment: versions and machine.
        seconds: wall time of the training, compilation included; the share of it if cells were trained together.
        together: whether the cell was trained in one program with others.
        finite: `[seeds]`, whether a seed stayed finite.
        average: `[seeds]`, mean honest return over the whole budget; NaN if not finite.
        final: `[seeds]`, mean honest return over the last tenth of the budget; NaN if not finite.
        trajectories: `[G]`, trajectories per agent.
        returns: `[seeds, G]`, mean honest return since the previous point; NaN where a seed has sampled nothing.
        bytes_sent: by all agents, per seed.
        hash: of the record.
    """

    cell: Cell
    options: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    seconds: float
    together: bool
    finite: np.ndarray
    average: np.ndarray
    final: np.ndarray
    trajectories: np.ndarray
    returns: np.ndarray
    bytes_sent: float
    hash: str


def measurements(config: Config, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what a record keeps of the metrics of a training, as `Experiment.metrics` has them.

    Coins differ between seeds, so seeds sample different numbers of trajectories. Only the budget counts. A seed of
    FedPG-BR may end below it (`jaxbyz.training.most_iterations`); then everything that it sampled counts.
    """
    budget = config.trajectories
    finite = np.all(metrics["finite"].astype(bool), axis=1)
    edges = np.unique(np.linspace(0, budget, POINTS + 1).round())
    curves = window_averages(metrics, edges[:-1], edges[1:])
    ends = np.minimum(metrics["trajectories"][:, -1:], float(budget))
    starts = ends * np.array([0.0, 1 - FINAL_SHARE_OF_BUDGET])
    average, final = np.where(finite, window_averages(metrics, starts, np.repeat(ends, 2, axis=1)).T, np.nan)

    def rounded(values: np.ndarray) -> list[float]:
        return [float(f"{value:.6g}") for value in values]

    return {
        "seeds": list(range(config.seed, config.seed + config.seeds)),
        "finite": finite.tolist(),
        "average": rounded(average),
        "final": rounded(final),
        "trajectories": [int(x) for x in edges[1:]],
        "return": [rounded(row) for row in curves],
        "bytes_sent": float(np.sum(metrics["bytes_sent"]) / config.seeds),
    }


def write_result(
    folder: Path,
    suite: Suite,
    cell: Cell,
    options: Mapping[str, Any],
    config: Config,
    metrics: dict[str, np.ndarray],
    seconds: float,
    *,
    together: bool = False,
) -> None:
    """Write the record of a cell.

    Args:
        folder: where the records are.
        suite: the suite.
        cell: which training.
        options: of the entry.
        config: the whole configuration.
        metrics: as `Experiment.metrics` has them.
        seconds: wall time of the training, or its share of it.
        together: whether the cell was trained in one program with others, which rounds differently.
    """
    content = {
        CELL: cell._asdict(),
        "options": dict(options),
        "config": to_dict(config),
        "environment": describe_environment(),
        "seconds": round(seconds, 1),
        "together": together,
        **measurements(config, metrics),
    }
    write_record(record_path(folder, cell.name), suite, content)


def result_of(record: StoredRecord) -> CellResult:
    """Return the result that a record of a cell holds.

    Raises:
        UsageError: if its lists do not fit together.
    """
    content = record.content
    seeds, points = len(content["seeds"]), len(content["trajectories"])
    shapes = {
        "finite": (seeds,), "average": (seeds,), "final": (seeds,), "trajectories": (points,), "return": (seeds, points)
    }  # fmt: skip
    try:
        cell = Cell(**content[CELL])
        arrays = {name: np.array(content[name], float) for name in shapes}  # null becomes NaN
    except (TypeError, ValueError) as error:
        raise UsageError(f"{record.place}: not a result of the benchmark ({error})") from error
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise UsageError(f"{record.place}: {name} has shape {arrays[name].shape}; it must be {shape}")
    return CellResult(
        cell=cell,
        options=content["options"],
        config=content["config"],
        environment=content["environment"],
        seconds=float(content["seconds"]),
        together=content.get("together") is True,  # older records do not say it
        finite=arrays["finite"] == 1,
        average=arrays["average"],
        final=arrays["final"],
        trajectories=arrays["trajectories"],
        returns=arrays["return"],
        bytes_sent=float(content["bytes_sent"]),
        hash=content["hash"],
    )


def certificates_among(records: Iterable[StoredRecord]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the certificates among records: (federation, rule) -> fields of `Certificate`."""
    contents = [record.content for record in records if CERTIFICATE in record.content]
    return {(content["federation"], content["rule"]): content[CERTIFICATE] for content in contents}
