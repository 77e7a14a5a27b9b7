"""A function of lanes as a single GPU kernel.

On a GPU, XLA launches a small kernel for every few formulas and for every iteration of a loop, so a physics solver with
180 iterations becomes a thousand launches. Here the whole function is one kernel: a block of lanes stays in registers
from the first formula to the last, and every block takes loops and branches on its own. All numbers travel as one array
of floats, because Triton's compile time grows with the number of loads and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.kernels.result_shapes import result_like
from jaxbyz.accelerate.kernels.rows import TRACED_LANES, RowInterpreter, cast, count_entries, entries_of, make_tables
from jaxbyz.accelerate.platform import interpret_kernels

KERNEL_TYPES = (jnp.float32, jnp.int32, jnp.bool_)
WARP_LANES = 32  # lanes per kernel instance


def one_kernel(function: Callable, *args: Any) -> Any:
    """Compute `function(*args)` in one kernel.

    Args:
        function: takes arrays `[…, L]` for any number of lanes L. It may reduce over lanes only to decide about a loop
            or a branch, which each block of lanes does on its own.
        args: trees of arrays `[L, …]` of `KERNEL_TYPES`. Integers must be below 2²⁴.

    Returns:
        The results, as arrays `[L, …]`.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    given, structure = jax.tree.flatten(args)
    shapes = [jax.ShapeDtypeStruct((*a.shape[1:], TRACED_LANES), a.dtype) for a in given]
    traced, result = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(structure, leaves)), return_shape=True
    )(*shapes)
    results, result_structure = jax.tree.flatten(result)
    lanes, inputs = given[0].shape[0], count_entries(shapes)
    height = _power_of_two(max(inputs, count_entries(results)))
    # A whole number of blocks of lanes, plus one: with an odd stride, Triton gives every lane its own thread.
    width = -(-lanes // WARP_LANES) * WARP_LANES + 1
    numbers = jnp.concatenate([a.reshape(lanes, -1).astype(jnp.float32) for a in given], axis=1)
    table = jnp.pad(numbers, ((0, width - lanes), (0, height - inputs))).T

    def kernel(source: Any, target: Any) -> None:
        rows = _split_rows(source[...], inputs)
        target[...] = _join_rows(entries_of(RowInterpreter(WARP_LANES).run(traced, make_tables(shapes, rows))), height)

    block = pl.BlockSpec((height, WARP_LANES), lambda i: (0, i))
    stored = pl.pallas_call(
        kernel,
        grid=(width // WARP_LANES,),
        in_specs=[block],
        out_specs=block,
        out_shape=result_like(table, table.shape),
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret_kernels(),
    )(table)
    leaves, first = [], 0
    for shape in results:
        rows = stored[first : first + count_entries([shape]), :lanes].reshape(*shape.shape[:-1], lanes)
        leaves.append(jnp.moveaxis(cast(rows, shape.dtype), -1, 0))
        first += count_entries([shape])
    return jax.tree.unflatten(result_structure, leaves)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`. Triton's arrays have such sides."""
    return 1 << (count - 1).bit_length()


def _split_rows(tile: jax.Array, count: int) -> list[jax.Array]:
    """Return the first rows of a tile `[height, block]`. Triton cannot index what is in registers."""
    number = lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return [jnp.sum(jnp.where(number == i, tile, 0.0), axis=0) for i in range(count)]


def _join_rows(rows: Sequence[jax.Array], height: int) -> jax.Array:
    """Inverse of `_split_rows`, so that one store suffices: each costs Triton's compiler a pass over the program."""
    number = lax.broadcasted_iota(jnp.int32, (height, WARP_LANES), 0)
    tile = jnp.zeros((height, WARP_LANES), jnp.float32)
    for i, row in enumerate(rows):
        tile = jnp.where(number == i, row.astype(jnp.float32)[None], tile)
    return tile
