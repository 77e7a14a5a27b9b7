"""The metrics and policies of a run so far, progress.npz, so that unfinished runs can be used."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import OUTPUTS, Config
from jaxbyz.files import read_arrays, write_arrays
from jaxbyz.runs import checkpoints
from jaxbyz.runs.history import History, with_trajectories
from jaxbyz.runs.state_file import below, under

PROGRESS = "progress.npz"


class PartialResults:
    """Writes progress.npz of a run, at most once every `every` seconds.

    If `folder` is None, nothing is written.
    """

    def __init__(self, folder: Path | None, every: float = 30.0):
        self.folder, self.every, self.last = folder, every, time.monotonic()

    def update(self, history: History, now: bool = False) -> None:
        """Write the results so far if the file is old enough, or in any case if `now` is True."""
        if self.folder is None or not (now or time.monotonic() - self.last >= self.every):
            return
        write_arrays(self.folder / PROGRESS, history.metrics() | under("policy", history.policy))
        self.last = time.monotonic()

    def remove(self) -> None:
        """Remove the file, because the run has finished."""
        if self.folder is not None:
            (self.folder / PROGRESS).unlink(missing_ok=True)


def read_partial(folder: Path, config: Config) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """Return metrics and policies of an unfinished run as in `RunData`, or None if nothing was written yet.

    They are those of progress.npz, or of a checkpoint if there is no such file.
    """
    if (folder / PROGRESS).exists():
        arrays = read_arrays(folder / PROGRESS)
        return {name: values for name, values in arrays.items() if "/" not in name}, below("policy", arrays)
    arrays = checkpoints.read_newest(folder, config)
    if not arrays:
        return None
    last = {"last": arrays["runs/state/parameters"], **below("runs/outputs", arrays)}
    policies = below("policy", arrays) or {name: last[name] for name in OUTPUTS}
    return with_trajectories(Metrics(**below("history", arrays))), policies  # type: ignore[arg-type]
