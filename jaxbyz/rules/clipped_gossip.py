"""ClippedGossip: averaging with the neighbours on a graph, with clipped differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, shortening, squared_norms, usable
from jaxbyz.rules.selection import lowest


def clipped_gossip(
    weights: np.ndarray, byzantine: int = 0, *, radius: float | None = None, neighbours: int | None = None
) -> Rule:
    """Return `x_i ← Σ_j W_ij [x_i + clip(x_j − x_i, τ_i)]` with `clip(z, τ) = z·min(1, τ/‖z‖)`, on a graph.

    By default τ_i depends on the messages: `τ_i² = (1/δ_i) Σ_j W_ij ‖x_i − x_j‖²` over all neighbours but the b
    farthest, where δ_i is the weight of the b heaviest neighbours. A neighbour j then moves x_i by at most W_ij·τ_i.
    There is no clipping for b = 0. An unusable message, or one from an agent that is no neighbour, has no effect.
    Agreement requires the honest agents to remain connected when the Byzantine ones are removed; the registered limit
    1/2 is that of the complete graph. Cost K·D per agent.

    Args:
        weights: `[K, K]`, the mixing weights W (receiver, sender).
        byzantine: the number of Byzantine agents f.
        radius: a fixed τ.
        neighbours: the number of Byzantine neighbours b that one agent defends against; by default the smaller of f and
            half of its neighbours.

    References:
        He, Karimireddy & Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022.
    """
    K = len(weights)
    linked = (weights > 0) & ~np.eye(K, dtype=bool)
    degrees = linked.sum(axis=1)
    defended = np.minimum(byzantine, degrees // 2) if neighbours is None else np.minimum(neighbours, degrees)
    descending = np.sort(np.where(linked, weights, 0.0), axis=1)[:, ::-1]
    heaviest = np.array([descending[i, : defended[i]].sum() for i in range(K)])

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        if messages.shape[0] != K:
            raise UsageError(f"clipped-gossip: {messages.shape[0]} messages: must be {K}, one per agent of the graph")
        dtype = messages.dtype
        row = jnp.asarray(weights, dtype)[receiver.index]
        ok = usable(messages) & jnp.asarray(linked)[receiver.index]
        differences = jnp.where(ok[:, None], messages, receiver.own[None]) - receiver.own[None]
        squares = squared_norms(differences)
        if radius is None:
            trusted = jnp.asarray(degrees - defended)[receiver.index]
            delta = jnp.asarray(heaviest, dtype)[receiver.index]
            closest = lowest(jnp.where(ok, jax.lax.stop_gradient(squares), jnp.inf), trusted)
            limit = jnp.sum(jnp.where(ok, row * closest * squares, 0.0)) / jnp.where(delta > 0, delta, 1.0)
            limit = jnp.where(delta > 0, limit, jnp.finfo(dtype).max)
        else:
            limit = jnp.asarray(radius * radius, dtype)
        pulls = jnp.where(ok, row * shortening(squares, limit), 0.0)
        own = jnp.arange(K) == receiver.index
        shares = jnp.where(own, 1.0 - jnp.sum(pulls), pulls)
        return Outcome(receiver.own[None] + mix(pulls[None], differences), shares[None], state)

    return Rule(apply, personal=True, graph=weights)
