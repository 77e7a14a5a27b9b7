"""FedPG-BR's filter: the mean of the messages near a majority."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.rules.base import Receiver, Rule, usable, weighted_for_receiver
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import lowest


def fedpg_br(*, sigma: float = 0.06, delta: float = 0.6, batch: int = 16, alpha: float = 0.4) -> Rule:
    """Return the mean of `G = {k : ‖μ_k − μ_mom‖ ≤ T}` with `T = 2σ√(V/B)` and `V = 2 ln(2n/δ)`.

    S are the messages that have more than n/2 of all messages, themselves included, within T. μ_mom is the member of S
    nearest to the mean of S; members that are equally near, such as a pair that is all of S, share its place. If G has
    fewer than (1 − α)n messages or S is empty, the filter runs again with T = 2σ. If S is empty even then, a case that
    the authors' code does not handle, T grows until it is not; without a majority of usable messages the result is
    zero. Breakdown point 1/2. Cost n²·D.

    Args:
        sigma: the bound σ on the deviation of honest messages. It depends on the estimator (`whitened`) and the task;
            if it is far too large, the filter lets everything through.
        delta: the probability δ of failure.
        batch: the batch size B; where it is random, the size that was drawn is used instead.
        alpha: the largest fraction α of messages that the first filter may drop.

    References:
        Fan et al., Fault-tolerant federated reinforcement learning with theoretical guarantee, 2021 (Algorithm 1.1, as
        in their code).
    """

    def weights(messages: Array, receiver: Receiver) -> Array:
        n, drawn = messages.shape[0], receiver.batch
        ok = usable(messages)
        squares = squared_distances(messages)
        distance = jnp.sqrt(squares)

        def good(threshold: float | Array) -> Array:
            """Return the weight of each message in G; fractional if several members of S share the place of μ_mom."""
            close = ((distance <= threshold) | jnp.eye(n, dtype=bool)) & ok[:, None] & ok[None, :]
            crowd = jnp.sum(close, axis=1) > n / 2
            # Σ_{j∈S} ‖μ_i − μ_j‖² is ordered as ‖μ_i − mean‖², and is exactly equal for a pair that is all of S.
            spread = jnp.sum(jnp.where(crowd[None, :], squares, 0.0), axis=1)
            middle = lowest(jnp.where(crowd, spread, jnp.inf), 1)
            return jnp.where(jnp.any(crowd), jnp.sum(jnp.where(close, middle[:, None], 0.0), axis=0), 0.0)

        V = 2 * math.log(2 * n / delta)
        first = good(2 * sigma * (math.sqrt(V / batch) if drawn is None else jnp.sqrt(V / drawn)))
        kept = jnp.where(jnp.sum(first) >= (1 - alpha) * n, first, good(2 * sigma))
        smallest = jnp.min(jnp.sort(distance, axis=1)[:, n // 2])  # the smallest radius that holds a majority
        kept = jnp.where(jnp.any(kept > 0), kept, good(smallest))
        return kept / jnp.maximum(jnp.sum(kept), 1.0)

    return weighted_for_receiver(weights)
