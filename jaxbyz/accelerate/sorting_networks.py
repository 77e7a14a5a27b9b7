"""Order statistics of a few rows, coordinate by coordinate, from a network of minima and maxima.

XLA's sort is about 100× slower than this on a CPU. The number of rows is small and known when the program is compiled,
so Batcher's odd-even merge sort (Batcher 1968) is unrolled over whole rows: every comparator is two vector
instructions, and comparators that no wanted rank depends on are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.accelerate.no_inline import stored
from jaxbyz.accelerate.platform import on_cpu, plain
from jaxbyz.accelerate.weighted_sums import split_rows, sum_rows

# LLVM vectorises a loop only if it can rule out that any of the rows it reads overlaps with the row it writes, which it
# does for at most this many rows.
CPU_NETWORK_ROWS = 128
GPU_NETWORK_ROWS = 64  # the compiler of a GPU is slow with thousands of comparators


def sum_of_ranks(
    rows: Float[Array, "n D"], ranks: range, centre: Float[Array, " D"] | None = None
) -> Float[Array, " D"]:
    """Sum the order statistics of the given ranks in every coordinate: `Σ_{r∈ranks} x_(r)k`, rank 0 the smallest.

    Not differentiated.

    Args:
        rows: `[n, D]`, free of NaN.
        ranks: consecutive ranks.
        centre: if given, rank the distances `|x_ik − centre_k|` instead of the values.
    """
    rows = jax.lax.stop_gradient(rows)
    if plain() or len(rows) > (CPU_NETWORK_ROWS if on_cpu() else GPU_NETWORK_ROWS):
        return sum_of_ranks_plain(rows, ranks, centre)

    def network(rows: Array, *centre: Array) -> Array:
        values = split_rows(rows)
        values = [jnp.abs(row - centre[0]) for row in values] if centre else values
        for i, j in comparators(len(values), ranks):  # lax: jnp's checks take seconds for a thousand comparators
            values[i], values[j] = jax.lax.min(values[i], values[j]), jax.lax.max(values[i], values[j])
        return sum_rows(values[ranks.start : ranks.stop])

    return store_result(network, rows, *(() if centre is None else (jax.lax.stop_gradient(centre),)))


def sum_of_ranks_plain(
    rows: Float[Array, "n D"], ranks: range, centre: Float[Array, " D"] | None = None
) -> Float[Array, " D"]:
    """Plain version of `sum_of_ranks`, also used for many rows."""
    values = rows if centre is None else jnp.abs(rows - centre[None])
    return jnp.sum(jnp.sort(values, axis=0)[ranks.start : ranks.stop], axis=0)


def count_rows(
    condition: Callable[..., Bool[Array, "*any"]], rows: Float[Array, "n D"], *bounds: Float[Array, " D"]
) -> Float[Array, " D"]:
    """Count in every coordinate k the rows i for which `condition(x_ik, *bounds_k)` holds.

    Args:
        condition: element-wise, for example `jnp.less`.
        rows: `[n, D]`.
        *bounds: `[D]` each.
    """
    if plain() or len(rows) > CPU_NETWORK_ROWS:
        return count_rows_plain(condition, rows, *bounds)
    return store_result(
        lambda rows, *bounds: sum_rows([condition(row, *bounds).astype(rows.dtype) for row in split_rows(rows)]),
        *jax.lax.stop_gradient((rows, *bounds)),
    )


def count_rows_plain(
    condition: Callable[..., Bool[Array, "*any"]], rows: Float[Array, "n D"], *bounds: Float[Array, " D"]
) -> Float[Array, " D"]:
    """Plain version of `count_rows`, also used for many rows."""
    return jnp.sum(condition(rows, *(bound[None] for bound in bounds)), axis=0, dtype=rows.dtype)


@cache
def comparators(n: int, ranks: range) -> tuple[tuple[int, int], ...]:
    """Return the pairs (i, j), i < j, of Batcher's network for n rows that the given ranks depend on.

    If the minimum goes to row i and the maximum to row j for each pair in turn, these rows are in ascending order.
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
    needed, kept = set(ranks), []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            kept.append((i, j))
            needed |= {i, j}
    return tuple(reversed(kept))


def store_result(function: Callable[..., Float[Array, " D"]], *arrays: Float[Array, "*any D"]) -> Float[Array, " D"]:
    """Return `function(*arrays)`, `[D]`, and make sure that XLA stores it.

    XLA would otherwise fuse the computation of the row into every loop that uses it, and run a whole network again for
    each of the n rows that the result is compared with. XLA for CPU removes optimization barriers before it fuses.
    """
    result = function(*arrays)
    return stored(result) if on_cpu() else jax.lax.optimization_barrier(result)
