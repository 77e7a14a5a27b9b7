"""Order statistics over a small, static number of rows, coordinate by coordinate, with a network of minima and maxima.

XLA's sort is slow on a CPU. The number of messages is small and known when the program is compiled, so Batcher's
odd-even merge sort (Batcher 1968) is unrolled over whole rows: every comparator is two vector instructions, and
comparators that no wanted rank depends on are left out. A result that is one row makes one fused loop over D.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.backend import on_cpu

NETWORK_LIMIT = 128  # beyond this many rows the unrolled program spills; a network of whole stages takes over
GPU_NETWORK_LIMIT = 32  # a GPU runs whole stages well, and its compiler is slow with thousands of formulas
TILE = 2048  # coordinates at a time in the staged network: [256, 2048] floats stay in the second-level cache


def written_out(n: int) -> bool:
    """Whether programs treat n rows one by one."""
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
    rows = [messages[i] for i in range(n)]
    for i, j in comparators(n, tuple(ranks)):
        rows[i], rows[j] = jnp.minimum(rows[i], rows[j]), jnp.maximum(rows[i], rows[j])
    return [rows[r] for r in ranks]


def sort_rows(messages: Float[Array, "n D"]) -> Float[Array, "n D"]:
    """Each coordinate sorted over the rows, ascending. Rows must be free of NaN."""
    return jnp.stack(ranked_rows(messages, range(messages.shape[0])))


def median_rows(messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Coordinate-wise median; the mean of the two middle values when n is even; zero where that is not finite.

    NaN counts as +∞. Not differentiated.
    """

    def median(part: Array) -> Array:
        n = part.shape[0]
        rows = jnp.where(jnp.isnan(part), jnp.inf, part)
        middle = ranked_rows(rows, range((n - 1) // 2, n // 2 + 1))
        value = middle[0] if len(middle) == 1 else 0.5 * (middle[0] + middle[1])
        return jnp.where(jnp.isfinite(value), value, 0.0)

    return computed_once(median, jax.lax.stop_gradient(messages))


def computed_once(function: Callable[..., Float[Array, " d"]], *arrays: Float[Array, "*any D"]) -> Float[Array, " D"]:
    """function(*arrays) [D] as a loop over two halves; the function treats each coordinate (the last axis) alone.

    XLA on a CPU would otherwise fuse what makes the row into every loop that uses it, and run a whole network again for
    each of n rows that it is subtracted from. It takes optimization barriers away before it fuses; a loop it leaves be.
    """
    D = arrays[0].shape[-1]
    half = -(-D // 2)

    def fill(i: Array, row: Array) -> Array:
        start = i * (D - half)  # the halves overlap by one when D is odd
        parts = (jax.lax.dynamic_slice_in_dim(array, start, half, axis=-1) for array in arrays)
        return jax.lax.dynamic_update_slice_in_dim(row, function(*parts), start, axis=0)

    return jax.lax.fori_loop(0, 2, fill, jnp.zeros(D, arrays[0].dtype))


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
