"""Krum and Multi-Krum: the messages with the tightest neighbourhoods (the paper's appendix A.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Rule, normalised, weighted
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import lowest, neighbour_sums


def krum(byzantine: int = 0, *, neighbours: int | None = None) -> Rule:
    """Return `argmin_{x_i} Σ_{j∈S_i} ‖x_j − x_i‖²`, S_i the ⌈(1−α)n⌉ = n − f points nearest to x_i, itself included.

    Breakdown point 1/4 with bucketing in the paper; without bucketing Krum does not satisfy Definition 2, because its
    error does not vanish with α. Cost n²·D. Exact ties are averaged; if n − f = 2, two points are each other's nearest.

    Args:
        byzantine: the number of messages f that it defends against.
        neighbours: the number of other points in S_i; by default the paper's and ByzFL's n − f − 1. Blanchard et al.
            and Flower have n − f − 2.

    References:
        Blanchard et al., Machine learning with adversaries, 2017.
    """
    return multi_krum(byzantine, selected=1, neighbours=neighbours)


def multi_krum(byzantine: int = 0, *, selected: int | None = None, neighbours: int | None = None) -> Rule:
    """Return the mean of the m messages with the least Krum scores.

    Breakdown point 1/2. Cost n²·D.

    Args:
        byzantine: the number of messages f that it defends against.
        selected: the number m; by default n − f, as in ByzFL. Garfield has n − f − 2.
        neighbours: as in `krum`.

    References:
        Blanchard et al., Machine learning with adversaries, 2017.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        m = n - byzantine if selected is None else selected
        if not 1 <= m <= n:
            raise UsageError(f"multi-krum: selected={m} of {n} messages: between 1 and {n}")
        squares = jax.lax.stop_gradient(squared_distances(messages))
        scores = krum_scores(squares, byzantine, neighbours)
        return normalised(lowest(scores, m), ok=jnp.isfinite(jnp.diagonal(squares)))

    return weighted(weights)


def krum_scores(squares: Float[Array, "n n"], byzantine: int, neighbours: int | None) -> Float[Array, " n"]:
    """Sum each point's squared distances to the n − f nearest points, itself included, or to `neighbours` others."""
    n = squares.shape[0]
    count = n - byzantine if neighbours is None else neighbours + 1
    if not 1 <= count <= n:
        raise UsageError(f"krum: neighbours={count - 1} of {n} messages: between 0 and {n - 1}")
    return neighbour_sums(squares, count)
