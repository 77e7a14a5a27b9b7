"""What a node writes into its folder: results like those of any run, a status while it runs, and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, write_arrays, write_json
from jaxbyz.runs import run_folder
from jaxbyz.runs.plan import Plan
from jaxbyz.sampling.page import Sampled

STATUS_FILE = "status.json"
STATUS_SECONDS = 1.0
CHECKPOINTS = "checkpoints"
KEEP = 2
MOST_STORED_NUMBERS = 2**24  # parameters of all iterations are stored if they are not more than this
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


class Record:
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
        scalars = (
            "returns",
            "length",
            "ess",
            "max_weight",
            "gradient_norm",
            "waited",
            "seconds",
            "bytes_in",
            "bytes_out",
        )
        self.rows: dict[str, np.ndarray] = {name: np.full(T, np.nan, np.float32) for name in scalars}
        self.rows["shares"] = np.full((T, agents), np.nan, np.float32)
        self.rows["missing"] = np.full((T, agents), np.nan, np.float32)
        self.rows["suspected"] = np.full((T, agents), np.nan, np.float32)
        stored = T * parameters <= MOST_STORED_NUMBERS
        self.rows["parameters"] = np.full((T if stored else 1, parameters), np.nan, np.float32)
        self.sampled = np.full(parameters, np.nan, np.float32)
        self.best, self.best_return = np.full(parameters, np.nan, np.float32), -np.inf

    def add(self, iteration: int, sampled: Sampled | None, **values: Any) -> None:
        """Store the numbers of one iteration; `sampled` is None if the node did not sample in it."""
        if sampled is not None:
            own = {
                "returns": sampled.returns,
                "length": sampled.lengths,
                "ess": sampled.ess,
                "max_weight": sampled.largest,
            }
            values |= {name: np.asarray(array)[0] for name, array in own.items()}
        for name, value in values.items():
            if name != "parameters" or len(self.rows[name]) > 1:
                self.rows[name][iteration] = value

    def outputs(self, iteration: int, output_at: int, parameters: np.ndarray) -> None:
        """Keep the parameters that iteration t started with, if they are an output of the run."""
        if iteration == output_at:
            self.sampled = parameters
        value = self.rows["returns"][iteration]
        if value > self.best_return:
            self.best, self.best_return = parameters, float(value)

    def metrics(self, rounds: int, sent: float) -> dict[str, np.ndarray]:
        """Return all numbers by the names of `Metrics`, `[1, T]`, and those that only a node has."""
        rows = {name: values for name, values in self.rows.items() if name != "parameters"}
        took_part = np.isfinite(rows["gradient_norm"])
        rows |= {
            "worst_agent": rows["returns"],
            "return_spread": np.zeros(len(self.batch), np.float32),
            "batch": self.batch,
            "trajectories": np.cumsum(self.batch),
            "coin": (self.batch == self.batch.max()).astype(np.int32),
            "rounds": np.full(len(self.batch), rounds),
            "bytes_sent": np.full(len(self.batch), sent, np.float32),
            "bytes_moved": rows["bytes_out"],
            "finite": np.ones(len(self.batch), np.int32),
            "took_part": took_part.astype(np.int32),
            "byzantine": np.zeros_like(rows["shares"], bool),
        }
        for name in Metrics._fields:  # what one node cannot know, such as the honest diameter
            rows.setdefault(name, np.full(len(self.batch), np.nan, np.float32))
        return {name: values[None] for name, values in rows.items()}

    def save(self, folder: Path, iteration: int, state: np.ndarray, digest: bytes) -> None:
        """Write the checkpoint of the start of an iteration, and remove all but the newest two."""
        (folder / CHECKPOINTS).mkdir(exist_ok=True)
        write_arrays(
            folder / CHECKPOINTS / f"{iteration}.npz",
            {
                "state": state, "sampled": self.sampled, "best": self.best, "best_return": np.array(self.best_return),
                "federation": np.frombuffer(digest, np.uint8),
                **{f"rows_{name}": values[:iteration] for name, values in self.rows.items()},
            },
        )  # fmt: skip
        for old in checkpoint_iterations(folder)[:-KEEP]:
            (folder / CHECKPOINTS / f"{old}.npz").unlink(missing_ok=True)

    def load(self, folder: Path, iteration: int, size: int, digest: bytes) -> np.ndarray | None:
        """Read a checkpoint and return its state `[S]`, or None if it is damaged or of another federation."""
        try:
            arrays = read_arrays(folder / CHECKPOINTS / f"{iteration}.npz")
            past = {name: arrays[f"rows_{name}"] for name in self.rows}
            fits = all(past[name].shape == values[:iteration].shape for name, values in self.rows.items())
            if arrays["federation"].tobytes() != digest or arrays["state"].shape != (size,) or not fits:
                return None
            for name, values in self.rows.items():
                values[:] = np.nan
                values[:iteration] = past[name]
            self.sampled, self.best = arrays["sampled"], arrays["best"]
            self.best_return = float(arrays["best_return"])
            return arrays["state"]
        except (UsageError, KeyError):
            return None


def checkpoint_iterations(folder: Path) -> list[int]:
    """Return the iterations of the checkpoints in a node's folder, in order."""
    return sorted(int(path.stem) for path in (folder / CHECKPOINTS).glob("*.npz") if path.stem.isdecimal())


def finish(folder: Path, record: Record, parameters: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
    """Write the results of a node and remove its checkpoints."""
    policy = {"last": parameters, "sampled": record.sampled, "best": record.best}
    write_arrays(folder / "parameters.npz", {"parameters": record.rows["parameters"]})
    run_folder.write_results(folder, metrics, {name: values[None, None] for name, values in policy.items()})
    for iteration in checkpoint_iterations(folder):
        (folder / CHECKPOINTS / f"{iteration}.npz").unlink(missing_ok=True)


class StatusFile:
    """`status.json` of a node, written about once per second."""

    def __init__(self, folder: Path):
        self.path, self.at = folder / STATUS_FILE, -np.inf

    def write(self, status: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Write the status if it is due, or in any case."""
        if now or time.monotonic() - self.at >= STATUS_SECONDS:
            self.at = time.monotonic()
            write_json(self.path, {"time": time.time(), **status()})
