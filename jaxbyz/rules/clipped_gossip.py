"""ClippedGossip: averaging with the neighbours on a graph, with clipped differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.errors import UsageError, check_choice
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, shortening, squared_norms, usable
from jaxbyz.rules.selection import lowest

THRESHOLDS = ("he", "cs+")
ROUNDING = 1e-5  # sums of equal weights must count as equal, in whatever order they are added


def clipped_gossip(
    weights: np.ndarray,
    byzantine: int = 0,
    *,
    radius: float | None = None,
    neighbours: int | None = None,
    threshold: str = "he",
) -> Rule:
    """Return `x_i ← Σ_j W_ij [x_i + clip(x_j − x_i, τ_i)]` with `clip(z, τ) = z·min(1, τ/‖z‖)`, on a graph.

    By default τ_i depends on the messages: `τ_i² = (1/δ_i) Σ_j W_ij ‖x_i − x_j‖²` over all neighbours but the b
    farthest, where δ_i is the weight of the b heaviest neighbours. A neighbour j then moves x_i by at most W_ij·τ_i.
    With `threshold="cs+"` it is CS₊-RG: τ_i is the largest τ for which the neighbours with ‖x_i − x_j‖ ≥ τ have at
    least the weight 2δ_i, so that all of them are clipped to the distance of an honest one among them.
    There is no clipping for b = 0. An unusable message, or one from an agent that is no neighbour, has no effect.
    Agreement requires the honest agents to remain connected when the Byzantine ones are removed; the registered limit
    1/2 is that of the complete graph. Cost K·D per agent.

    Args:
        weights: `[K, K]`, the mixing weights W (receiver, sender).
        byzantine: the number of Byzantine agents f.
        radius: a fixed τ.
        neighbours: the number of Byzantine neighbours b that one agent defends against; by default the smaller of f and
            half of its neighbours.
        threshold: how τ_i is chosen, `"he"` or `"cs+"`.

    References:
        He, Karimireddy & Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022.
        Gaucher, Dieuleveut & Hendrikx, Unified breakdown analysis for Byzantine robust gossip, 2025 (CS₊-RG).
    """
    check_choice("threshold", threshold, THRESHOLDS)
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
        delta = jnp.asarray(heaviest, dtype)[receiver.index]
        if radius is None and threshold == "cs+":
            neighbour_weights = jnp.where(jnp.asarray(linked)[receiver.index], row, 0.0)
            distances = jnp.where(ok, jax.lax.stop_gradient(squares), jnp.inf)
            limit = _cs_plus_limit(distances, ok, neighbour_weights, delta)
        elif radius is None:
            trusted = jnp.asarray(degrees - defended)[receiver.index]
            closest = lowest(jnp.where(ok, jax.lax.stop_gradient(squares), jnp.inf), trusted)
            limit = jnp.sum(jnp.where(ok, row * closest * squares, 0.0)) / jnp.where(delta > 0, delta, 1.0)
            limit = jnp.where(delta > 0, limit, jnp.finfo(dtype).max)
        else:
            limit = jnp.asarray(radius * radius, dtype)
        pulls = jnp.where(ok, row * shortening(squares, limit), 0.0)
        own = jnp.arange(K) == receiver.index
        shares = jnp.where(own, 1.0 - jnp.sum(pulls), pulls)
        return Outcome(receiver.own[None] + mix(pulls[None], differences), shares[None], state)

    return Rule(apply, personal=True, graph=weights, averages=True, translates=True)


def _cs_plus_limit(
    squares: Float[Array, " K"], ok: Bool[Array, " K"], weights: Float[Array, " K"], delta: Float[Array, ""]
) -> Float[Array, ""]:
    """Return τ² of CS₊: the largest squared distance for which neighbours at least that far away weigh 2δ or more.

    Args:
        squares: `[K]`, squared distances; infinite for unusable messages.
        ok: `[K]`, whether the agent is a neighbour whose message is usable.
        weights: `[K]`, the mixing weights of the neighbours, zero for all others.
        delta: `[]`, the weight δ of the neighbours that may be Byzantine.
    """
    as_far = squares[None, :] >= squares[:, None]
    enough = jnp.sum(jnp.where(as_far, weights[None], 0.0), axis=1) >= 2.0 * delta * (1.0 - ROUNDING)
    limit = jnp.max(jnp.where(enough & ok, squares, 0.0))
    return jnp.where(delta > 0, limit, jnp.finfo(squares.dtype).max)
