"""What a node writes into its folder: results like those of any run, a status while it runs, and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.errors import UsageError
from jaxbyz.federation.status import STATUS_FILE
from jaxbyz.files import refuse_links, write_arrays, write_json
from jaxbyz.runs import run_folder
from jaxbyz.runs.plan import Plan
from jaxbyz.runs.state_file import from_arrays, read_state, to_arrays, write_state
from jaxbyz.sampling.page import Sampled

if TYPE_CHECKING:  # results can be read without pyzmq
    from jaxbyz.federation.transport import Traffic

STATUS_SECONDS = 1.0
CHECKPOINTS = "checkpoints"
KEEP = 2
MOST_PARAMETERS_KEPT = 2**24  # of all iterations together; only their last row if there are more
SCALARS = (
    "returns", "length", "ess", "max_weight", "gradient_norm", "waited", "seconds", "bytes_in", "bytes_out"
)  # fmt: skip
PER_NODE = ("shares", "missing", "suspected")
LOG_BURST, LOG_PER_SECOND = 30, 1.0


class RateLimitedLog:
    """Passes lines on, at most a burst and then one per second; says how many were left out.

    Args:
        write: receives the lines.
    """

    def __init__(self, write: Callable[[str], None]):
        self.write = write
        self.budget, self.at, self.left_out = float(LOG_BURST), time.monotonic(), 0

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        self.budget = min(LOG_BURST, self.budget + LOG_PER_SECOND * (now - self.at))
        self.at = now
        if self.budget < 1:
            self.left_out += 1
            return
        self.budget -= 1
        if self.left_out:
            self.write(f"({self.left_out} lines left out)")
            self.left_out = 0
        self.write(line)


class NodeIteration:
    """What is recorded about one iteration, which exchanges one gradient or several, each followed by agreement.

    Args:
        agents: the number of nodes K.
        traffic: the counters of the node's sockets.

    Attributes:
        sampled: what the node has sampled; None if it did not.
        norms: the norm of every aggregate.
        shares: `[K]` per aggregate, the share of each sender in it.
        waited: seconds spent waiting.
        missing: `[K]`, how many messages of each sender were not there in time.
        message_started: when the work on the latest gradient began.
    """

    def __init__(self, agents: int, traffic: Traffic):
        self.traffic, self.bytes_before = traffic, (traffic.bytes_in, traffic.bytes_out)
        self.started = self.message_started = time.monotonic()
        self.sampled: Sampled | None = None
        self.norms: list[float] = []
        self.shares: list[np.ndarray] = []
        self.waited, self.missing = 0.0, np.zeros(agents, np.float32)

    def aggregated(self, norm: float, present: np.ndarray, shares: np.ndarray) -> None:
        """Note an aggregate of the messages of the nodes `present`, `[n]`, and their shares `[n]`."""
        self.norms.append(norm)
        self.shares.append(np.zeros_like(self.missing))
        self.shares[-1][present] = shares

    def values(self) -> dict[str, Any]:
        """Return the numbers by the names of `NodeRecord`."""
        values: dict[str, Any] = {
            "gradient_norm": np.mean(self.norms), "shares": np.mean(self.shares, axis=0), "waited": self.waited,
            "missing": self.missing, "seconds": time.monotonic() - self.started,
            "bytes_in": self.traffic.bytes_in - self.bytes_before[0],
            "bytes_out": self.traffic.bytes_out - self.bytes_before[1],
        }  # fmt: skip
        if (sampled := self.sampled) is not None:
            own = {"returns": sampled.returns, "length": sampled.lengths, "ess": sampled.ess}
            values |= {name: np.asarray(rows)[0] for name, rows in {**own, "max_weight": sampled.largest}.items()}
        return values


class NodeRecord:
    """The numbers of one node, one row per iteration. Rows of iterations that it missed are NaN.

    Args:
        plan: the plan of the run.
        agents: the number of nodes K.
        parameters: the number of parameters D.
    """

    def __init__(self, plan: Plan, agents: int, parameters: int):
        T = plan.iterations
        settings = plan.algorithm.settings
        self.batch = np.where(plan.coins, settings.N, settings.B)
        self.replayed = np.zeros_like(self.batch)  # trajectories of others, for audits
        kept = T if T * parameters <= MOST_PARAMETERS_KEPT else 1
        shapes = {name: (T,) for name in SCALARS} | {name: (T, agents) for name in PER_NODE}
        shapes |= {"parameters": (kept, parameters)}
        self.rows = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
        self.sampled = np.full(parameters, np.nan, np.float32)
        self.best, self.best_return = np.full(parameters, np.nan, np.float32), np.array(-np.inf, np.float32)

    def add(self, iteration: int, measured: NodeIteration, suspected: np.ndarray, parameters: np.ndarray) -> None:
        """Add the numbers of one iteration, after which the node suspects these nodes and has these parameters."""
        for name, value in {**measured.values(), "suspected": suspected}.items():
            self.rows[name][iteration] = value
        if len(self.rows["parameters"]) > 1:
            self.rows["parameters"][iteration] = parameters

    def outputs(self, iteration: int, output_at: int, parameters: np.ndarray) -> None:
        """Keep the parameters that iteration t started with, if they are an output of the run."""
        if iteration == output_at:
            self.sampled = parameters
        value = self.rows["returns"][iteration]
        if value > self.best_return:
            self.best, self.best_return = parameters, value

    def until(self, iteration: int) -> dict[str, Any]:
        """Return everything that was recorded before an iteration, as a tree."""
        rows = {name: values[:iteration] for name, values in self.rows.items()}
        return {"rows": rows, "sampled": self.sampled, "best": self.best, "best_return": self.best_return}

    def go_back(self, tree: dict[str, Any]) -> None:
        """Forget everything but this tree. Inverse of `until`."""
        for name, values in self.rows.items():
            past = np.asarray(tree["rows"][name])
            values[:] = np.nan
            values[: len(past)] = past
        self.sampled, self.best, self.best_return = (np.asarray(tree[n]) for n in ("sampled", "best", "best_return"))

    def metrics(self, rounds: int, sent: float) -> dict[str, np.ndarray]:
        """Return all numbers by the names of `Metrics`, `[1, T]`, and those that only a node has."""
        rows, T = {name: values for name, values in self.rows.items() if name != "parameters"}, len(self.batch)
        rows |= {
            "worst_agent": rows["returns"],
            "return_spread": np.zeros(T, np.float32),
            "batch": self.batch + self.replayed,
            "trajectories": np.cumsum(self.batch + self.replayed),
            "coin": (self.batch == self.batch.max()).astype(np.int32),
            "rounds": np.full(T, rounds),
            "bytes_sent": np.full(T, sent, np.float32),
            "bytes_moved": rows["bytes_out"],
            "finite": np.ones(T, np.int32),
            "took_part": np.isfinite(rows["gradient_norm"]).astype(np.int32),
            "byzantine": np.zeros_like(rows["shares"], bool),
        }
        for name in Metrics._fields:  # what one node cannot know, such as the honest diameter
            rows.setdefault(name, np.full(T, np.nan, np.float32))
        return {name: values[None] for name, values in rows.items()}


class Checkpoints:
    """The newest two checkpoints of a node, each a file of `jaxbyz.runs.state_file`.

    Args:
        folder: the folder of the node.
        federation: identifies the federation that they belong to.
    """

    def __init__(self, folder: Path, federation: str):
        self.folder, self.federation = folder / CHECKPOINTS, federation

    def iterations(self) -> list[int]:
        """Return the iterations that have a checkpoint, in ascending order."""
        return checkpoint_iterations(self.folder.parent)

    def save(self, iteration: int, state: Any, record: NodeRecord) -> None:
        """Write the checkpoint of the start of an iteration, and remove all but the newest two."""
        refuse_links(self.folder.parent, CHECKPOINTS).mkdir(exist_ok=True)
        arrays = to_arrays({"state": state, "record": record.until(iteration)})
        write_state(self._path(iteration), arrays, self.federation)
        for old in self.iterations()[:-KEEP]:
            self._path(old).unlink(missing_ok=True)

    def load(self, iteration: int, like: Any, record: NodeRecord) -> Any:
        """Return the state of a checkpoint, of the shapes of `like`, and set the record back to its iteration.

        Raises:
            UsageError: if it is damaged or of another federation; nothing has changed then.
        """
        arrays = read_state(self._path(iteration), self.federation)
        tree = from_arrays(arrays, {"state": like, "record": record.until(iteration)})
        record.go_back(tree["record"])
        return tree["state"]

    def remove_all(self) -> None:
        """Remove the checkpoints of a node that has finished."""
        refuse_links(self.folder.parent, CHECKPOINTS)
        for iteration in self.iterations():
            self._path(iteration).unlink(missing_ok=True)

    def _path(self, iteration: int) -> Path:
        return self.folder / f"{iteration}.npz"


def checkpoint_iterations(folder: Path) -> list[int]:
    """Return the iterations of the checkpoints in a node's folder, in ascending order."""
    return sorted(int(path.stem) for path in (folder / CHECKPOINTS).glob("*.npz") if path.stem.isdecimal())


def finish(folder: Path, record: NodeRecord, parameters: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
    """Write the results of a node."""
    policy = {"last": parameters, "sampled": record.sampled, "best": record.best}
    write_arrays(folder / "parameters.npz", {"parameters": record.rows["parameters"]})
    run_folder.write_results(folder, metrics, {name: values[None, None] for name, values in policy.items()})


class StatusFile:
    """`status.json` of a node, written about once per second.

    Args:
        folder: the folder of the node.
        log: receives a line when it cannot be written; the node goes on.
    """

    def __init__(self, folder: Path, log: Callable[[str], None]):
        self.path, self.log, self.at = folder / STATUS_FILE, log, -np.inf
        self.fails = False

    def write(self, status: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Write the status if it is due, or in any case."""
        if not now and time.monotonic() - self.at < STATUS_SECONDS:
            return
        self.at = time.monotonic()
        try:
            write_json(self.path, {"time": time.time(), **status()})
            self.fails = False
        except UsageError as error:
            if not self.fails:
                self.log(f"{error}; going on without it")
            self.fails = True
