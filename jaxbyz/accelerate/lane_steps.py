"""Steps of a costly simulation over many lanes, in which only the lanes that need work cost time.

A lane is one copy of the simulation, here one episode. Functions take arrays with the lanes on the last axis and
compute element by element along it; they may reduce over lanes only to decide whether a loop goes on or a branch is
taken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from jaxbyz.accelerate.batching import fold_mapped_axis
from jaxbyz.accelerate.kernels import KERNEL_TYPES, one_kernel
from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.accelerate.platform import kernels_run, on_cpu

# A CPU computes groups of at least this many lanes, and multiples of it, because functions are traced once per size.
# `vmap` over episodes and agents traces a step for one lane and for the episodes of one agent, before all lanes.
LANES_PER_BLOCK = 32

# Whether what is traced now becomes a part of a kernel.
_in_kernel: ContextVar[bool] = ContextVar("_in_kernel", default=False)


def all_lanes_at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of all lanes into one of a single lane, to be mapped with `vmap`.

    However many axes are mapped, `function` is called once with all lanes, so that it can choose among them. Where
    Triton kernels run, the call becomes one kernel.

    Args:
        function: takes and returns trees of arrays `[…, L]`.

    Returns:
        A function of trees of arrays `[…]`.
    """

    @fold_mapped_axis
    def lanes_first(*arguments: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):  # values per lane `[L]` are combined with arrays `[…, L]`
            if kernels_run() and all(leaf.dtype in KERNEL_TYPES for leaf in jax.tree.leaves(arguments)):
                token = _in_kernel.set(True)
                try:
                    return one_kernel(function, *arguments)
                finally:
                    _in_kernel.reset(token)
            result = function(*jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), arguments))
            return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), result)

    @functools.wraps(function)
    def one_lane(*arguments: Any) -> Any:
        result = lanes_first(*jax.tree.map(lambda x: x[None], arguments))
        return jax.tree.map(lambda x: x[0], result)

    return one_lane


def update_lanes(
    function: Callable[..., Any], masks: Sequence[Bool[Array, " L"]], group: int, default: Any, *arguments: Any
) -> Any:
    """Return `function(*arguments)` in the lanes that a mask selects, and `default` in the others.

    On a CPU, the selected lanes are gathered into groups, and the others cost nothing.

    Args:
        function: takes and returns trees of arrays `[…, L]` of floats, integers and booleans, for any number of lanes.
        masks: disjoint. Lanes of one mask are grouped with each other where possible, which saves time if they take
            similar numbers of loop iterations.
        group: the number of lanes per group. A large group fills vectors, a small one ends its loops earlier.
        default: a tree with the structure of the function's result.
        *arguments: what to apply the function to.
    """
    if on_cpu():
        return _update_in_groups(function, masks, group, default, arguments)
    selected = functools.reduce(jnp.logical_or, masks)

    def update() -> Any:
        return jax.tree.map(lambda a, b: jnp.where(selected, a, b), function(*arguments), default)

    return compute_if_needed(selected.any(), update, lambda: default)


def compute_if_needed(
    needed: Bool[Array, ""], compute: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any
) -> Any:
    """Return `compute(*operands)`, or possibly `otherwise(*operands)` if `needed` is False.

    The caller must be able to use either result in that case. A branch is cheaper than the work it skips on a CPU and
    inside a GPU kernel. Elsewhere on a GPU it would make the host wait for the device, so that the work is always done.
    """
    if on_cpu() or _in_kernel.get():
        return lax.cond(needed, compute, otherwise, *operands)
    return compute(*operands)


def constant_like(reference: Array, value: float | int | bool) -> Array:
    """Return an array of the reference's shape that is filled with `value`.

    Under `shard_map` it varies over the same devices as the reference, which JAX demands of initial values of loops.
    """
    return jnp.where(reference == reference, value, value)


def _update_in_groups(
    function: Callable[..., Any], masks: Sequence[Array], group: int, default: Any, arguments: tuple[Any, ...]
) -> Any:
    """Compute `update_lanes` group by group.

    Every lane gets a position in the order of processing. Results are stored in that order and read by position at the
    end, because a scatter per group would be slow.
    """
    lanes = masks[0].shape[0]
    group = min(group, LANES_PER_BLOCK * -(-lanes // LANES_PER_BLOCK))
    position, count = jnp.full(lanes, lanes + group), jnp.int32(0)
    for mask in masks:
        position = jnp.where(mask, count + jnp.cumsum(mask) - 1, position)
        count += mask.sum()
    numbers = jnp.arange(lanes, dtype=jnp.int32)
    order = jnp.zeros(lanes, jnp.int32).at[position].set(numbers, mode="drop")
    given, before = _pack(arguments), _pack(default)
    packed_function = _packing(function, _shapes(arguments))

    def take(tables: tuple[Array, Array], lanes: Array) -> tuple[Array, Array]:
        return jax.tree.map(lambda table: jnp.take(table, lanes, axis=-1, mode="clip"), tables)

    def one_group(carry: tuple[Array, tuple[Array, Array]]) -> tuple[Array, tuple[Array, Array]]:
        first, done = carry
        places = jnp.minimum(first + jnp.arange(group), count - 1)  # free places of the last group repeat its last lane
        result = packed_function(take(given, jnp.take(order, places, mode="clip")))
        store = functools.partial(lax.dynamic_update_slice_in_dim, start_index=first, axis=-1)
        return first + group, jax.tree.map(store, done, result)

    def all_groups() -> tuple[Array, Array]:
        room = jax.tree.map(lambda table: jnp.pad(table, ((0, 0), (0, group))), before)
        _, done = lax.while_loop(lambda carry: carry[0] < count, one_group, (jnp.zeros_like(count), room))
        return jax.tree.map(lambda a, b: jnp.where(position < lanes, a, b), take(done, position), before)

    return _unpack(lax.cond(count > 0, all_groups, lambda: before), _shapes(default))


def _pack(tree: Any) -> tuple[Array, Array]:
    """Store arrays `[…, L]` as the rows of a table of floats and one of integers, so that two gathers select lanes."""
    leaves = jax.tree.leaves(tree)
    floats = [leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves if _is_float(leaf.dtype)]
    others = [leaf.reshape(-1, leaf.shape[-1]).astype(jnp.int32) for leaf in leaves if not _is_float(leaf.dtype)]
    return jnp.concatenate(floats), jnp.concatenate(others)


_Shapes = tuple[Any, tuple[tuple[tuple[int, ...], Any], ...]]  # structure of a tree; shape without lanes, type per leaf


def _shapes(tree: Any) -> _Shapes:
    """Describe the arrays of a tree, except for the number of their lanes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape[:-1], leaf.dtype) for leaf in leaves)


def _unpack(tables: tuple[Array, Array], shapes: _Shapes) -> Any:
    """Inverse of `_pack`, for a tree that `_shapes` describes."""
    structure, leaves = shapes
    used, parts = [0, 0], []
    for shape, dtype in leaves:
        table = int(not _is_float(dtype))
        first, used[table] = used[table], used[table] + math.prod(shape)
        part = tables[table][first : used[table]].reshape(*shape, -1)
        parts.append(part != 0 if dtype == jnp.bool_ else part.astype(dtype))
    return jax.tree.unflatten(structure, parts)


def _is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


@functools.cache  # so that a function is traced once for all programs
def _packing(function: Callable[..., Any], shapes: _Shapes) -> Callable[[tuple[Array, Array]], tuple[Array, Array]]:
    """Return the function with packed arguments and results, as a call that XLA does not inline."""

    def packed(tables: tuple[Array, Array]) -> tuple[Array, Array]:
        return _pack(function(*_unpack(tables, shapes)))

    return not_inlined(packed)
