"""Messages as trees of arrays whose leaves have a leading axis of senders: as one matrix, and back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.errors import UsageError, first_line
from jaxbyz.rules.base import Receiver, Rule, RuleState


def as_matrix(tree: Any) -> tuple[Float[Array, "K D"], Callable[[Float[Array, "*axes D"]], Any]]:
    """Return messages with one row per sender, and the function that turns such rows into a tree again.

    The matrix has the widest type of all leaves, but at least float32. The function `[*axes, D] -> tree` returns leaves
    `[*axes, …]` of the types that they had; integers are rounded.

    Args:
        tree: leaves `[K, …]`.
    """
    leaves, structure = jax.tree.flatten(tree)
    dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in leaves))
    columns = [leaf.reshape(leaf.shape[0], -1).astype(dtype) for leaf in leaves]
    ends = np.cumsum([column.shape[1] for column in columns])

    def like(leaf: Array, rows: Array) -> Array:
        whole = jnp.issubdtype(leaf.dtype, jnp.integer)
        return (jnp.round(rows) if whole else rows).reshape(*rows.shape[:-1], *leaf.shape[1:]).astype(leaf.dtype)

    def restore(rows: Array) -> Any:
        parts = jnp.split(rows, ends[:-1], axis=-1)
        return jax.tree.unflatten(structure, [like(leaf, part) for leaf, part in zip(leaves, parts, strict=True)])

    return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1), restore


def apply_rule(
    rule: Rule, key: PRNGKeyArray, tree: Any, own: Int[Array, ""] | int, state: RuleState = None
) -> tuple[Any, RuleState]:
    """Return what a rule makes of messages, a tree without the axis of senders, and the rule's next state.

    Args:
        rule: an aggregator.
        key: random key.
        tree: leaves `[K, …]`.
        own: `[]`, the row of the receiver.
        state: the state of the rule; by default its initial state.
    """
    matrix, restore = as_matrix(tree)
    state = rule.init(*matrix.shape) if state is None else state
    outcome = rule.apply(key, matrix, Receiver(matrix[own], jnp.asarray(own, jnp.int32)), state)
    return restore(outcome.rows[0]), outcome.state


def apply_to_messages(name: str, tree: Any, function: Callable[[Any, int], Any]) -> Any:
    """Return `function(tree, K)`, computed by JAX; every result is an array of the program that its leaf comes from.

    Float64 and int64 of NumPy and torch are kept, whether or not JAX has them switched on. Tensors of torch are not
    copied if JAX has the same device.

    Args:
        name: what the messages are called in errors.
        tree: leaves `[K, …]` of JAX, NumPy or torch; a list of lists of numbers is a matrix.
        function: takes arrays of JAX and the number of senders, and returns a tree of the same structure.

    Raises:
        UsageError: if leaves are not numbers, or do not have the same number of senders.
    """
    leaves = jax.tree.leaves(tree)
    if leaves and all(isinstance(leaf, (int, float)) for leaf in leaves):
        tree = _to_jax(name, tree, jnp.float32)
    wide = any(str(getattr(leaf, "dtype", "")).endswith("64") for leaf in leaves if not isinstance(leaf, jax.Array))
    with jax.enable_x64(True) if wide else nullcontext():
        arrays = jax.tree_util.tree_map_with_path(lambda path, leaf: _to_jax(name + keystr(path), leaf), tree)
        return jax.tree.map(_as_before, tree, function(arrays, count_senders(name, arrays)))


def _to_jax(where: str, leaf: Any, dtype: Any = None) -> Array:
    """Return a leaf as an array of JAX, without a copy if possible."""
    try:
        array = _from_torch(leaf) if _is_tensor(leaf) else jnp.asarray(leaf, dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} is not an array of numbers: {first_line(error)}") from error
    if not jnp.issubdtype(array.dtype, jnp.floating) and not jnp.issubdtype(array.dtype, jnp.integer):
        raise UsageError(f"{where} has type {array.dtype}: it must have real or whole numbers")
    return array


def _as_before(leaf: Any, result: Array) -> Any:
    """Return a result as the kind of array that the leaf was."""
    if isinstance(result, jax.core.Tracer):
        return result
    if _is_tensor(leaf):
        # The computation may read the memory of tensors, so it must be over before the caller changes them.
        return sys.modules["torch"].from_dlpack(jax.block_until_ready(result)).to(leaf.device)
    return np.array(result) if isinstance(leaf, np.ndarray) else result


def _is_tensor(leaf: Any) -> bool:
    return "torch" in sys.modules and isinstance(leaf, sys.modules["torch"].Tensor)


def _from_torch(tensor: Any) -> Array:
    dense = tensor.detach().contiguous()
    try:
        return jax.dlpack.from_dlpack(dense)
    except (RuntimeError, ValueError):  # JAX does not have this device
        return jax.dlpack.from_dlpack(dense.cpu())


def count_senders(name: str, arrays: Any) -> int:
    """Return the number of senders K, which is the leading axis of all leaves."""
    wanted = "must be [K, D], or a tree of arrays [K, …], one row per sender"
    shapes = {name + keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}
    if not shapes:
        raise UsageError(f"{name} has no arrays: it {wanted}")
    vectors = all(len(shape) == 1 for shape in shapes.values())
    if vectors and isinstance(arrays, (list, tuple)):
        raise UsageError(f"{name} is a list of {len(shapes)} vectors: it {wanted}; stack the vectors")
    first, shape = next(iter(shapes.items()))
    if not shape or not any(map(math.prod, shapes.values())) or (vectors and isinstance(arrays, jax.Array)):
        raise UsageError(f"{first} has shape {shape}: it {wanted}")
    for where, other in shapes.items():
        if other[:1] != shape[:1]:
            raise UsageError(
                f"{where} has shape {other}: its first axis must be the {shape[0]} senders, as that of {first}"
            )
    return shape[0]
