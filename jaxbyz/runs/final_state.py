"""The state of a finished run, `state.npz`, from which a longer run continues.

To extend a run, `metrics.npz` is renamed to `history.npz`, which makes the folder one of an unfinished run, and the
configuration gets the new length. `state.npz` and `history.npz` together then serve as a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxbyz import training
from jaxbyz.algorithms import Algorithm
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, write_arrays
from jaxbyz.runs.checkpoints import Checkpoint, expected_checkpoint, with_keys, without_keys
from jaxbyz.training.devices import Shape

STATE, HISTORY = "state.npz", "history.npz"


def to_arrays(runs: training.Run) -> dict[str, np.ndarray]:
    """Return the leaves of the runs `[seeds, …]` by their path; all processes must call it."""
    leaves = jax.tree_util.tree_flatten_with_path(training.to_host(without_keys(runs)))[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the final state of a run."""
    write_arrays(folder / STATE, arrays)


def restore(folder: Path, algorithm: Algorithm, seeds: int, shape: Shape | None) -> Checkpoint | None:
    """Return the end of the shorter run that is being extended, or None if the folder does not hold it.

    Args:
        folder: the run folder.
        algorithm: the algorithm of the run.
        seeds: the number of seeds.
        shape: the mesh on which the run continues.
    """
    if not ((folder / STATE).exists() and (folder / HISTORY).exists()):
        return None
    try:
        arrays, history = read_arrays(folder / STATE), read_arrays(folder / HISTORY)
    except UsageError:
        return None
    expected = expected_checkpoint(algorithm, seeds, shape, history["returns"].shape[1])
    plain = jax.eval_shape(without_keys, expected.runs)
    paths, structure = jax.tree_util.tree_flatten_with_path(plain)
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(expected.runs)]
    leaves = []
    for (path, leaf), sharding in zip(paths, shardings, strict=True):
        values = arrays.get(jax.tree_util.keystr(path))
        if values is None or (values.shape, values.dtype) != (leaf.shape, leaf.dtype):
            return None
        leaves.append(_on_devices(values, sharding))
    runs = with_keys(jax.tree.unflatten(structure, leaves), expected.runs)
    kept = {name: history[name] for name in expected.history if name in history}
    fits = all((kept[n].shape, kept[n].dtype) == (e.shape, e.dtype) for n, e in expected.history.items() if n in kept)
    if not fits or len(kept) < len(expected.history) or np.any(training.to_host(runs.state.step) != expected.done):
        return None  # the state is that of another run, for instance of the extended one, which was killed at its end
    return Checkpoint(expected.done, runs, kept)


def _on_devices(values: np.ndarray, sharding: Any) -> jax.Array:
    """Return an array on the devices of the sharding, or on the default device."""
    if sharding is None:
        return jax.numpy.asarray(values)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
