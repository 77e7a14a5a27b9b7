"""Checkpoints of a run: `DIR/checkpoints/40.npz` holds the state and the metrics of a run after iteration 40.

Each is one file of `jaxbyz.runs.state_file`, which belongs to the configuration of the run. Beside them,
`options.json` holds the settings that `resume` uses again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxbyz.algorithms import Algorithm, Metrics
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import reason, refuse_links, remove_leftovers
from jaxbyz.runs.state_file import DamagedError, below, from_arrays, read_state, to_arrays, under, write_state
from jaxbyz.training.devices import Shape
from jaxbyz.training.layout import make_layout
from jaxbyz.training.processes import is_first_process, on_first_process
from jaxbyz.training.run import Run

FOLDER = "checkpoints"
Arrays = dict[str, np.ndarray]
KEEP = 2  # the newest, and the one before it in case the newest is damaged


class Checkpoint(NamedTuple):
    """What a run needs to continue.

    Attributes:
        done: the number of iterations so far.
        runs: the states of all seeds, `[seeds, …]`, or their arrays by path.
        history: the fields of `Metrics`, `[seeds, done, …]` each.
        policy: as in `RunData`, if a seed became non-finite: `runs` then lacks its last finite policies.
    """

    done: int
    runs: Run | Arrays
    history: Arrays
    policy: Arrays


def owner(config: Config) -> str:
    """Return a digest of everything that determines the numbers of a run up to a checkpoint.

    That is not the length of the run, but over what its step size decays; a checkpoint serves longer runs as well.
    """
    values = {**to_dict(config), "trajectories": config.decays_over}
    del values["decay_over"]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def save(folder: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and remove all but the newest `KEEP`; all processes must call it."""
    done, runs, history, policy = checkpoint
    arrays = runs if isinstance(runs, dict) else to_arrays(runs)  # several processes gather them once
    on_first_process(lambda: write(folder, config, done, arrays, history, policy))


def write(folder: Path, config: Config, done: int, runs: Arrays, history: Arrays, policy: Arrays) -> None:
    """Write a checkpoint whose runs are given as arrays, as `state.npz` of a finished run holds them."""
    arrays = under("runs", runs) | under("history", history) | under("policy", policy)
    write_state(make_folder(folder) / f"{done}.npz", arrays, owner(config))
    for iteration in _iterations(folder)[:-KEEP]:
        _remove(folder, iteration)


def restore(
    folder: Path, config: Config, algorithm: Algorithm, shape: Shape | None, log: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a run folder, on the mesh of this shape, or None.

    `log` receives one line for every damaged checkpoint.

    Raises:
        UsageError: if a checkpoint belongs to another configuration or was written by another version.
    """
    read = partial(_read, folder, config, make_layout(algorithm, config.seeds, shape).shapes)
    found: Checkpoint | None = None

    def newest() -> int:
        nonlocal found
        for done in reversed(_iterations(folder)):
            try:
                found = read(done)
                return done
            except DamagedError as error:
                log(f"the checkpoint of iteration {done} is damaged ({error}); trying the one before it")
        return 0

    done = on_first_process(newest)
    return found if is_first_process() or done == 0 else read(done)


def _read(folder: Path, config: Config, like: Run, done: int) -> Checkpoint:
    """Read the checkpoint of an iteration."""
    arrays = read_state(_path(folder, done), owner(config))
    runs, history = from_arrays(below("runs", arrays), like), below("history", arrays)
    fits = {name: values.shape[:2] == (config.seeds, done) for name, values in history.items()}
    if fits != dict.fromkeys(Metrics._fields, True) or np.any(arrays["runs/state/step"] != done):
        raise DamagedError(f"{_path(folder, done)}: holds another number of iterations")
    return Checkpoint(done, runs, history, below("policy", arrays))


def read_newest(folder: Path, config: Config) -> Arrays:
    """Return the arrays of the newest undamaged checkpoint as `write` names them; empty if there is none."""
    for done in reversed(_iterations(folder)):
        try:
            return read_state(_path(folder, done), owner(config))
        except DamagedError:
            continue
    return {}


def discard_after(folder: Path, done: int) -> None:
    """Remove the checkpoints after iteration `done`, which are damaged, and what killed processes left."""
    remove_leftovers(refuse_links(folder, FOLDER))
    for iteration in _iterations(folder):
        if iteration > done:
            _remove(folder, iteration)


def remove_all(folder: Path) -> None:
    """Remove all checkpoints of a finished run."""
    shutil.rmtree(refuse_links(folder, FOLDER), ignore_errors=True)


def has_any(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint, damaged or not."""
    return bool(_iterations(folder))


def newest(folder: Path) -> int:
    """Return the iteration of the newest checkpoint, damaged or not, or 0."""
    return max(_iterations(folder), default=0)


def make_folder(folder: Path) -> Path:
    """Create the folder of checkpoints unless it exists."""
    path = refuse_links(folder, FOLDER)
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be created ({reason(error)})") from error
    return path


def _path(folder: Path, done: int) -> Path:
    return refuse_links(folder, FOLDER, f"{done}.npz")


def _remove(folder: Path, done: int) -> None:
    path = _path(folder, done)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be removed ({reason(error)})") from error


def _iterations(folder: Path) -> list[int]:
    """Return the iterations that have a checkpoint, in ascending order."""
    names = (path.stem for path in refuse_links(folder, FOLDER).glob("*.npz"))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 16)
