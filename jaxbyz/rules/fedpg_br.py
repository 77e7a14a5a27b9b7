"""FedPG-BR's filter: mean of the messages near a majority (Fan et al. 2021, Algorithm 1.1, as their code has it)."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.rules.base import Rule, usable, weighted
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import lowest


def fedpg_br(*, sigma: float = 0.06, delta: float = 0.6, batch: int = 16, alpha: float = 0.4) -> Rule:
    """Mean of G = {k : ‖μ_k − μ_mom‖ ≤ T} with T = 2σ√(V/B), V = 2 ln(2n/δ).

    S are the messages with more than n/2 of all within T (themselves included), μ_mom the member of S nearest to the
    mean of S; several that are equally near, such as a pair that is all of S, share its place. When G holds fewer than
    (1 − α)n messages or S is empty, the filter is run again with T = 2σ. If S is empty even then (their code has no
    answer), T grows until it is not. σ bounds the honest deviation and belongs to the estimator (`whitened`) and the
    task; with a σ far too large the filter lets everything through.
    Breakdown point 1/2; cost n²·D.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        ok = usable(messages)
        squares = squared_distances(messages)
        distance = jnp.sqrt(squares)

        def good(threshold: float | Array) -> Array:
            """How much of each message is in G: part of it where several members of S are the nearest to its mean."""
            close = (distance <= threshold) | (jnp.eye(n, dtype=bool) & ok[:, None])
            crowd = jnp.sum(close, axis=1) > n / 2
            # Σ_j ‖μ_i − μ_j‖² over S orders as ‖μ_i − mean‖² does, and is exactly equal for two that are all of S.
            spread = jnp.sum(jnp.where(crowd[None, :], squares, 0.0), axis=1)
            middle = lowest(jnp.where(crowd, spread, jnp.inf), 1)
            return jnp.where(jnp.any(crowd), jnp.sum(jnp.where(close, middle[:, None], 0.0), axis=0), 0.0)

        first = good(2 * sigma * math.sqrt(2 * math.log(2 * n / delta) / batch))
        chosen = jnp.where(jnp.sum(first) >= (1 - alpha) * n, first, good(2 * sigma))
        least = jnp.min(jnp.sort(distance, axis=1)[:, n // 2])  # the smallest radius that holds a majority
        chosen = jnp.where(jnp.any(chosen > 0), chosen, good(least))
        return chosen / jnp.maximum(jnp.sum(chosen), 1.0)

    return weighted(weights)
