"""A tree of arrays in one file: how checkpoints, finished runs and nodes of a federation keep their states.

The file is an uncompressed .npz file. It holds every array under its path in the tree, such as `state/parameters`, and
a `description`: the format, what the state belongs to, and a digest of everything else. It is written beside its place
and then renamed (`jaxbyz.files.write_file`), so that a kill or a full disk leaves the file before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from jaxbyz import training
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, write_arrays

STATE_FORMAT = 2
DESCRIPTION = "description"


class DamagedError(UsageError):
    """A file of a state is damaged, or does not hold a state of the expected shapes."""


class Description(msgspec.Struct, frozen=True):
    """What a file says about its state.

    Attributes:
        format: the version of the format of the file.
        owner: identifies the run or the federation that the state belongs to.
        digest: of the owner and all arrays.
    """

    format: int
    owner: str
    digest: str


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a tree by their path, random keys as their data. All processes of a run must call it."""
    plain = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)
    leaves = jax.tree_util.tree_leaves_with_path(training.to_host(plain))
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(arrays: Mapping[str, np.ndarray], like: Any) -> Any:
    """Return the tree of `to_arrays`.

    Args:
        arrays: the leaves by their path; others are ignored.
        like: a tree of arrays or `ShapeDtypeStruct`s. A leaf that has a sharding is put on its devices.

    Raises:
        DamagedError: if an array is missing or has another shape or type.
    """

    def restored(path: Any, leaf: Any) -> jax.Array:
        plain = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        values = arrays.get(_name(path))
        if values is None or (values.shape, values.dtype) != (plain.shape, plain.dtype):
            found = "missing" if values is None else f"{values.dtype}{list(values.shape)}"
            raise DamagedError(f"{_name(path)} is {found}; it must be {plain.dtype}{list(plain.shape)}")
        sharding = getattr(leaf, "sharding", None)
        if sharding is None:
            placed = jnp.asarray(values)
        else:
            placed = jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
        return jax.random.wrap_key_data(placed) if _is_key(leaf) else placed

    return jax.tree_util.tree_map_with_path(restored, like)


def under(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a tree as those of a larger one, in which the tree has this name."""
    return {f"{name}/{path}": values for path, values in arrays.items()}


def below(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of the part of a tree that has this name. Inverse of `under`."""
    prefix = f"{name}/"
    return {path.removeprefix(prefix): values for path, values in arrays.items() if path.startswith(prefix)}


def write_state(path: Path, arrays: Mapping[str, np.ndarray], owner: str) -> None:
    """Write the arrays of `to_arrays`.

    Raises:
        UsageError: if the file cannot be written; what was there before is unchanged.
    """
    text = msgspec.json.encode(Description(STATE_FORMAT, owner, _digest(arrays, owner))).decode()
    write_arrays(path, {**arrays, DESCRIPTION: np.array(text)}, compress=False)


def read_state(path: Path, owner: str) -> dict[str, np.ndarray]:
    """Read the arrays of a state.

    Raises:
        DamagedError: if the file is not as it was written.
        UsageError: if it was written by another version of the library, or belongs to another owner.
    """
    try:
        arrays = read_arrays(path, limit=path.stat().st_size)  # nothing is compressed, so it cannot hold more
        found = msgspec.json.decode(str(arrays.pop(DESCRIPTION)), type=Description)
        digest = _digest(arrays, found.owner)
    except (UsageError, OSError, KeyError, ValueError, TypeError, BufferError, msgspec.MsgspecError) as error:
        raise DamagedError(f"{path}: damaged, or not a stored state ({type(error).__name__})") from error
    if found.format != STATE_FORMAT:
        raise UsageError(f"{path}: written by another version of jaxbyz (format {found.format}, not {STATE_FORMAT})")
    if found.digest != digest:
        raise DamagedError(f"{path}: differs from what was written")
    if found.owner != owner:
        raise UsageError(f"{path}: belongs to another configuration; nothing was changed")
    return arrays


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _digest(arrays: Mapping[str, np.ndarray], owner: str) -> str:
    """Return a digest of the owner, and of the names, types, shapes and numbers of all arrays."""
    digest = hashlib.blake2b(owner.encode(), digest_size=32)
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
