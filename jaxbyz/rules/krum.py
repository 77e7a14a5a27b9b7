"""Krum and Multi-Krum: the messages with the tightest neighbourhoods (the paper's appendix A.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

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
    return _mean_of_lowest("krum", byzantine, 1, neighbours)


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
    return _mean_of_lowest("multi-krum", byzantine, selected, neighbours)


def _mean_of_lowest(name: str, byzantine: int, selected: int | None, neighbours: int | None) -> Rule:
    """Build either rule; `name` is used in error messages."""

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        m = n - byzantine if selected is None else selected
        others = n - byzantine - 1 if neighbours is None else neighbours
        for option, value, least, most in (
            ("byzantine", byzantine, 0, n - 1),
            ("selected", m, 1, n),
            ("neighbours", others, 0, n - 1),
        ):
            if not least <= value <= most:
                raise UsageError(f"{name}: {option}={value} of {n} messages: must be between {least} and {most}")
        squares = jax.lax.stop_gradient(squared_distances(messages))
        scores = neighbour_sums(squares, others + 1)  # a point is nearest to itself
        return normalised(lowest(scores, m), ok=jnp.isfinite(jnp.diagonal(squares)))

    return weighted(weights, rotates=True, translates=True)
