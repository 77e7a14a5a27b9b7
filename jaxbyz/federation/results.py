"""Read the folders of all nodes as one run, as the report and the pictures need it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.federation.keys import FEDERATION_FILE, NODE_FILE, node_name, read_federation
from jaxbyz.federation.status import read_status, trust_lines
from jaxbyz.files import read_arrays
from jaxbyz.runs.run_folder import RunData, is_finished, load_run

PARAMETERS_FILE = "parameters.npz"
LARGEST = 1e12  # no return, length or norm of a real run is larger
MEANS = ("returns", "length", "ess", "gradient_norm", "shares")


def is_federation(folder: Path) -> bool:
    """Return whether the folder holds a federation, and not only one of its nodes."""
    return (folder / FEDERATION_FILE).exists() and not (folder / NODE_FILE).exists()


def load_federation(folder: str | Path) -> RunData:
    """Read a federation as one run: numbers are means over the honest nodes that have finished.

    A node counts as Byzantine if it says so itself in its status, or if it left no results.

    Raises:
        UsageError: if no honest node has finished.
    """
    folder = Path(folder)
    federation = read_federation(folder, names=False)
    K = federation.config.agents
    honest = [
        i for i in range(K)
        if read_status(folder / node_name(i), i).get("attack") == "none" and is_finished(folder / node_name(i))
    ]  # fmt: skip
    if not honest:
        raise UsageError(
            f"{folder}: no honest node has finished; `jaxbyz federation status {folder}` shows where they are"
        )
    runs = [load_run(folder / node_name(i), unfinished=False) for i in honest]
    paths = [_parameters(folder / node_name(i)) for i in honest]
    for run, path in zip(runs, paths, strict=True):
        _check_node(run, path, federation.config, runs[0])
    metrics = _metrics([run.metrics for run in runs], honest, K)
    metrics["diameter"] = _diameters(np.stack(paths), metrics["returns"].shape[1])[None]
    policy = {
        name: np.stack([_of_agent(runs, honest, k).policy[name][0, 0] for k in range(K)])[None]
        for name in ("last", "sampled", "best")
    }
    trust = trust_lines([read_status(folder / node_name(i), i) for i in range(K)])
    return RunData(folder, federation.config, metrics, policy, runs[0].environment, {"trust": trust})


def _parameters(folder: Path) -> np.ndarray:
    """Return the parameters after every iteration, or the last ones, `[T or 1, D]`, that a node has stored."""
    values = read_arrays(folder / PARAMETERS_FILE).get("parameters")
    if values is None or values.ndim != 2 or values.dtype.kind != "f":
        raise UsageError(f"{folder / PARAMETERS_FILE}: parameters must be numbers [iterations, D]")
    return values


def _check_node(run: RunData, path: np.ndarray, config: Config, first: RunData) -> None:
    """Refuse results that do not belong to the federation, and numbers that would spoil every mean."""
    if run.config != config:
        raise UsageError(f"{run.folder / 'config.json'}: differs from the configuration of the federation")
    iterations, size = first.metrics["returns"].shape[1], first.policy["last"].shape if first.policy else ()
    if run.metrics["returns"].shape[1] != iterations:
        raise UsageError(f"{run.folder}: {run.metrics['returns'].shape[1]} iterations, other nodes have {iterations}")
    if not run.policy or run.policy["last"].shape != size or path.shape not in ((iterations, size[2]), (1, size[2])):
        raise UsageError(f"{run.folder}: its parameters have other shapes than those of other nodes")
    for name in (*MEANS, "max_weight", "bytes_moved", "took_part"):
        if (np.abs(run.metrics[name]) > LARGEST).any():
            raise UsageError(f"{run.folder / 'metrics.npz'}: {name} has values beyond {LARGEST:g}; remove that node")


def _of_agent(runs: list[RunData], honest: list[int], agent: int) -> RunData:
    """Return the run of an honest agent; for a Byzantine one, that of the first honest one stands in."""
    return runs[honest.index(agent)] if agent in honest else runs[0]


def _metrics(nodes: list[dict[str, np.ndarray]], honest: list[int], agents: int) -> dict[str, np.ndarray]:
    """Join the metrics `[1, T]` of the honest nodes. Iterations that a node missed do not count for it."""

    def stacked(name: str) -> np.ndarray:
        return np.stack([node[name][0] for node in nodes]).astype(np.float32)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # iterations in which no honest node sampled
        joined = {name: np.nanmean(stacked(name), axis=0) for name in MEANS}
        joined["return_spread"] = np.nanstd(stacked("returns"), axis=0)
        joined["worst_agent"] = np.nanmin(stacked("returns"), axis=0)
        joined["max_weight"] = np.nanmax(stacked("max_weight"), axis=0)
    T = len(joined["returns"])
    byzantine = ~np.isin(np.arange(agents), honest)
    joined |= {name: nodes[0][name][0] for name in ("batch", "trajectories", "coin", "rounds")}
    joined |= {
        "byzantine": np.broadcast_to(byzantine, (T, agents)),
        "byzantine_weight": joined["shares"][:, byzantine].sum(axis=1),
        "bytes_sent": nodes[0]["bytes_sent"][0] * agents,
        "bytes_moved": np.nansum(stacked("bytes_moved"), axis=0),
        "took_part": stacked("took_part").sum(axis=0),
        "finite": np.isfinite(joined["gradient_norm"]).astype(np.int32),
    }
    for name in Metrics._fields:
        joined.setdefault(name, np.full(T, np.nan, np.float32))
    return {name: values[None] for name, values in joined.items()}


def _diameters(paths: np.ndarray, iterations: int) -> np.ndarray:
    """Return the largest distance between two honest nodes after every iteration, from their parameters `[n, T, D]`.

    NaN where parameters were not stored, or fewer than two nodes took part.
    """
    result = np.full(iterations, np.nan, np.float32)
    if paths.shape[1] != iterations:
        return result
    for t in range(iterations):
        present = paths[:, t][np.isfinite(paths[:, t]).all(axis=1)].astype(np.float64)
        if len(present) > 1:
            result[t] = max(float(np.linalg.norm(present - one, axis=1).max()) for one in present)
    return result
