"""What the kernels share: rows in and out of tiles, and the launch itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.kernels.replay import BLOCK, Table, entry_count, tables_of


def rows_of(tile: jax.Array, count: int) -> list[jax.Array]:
    """The first rows of a tile [height, block]: Triton has no indexing of what is in registers."""
    number = lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return [jnp.sum(jnp.where(number == i, tile, 0.0), axis=0) for i in range(count)]


def tile_of(rows: Sequence[jax.Array], height: int) -> jax.Array:
    """The way back: one store, since each costs Triton's compiler another look at the whole program."""
    return stacked([row.astype(jnp.float32) for row in rows], (height, BLOCK))


def stacked(parts: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Parts of equal shapes along a new first axis, the rest of it zero."""
    number = lax.broadcasted_iota(jnp.int32, shape, 0)
    whole = jnp.zeros(shape, parts[0].dtype)
    for i, part in enumerate(parts):
        whole = jnp.where(number == i, part[None], whole)
    return whole


def numbers_of(shared: Any) -> jax.Array:
    """Leaves [A, …] as floats [A, numbers]; integers must be below 2²⁴.

    As many as a power of two: then the place of a number is a constant of the instruction that reads it.
    """
    leaves = [a.reshape(a.shape[0], -1).astype(jnp.float32) for a in jax.tree.leaves(shared)]
    numbers = jnp.concatenate(leaves, axis=1)
    return jnp.pad(numbers, [(0, 0), (0, power_of_two(numbers.shape[1]) - numbers.shape[1])])


def read_numbers(numbers: Any, shapes: Sequence[Any]) -> list[Table]:
    """One agent's, inside the kernel. They are read where they are used: all at once would not fit into registers."""
    return tables_of(shapes, [functools.partial(lambda n: numbers[0, n], n) for n in range(entry_count(shapes))])


def power_of_two(count: int) -> int:
    """The least that is not below `count`: shapes of what Triton holds."""
    return 1 << (count - 1).bit_length()


def launch(
    kernel: Callable,
    grid: tuple[int, ...],
    in_specs: list,
    out_specs: list,
    shapes: list[tuple[int, ...]],
    tables: list[jax.Array],
    interpret: bool,
) -> list[jax.Array]:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    kinds = [jax.typeof(table) for table in tables]
    varying = {"vma": frozenset().union(*(kind.vma for kind in kinds))} if hasattr(kinds[0], "vma") else {}
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32, **varying) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
    )(*tables)
