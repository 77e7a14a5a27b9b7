"""Krum: the message whose neighbourhood is tightest (Blanchard et al. 2017; the paper's appendix A.2)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.rules.base import Rule, weighted
from jaxbyz.rules.distances import squared_distances


def neighbour_sums(squares: Float[Array, "n n"], neighbours: int) -> Float[Array, " n"]:
    """Krum's score: sum of the `neighbours` least entries of each row (the zero distance to itself is one)."""
    return jnp.sum(jnp.sort(squares, axis=1)[:, :neighbours], axis=1)


def krum(byzantine: int = 0, *, neighbours: int | None = None) -> Rule:
    """argmin over x_i of Σ_{j∈S_i} ‖x_j − x_i‖², S_i the ⌈(1−α)n⌉ = n − f points nearest to x_i, itself included.

    That count is the paper's. `neighbours` sets another number of *other* points: n − f − 2 in Blanchard et al. and
    Flower, n − f − 1 in ByzFL (which is the paper's, since a point's distance to itself is zero).
    Breakdown point 1/4 with bucketing in the paper; without it Krum does not satisfy Definition 2, for its error does
    not vanish with α. Cost n²·D. Ties go to the lowest index.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        count = math.ceil((1 - byzantine / n) * n - 1e-9) if neighbours is None else neighbours + 1
        if not 1 <= count <= n:
            raise ValueError(f"neighbours={neighbours} of {n} messages: between 0 and {n - 1}")
        best = jnp.argmin(neighbour_sums(squared_distances(messages), count))
        return jax.nn.one_hot(best, n, dtype=messages.dtype)

    return weighted(weights)
