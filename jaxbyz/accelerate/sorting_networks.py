"""Order statistics over a small, static number of rows, coordinate by coordinate, with a network of minima and maxima.

XLA's sort is slow on a CPU. The number of messages is small and known when the program is compiled, so Batcher's
odd-even merge sort (Batcher 1968) is unrolled over whole rows: every comparator is two vector instructions, and
comparators that no wanted rank depends on are left out. A result that is one row makes one fused loop over D.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.accelerate.branches import alone_or_batched
from jaxbyz.accelerate.platform import on_cpu, small_loops_are_fused

# LLVM makes vector instructions of a loop that reads at most this many rows, because it must rule out that each of them
# overlaps with what is written. Beyond, a network of whole stages takes over, or one in columns.
NETWORK_LIMIT = 128
COLUMNS_LIMIT = 256  # rows of a network in columns; its compilation takes seconds
COLUMNS = 128  # coordinates at a time
GPU_NETWORK_LIMIT = 32  # a GPU runs whole stages well, and its compiler is slow with thousands of formulas
TILE = 2048  # coordinates at a time in the staged network: [256, 2048] floats stay in the second-level cache

_inside_columns: ContextVar[bool] = ContextVar("inside_columns", default=False)


def written_out(n: int) -> bool:
    """Whether programs treat n rows one by one."""
    if _inside_columns.get():
        return n <= COLUMNS_LIMIT
    return n <= (NETWORK_LIMIT if on_cpu() else GPU_NETWORK_LIMIT)


@cache
def comparators(n: int, wanted: tuple[int, ...] | None = None) -> tuple[tuple[int, int], ...]:
    """Pairs (i, j), i < j, of Batcher's network: after min to i and max to j for each in turn, rows ascend.

    With `wanted`, only the comparators those ranks depend on.
    """
    pairs = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    if wanted is None:
        return tuple(pairs)
    needed, kept = set(wanted), []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            kept.append((i, j))
            needed |= {i, j}
    return tuple(reversed(kept))


def ranked_rows(messages: Float[Array, "n D"] | list[Float[Array, " D"]], ranks: range) -> list[Float[Array, " D"]]:
    """The coordinate-wise order statistics of the given ranks (0 is the least). Rows must be free of NaN."""
    n = len(messages)
    if not written_out(n):
        ordered = _staged_sort(jnp.stack(messages) if isinstance(messages, list) else messages)
        return [ordered[r] for r in ranks]
    # LLVM compiles integers' minima of more rows twice as long: it looks for addresses in them.
    as_bits = on_cpu() and n <= NETWORK_LIMIT
    rows = [to_bits(messages[i]) if as_bits else messages[i] for i in range(n)]
    for i, j in comparators(n, tuple(ranks)):
        rows[i], rows[j] = jnp.minimum(rows[i], rows[j]), jnp.maximum(rows[i], rows[j])
    return [from_bits(rows[r], messages[r].dtype) if as_bits else rows[r] for r in ranks]


def to_bits(values: Float[Array, "*any"]) -> Int[Array, "*any"]:
    """Integers that ascend as the given floats, −0 before 0; their bits, of which those below zero are reversed.

    The lesser of two integers is one instruction. XLA makes four of two floats, for the sake of NaN and −0.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"int{8 * values.dtype.itemsize}"))
    return _reversed_below_zero(bits)


def from_bits(order: Int[Array, "*any"], dtype: Any) -> Float[Array, "*any"]:
    """The floats that `to_bits` made integers of."""
    return jax.lax.bitcast_convert_type(_reversed_below_zero(order), dtype)


def _reversed_below_zero(bits: Int[Array, "*any"]) -> Int[Array, "*any"]:
    return bits ^ (bits >> (jnp.iinfo(bits).bits - 1) & jnp.iinfo(bits).max)


def median_rows(messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Coordinate-wise median; the mean of the two middle values when n is even; zero where that is not finite.

    NaN counts as +∞. Not differentiated.
    """

    def median(part: Array) -> Array:
        n = part.shape[0]
        rows = [_without_nan(row) for row in part] if written_out(n) else _without_nan(part)
        middle = ranked_rows(rows, range((n - 1) // 2, n // 2 + 1))
        value = middle[0] if len(middle) == 1 else 0.5 * (middle[0] + middle[1])
        return jnp.where(jnp.isfinite(value), value, 0.0)

    return ranked_once(median, jax.lax.stop_gradient(messages))


def _without_nan(values: Float[Array, "*any"]) -> Float[Array, "*any"]:
    return jnp.where(jnp.isnan(values), jnp.inf, values)


Rowwise = Callable[..., Float[Array, " d"]]  # arrays [*any, d] -> [d]; treats each coordinate (the last axis) alone


def computed_once(function: Rowwise, *arrays: Float[Array, "*any D"]) -> Float[Array, " D"]:
    """function(*arrays) [D], and on a CPU in a loop of one turn, of which XLA cannot know that it is one.

    XLA would otherwise fuse what makes the row into every loop that uses it, and run a whole network again for each of
    n rows that it is subtracted from. On a CPU it takes optimization barriers away before it fuses; a loop it leaves
    be. Not differentiated backwards.
    """
    if not on_cpu():
        return jax.lax.optimization_barrier(function(*arrays))
    first = to_bits(arrays[0][(0,) * arrays[0].ndim])
    start = jnp.minimum(first, 0), jnp.zeros(arrays[0].shape[-1], arrays[0].dtype)
    return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (jnp.ones_like(c[0]), function(*arrays)), start)[1]


def in_columns(function: Rowwise, *arrays: Float[Array, "*any D"], fixed: tuple[Any, ...] = ()) -> Float[Array, " D"]:
    """function(*arrays, *fixed) [D]; more rows than NETWORK_LIMIT in a loop over a few columns at a time, written out.

    XLA makes such a small loop one function, in which LLVM sees that nothing overlaps. Over a batch it would not be
    small; there, and for short rows, which are not worth the compilation, the function is called as it is. Not
    differentiated.
    """
    n, D = arrays[0].shape
    if not (NETWORK_LIMIT < n <= COLUMNS_LIMIT and D >= 4 * COLUMNS and small_loops_are_fused()):
        return function(*arrays, *fixed)

    def columns(arrays: tuple[Array, ...], fixed: tuple[Any, ...]) -> Array:
        before = _inside_columns.set(True)
        try:
            return _in_parts(lambda *parts: function(*parts, *fixed), COLUMNS, *arrays)
        finally:
            _inside_columns.reset(before)

    def as_it_is(arrays: tuple[Array, ...], fixed: tuple[Any, ...]) -> Array:
        return function(*arrays, *fixed)

    return alone_or_batched(columns, as_it_is, arrays, fixed)


def ranked_once(function: Rowwise, *arrays: Float[Array, "*any D"]) -> Float[Array, " D"]:
    """A row that comes from a network, of however many rows, and is used for each of them."""
    return in_columns(partial(computed_once, function), *arrays)


def _in_parts(function: Rowwise, size: int, *arrays: Float[Array, "*any D"]) -> Float[Array, " D"]:
    """function(*arrays) [D] as a loop over parts of `size` coordinates; the last two overlap where they must."""
    D = arrays[0].shape[-1]

    def fill(i: Array, row: Array) -> Array:
        start = jnp.minimum(i * size, D - size)
        parts = (jax.lax.dynamic_slice_in_dim(array, start, size, axis=-1) for array in arrays)
        return jax.lax.dynamic_update_slice_in_dim(row, function(*parts), start, axis=0)

    return jax.lax.fori_loop(0, -(-D // size), fill, jnp.zeros(D, arrays[0].dtype))


def add_rows(rows: list[Float[Array, " D"]]) -> Float[Array, " D"]:
    """Sum of rows as one fused loop, by halves: XLA's sum over the leading axis is many times slower on a CPU."""
    while len(rows) > 1:
        rows = [a + b for a, b in zip(rows[::2], rows[1::2], strict=False)] + rows[len(rows) & ~1 :]
    return rows[0]


def _staged_sort(messages: Float[Array, "n D"]) -> Float[Array, "n D"]:
    """Bitonic merge sort, a stage an operation, over tiles of D; padded to a power of two with +∞."""
    n, D = messages.shape
    size = 1 << (n - 1).bit_length()
    tile = min(TILE, D)
    tiles = -(-D // tile)
    padded = jnp.pad(messages, ((0, size - n), (0, tiles * tile - D)), constant_values=jnp.inf)

    def pairwise(x: Array, half: int, mirrored: bool) -> Array:
        blocks = x.reshape(size // (2 * half), 2, half, tile)
        low, high = blocks[:, 0], blocks[:, 1]
        if mirrored:
            high = high[:, ::-1]
        low, high = jnp.minimum(low, high), jnp.maximum(low, high)
        return jnp.stack([low, high[:, ::-1] if mirrored else high], axis=1).reshape(size, tile)

    def sort_tile(i: Array) -> Array:
        x = jax.lax.dynamic_slice(padded, (0, i * tile), (size, tile))
        merged = 1
        while merged < size:
            x = pairwise(x, merged, mirrored=True)
            half = merged // 2
            while half >= 1:
                x = pairwise(x, half, mirrored=False)
                half //= 2
            merged *= 2
        return x[:n]

    ordered = jax.lax.map(sort_tile, jnp.arange(tiles))  # [tiles, n, tile]
    return jnp.moveaxis(ordered, 0, 1).reshape(n, tiles * tile)[:, :D]
