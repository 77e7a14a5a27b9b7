"""ClippedGossip: averaging with one's neighbours on a graph, each pull clipped (He, Karimireddy & Jaggi 2022)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, squared_norms, usable
from jaxbyz.rules.distances import lowest


def clipped_gossip(
    weights: np.ndarray, byzantine: int = 0, *, radius: float | None = None, neighbours: int | None = None
) -> Rule:
    """x_i ← Σ_j W_ij [x_i + clip(x_j − x_i, τ_i)], clip(z, τ) = z·min(1, τ/‖z‖), on a graph with weights W [K, K].

    τ_i is `radius`, or else follows the data as He et al. 2022 set it: τ_i² = (1/δ_i) Σ_j W_ij‖x_i − x_j‖² over the
    neighbours that could be honest, all but the b farthest, with δ_i the weight of the b heaviest. b is `neighbours`,
    the Byzantine neighbours one agent defends against: min(f, half of its neighbours) by default. Nobody's pull is
    then longer than √(the mean square of honest distances/δ_i), whatever it sent. No clipping for b = 0. An unusable
    message, or one from no neighbour, pulls nowhere. Limit: agreement needs honest agents connected without the others;
    the registered 1/2 is for the complete graph. Cost K·D an agent.
    """
    K = len(weights)
    linked = (weights > 0) & ~np.eye(K, dtype=bool)
    degrees = linked.sum(axis=1)
    defended = np.minimum(byzantine, degrees // 2) if neighbours is None else np.minimum(neighbours, degrees)
    ordered = np.sort(np.where(linked, weights, 0.0), axis=1)[:, ::-1]
    heaviest = np.array([ordered[i, : defended[i]].sum() for i in range(K)])

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        if messages.shape[0] != K:
            raise UsageError(f"clipped-gossip: {messages.shape[0]} messages on a graph of {K} agents")
        dtype = messages.dtype
        row = jnp.asarray(weights, dtype)[receiver.index]
        near = jnp.asarray(linked)[receiver.index]
        spare = jnp.asarray(degrees - defended)[receiver.index]
        delta = jnp.asarray(heaviest, dtype)[receiver.index]
        ok = usable(messages) & near
        gaps = jnp.where(ok[:, None], messages, receiver.own[None]) - receiver.own[None]
        squares = squared_norms(gaps)
        if radius is None:
            fixed = jax.lax.stop_gradient(squares)
            closest = lowest(jnp.where(ok, fixed, jnp.inf), spare)
            limit = jnp.sum(jnp.where(ok, row * closest * squares, 0.0)) / jnp.where(delta > 0, delta, 1.0)
            limit = jnp.where(delta > 0, limit, jnp.finfo(dtype).max)
        else:
            limit = jnp.asarray(radius * radius, dtype)
        above = squares > limit
        factors = jnp.where(above, _root(limit) * jax.lax.rsqrt(jnp.where(above, squares, 1.0)), 1.0)
        pulls = jnp.where(ok, row * factors, 0.0)
        own = jnp.arange(K) == receiver.index
        shares = jnp.where(own, 1.0 - jnp.sum(pulls), pulls)
        return Outcome((receiver.own[None] + mix(pulls[None], gaps)), shares[None], state)

    return Rule(apply, personal=True, graph=weights)


def _root(square: Array) -> Array:
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
