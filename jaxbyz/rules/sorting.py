"""Sorting a small, static number of rows coordinate by coordinate, with a network of minima and maxima.

XLA's sort is slow on a CPU. The number of messages is small and known when the program is compiled, so Batcher's
odd-even merge sort (Batcher 1968) is unrolled over whole rows: every comparator is two vector instructions.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
from jaxtyping import Array, Float

NETWORK_LIMIT = 64  # beyond this many rows the unrolled program grows too long, and XLA's sort takes over


@cache
def comparators(n: int) -> tuple[tuple[int, int], ...]:
    """Pairs (i, j), i < j, of Batcher's network: after min to i and max to j for each in turn, rows ascend."""
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
    return tuple(pairs)


def sort_rows(messages: Float[Array, "n D"]) -> Float[Array, "n D"]:
    """Each coordinate sorted over the rows, ascending. Rows must be free of NaN."""
    n = messages.shape[0]
    if n > NETWORK_LIMIT:
        return jnp.sort(messages, axis=0)
    rows = [messages[i] for i in range(n)]
    for i, j in comparators(n):
        rows[i], rows[j] = jnp.minimum(rows[i], rows[j]), jnp.maximum(rows[i], rows[j])
    return jnp.stack(rows)


def median_rows(messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Coordinate-wise median; the mean of the two middle values when n is even."""
    n = messages.shape[0]
    ordered = sort_rows(messages)
    return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2]) if n % 2 == 0 else ordered[n // 2]
