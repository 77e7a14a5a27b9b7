"""Centred clipping: clipped steps from the previous result."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.errors import check_value
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, shortening, squared_norms, usable


def centered_clipping(*, radius: float = 100.0, rounds: int = 1) -> Rule:
    """Update `v ← v + (1/n) Σ_i (x_i − v)·min(1, τ/‖x_i − v‖)` and return v, which persists between calls.

    v starts at zero, and each receiver keeps its own. One call moves v by at most rounds·τ, and f messages move it by
    at most rounds·τ·f/n. The result is not a function of the messages alone, so it reaches their common value only over
    several calls. Breakdown point 1/2. Cost rounds·n·D. Shares are the normalised clipping factors of the last round.
    An unusable message does not count: n is the number of usable ones.

    Args:
        radius: the clipping radius τ (100 in ByzFL; 10 or 1 in the authors' experiments).
        rounds: the number of updates per call.

    References:
        Karimireddy, He & Jaggi, Learning from history for Byzantine robust optimization, 2021.
    """
    check_value("centered-clipping: radius", radius, radius > 0, "positive")
    check_value("centered-clipping: rounds", rounds, rounds >= 1, "at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        ok = usable(messages)
        v = jnp.asarray(state, messages.dtype)
        counted = jnp.maximum(jnp.sum(ok), 1).astype(messages.dtype)
        factors = jnp.ones(n, messages.dtype)
        for _ in range(rounds):
            differences = messages - v[None]
            squares = jnp.where(ok, squared_norms(differences), 0.0)
            factors = jnp.where(ok, shortening(squares, radius * radius), 0.0)
            v = v + mix(factors[None] / counted, differences)[0]
        shares = factors / jnp.maximum(jnp.sum(factors), jnp.finfo(factors.dtype).tiny)
        return Outcome(v[None], shares[None], v.astype(jnp.asarray(state).dtype))

    return Rule(apply, init=lambda n, D: jnp.zeros(D), stateful=True)
