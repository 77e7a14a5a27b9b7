"""Rules that shorten long messages: centred clipping (aggregator), static clipping and ARC (pre-aggregators)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, largest_square, mix, squared_norms, usable
from jaxbyz.rules.distances import lowest


def clip_factors(squares: Float[Array, " n"], radius: float | Array) -> Float[Array, " n"]:
    """min(1, τ/‖x_i‖) from ‖x_i‖², with a finite gradient everywhere."""
    above = squares > radius * radius
    return jnp.where(above, radius * jax.lax.rsqrt(jnp.where(above, squares, 1.0)), 1.0)


def centered_clipping(*, radius: float = 100.0, rounds: int = 1) -> Rule:
    """v ← v + (1/n) Σ_i (x_i − v)·min(1, τ/‖x_i − v‖), `rounds` times; v persists from call to call, 0 at first.

    Karimireddy et al. 2021, with τ = `radius` (100 in ByzFL, 10 or 1 in the paper's experiments). Each receiver keeps
    its own v. One call moves v by at most rounds·τ, f messages by at most rounds·τ·f/n; it is no function of its
    messages alone, so it recovers their common value only over calls. Breakdown point 1/2. Cost rounds·n·D.
    Shares are the clipping factors of the last round, normalised: each sender's part in the move. An unusable message
    moves nothing.
    """
    if radius <= 0 or rounds < 1:
        raise UsageError(f"centered-clipping: radius={radius}, rounds={rounds}: both must be positive")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        ok = usable(messages)
        v = jnp.asarray(state, messages.dtype)
        factors = jnp.ones(n, messages.dtype)
        for _ in range(rounds):
            apart = messages - v[None]
            squares = jnp.where(ok, squared_norms(apart), 0.0)
            factors = jnp.where(ok, clip_factors(squares, radius), 0.0)
            v = v + mix(factors[None] / n, apart)[0]
        shares = factors / jnp.maximum(jnp.sum(factors), jnp.finfo(factors.dtype).tiny)
        return Outcome(v[None], shares[None], v.astype(jnp.asarray(state).dtype))

    return Rule(apply, init=lambda n, D: jnp.zeros(D), stateful=True)


def clipping(*, radius: float = 2.0) -> Rule:
    """Static clipping, a pre-aggregator: y_i = x_i·min(1, c/‖x_i‖) with c = `radius`. Cost n·D.

    An unusable message has no direction to keep and becomes zero. No rule by itself: it bounds what a rule behind it
    has to stand (breakdown point 0 before the mean, an error of at most 2c·f/n).
    """
    if radius <= 0:
        raise UsageError(f"clipping: radius={radius} must be positive")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        squares = squared_norms(messages)
        ok = squares <= largest_square(messages.dtype)
        factors = clip_factors(jnp.where(ok, squares, 0.0), radius)
        rows = jnp.where(ok[:, None], messages, 0.0) * factors[:, None]
        return Outcome(rows, jnp.eye(messages.shape[0], dtype=messages.dtype), state)

    return Rule(apply)


def arc(byzantine: int = 0) -> Rule:
    """Adaptive robust clipping, a pre-aggregator: clip the ⌊2f(n − f)/n⌋ longest messages to the next longest.

    Allouah et al. 2025. Keeps the breakdown point of the rule behind it, f < n/2. Cost n·D + n². An unusable message is
    the longest of all, has no direction to keep, and becomes zero.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        squares = squared_norms(messages)
        ok = squares <= largest_square(messages.dtype)
        safe, squares = jnp.where(ok[:, None], messages, 0.0), jnp.where(ok, squares, 0.0)
        clipped = min(2 * byzantine * (n - byzantine) // n, n - 1)
        # The longest of those left alone: the largest norm among the n − clipped shortest.
        kept = lowest(jnp.where(ok, squares, jnp.inf), n - clipped) > 0
        radius_squared = jnp.max(jnp.where(kept & ok, squares, 0.0))
        above = squares > radius_squared
        positive = radius_squared > 0
        radius = jnp.where(positive, jnp.sqrt(jnp.where(positive, radius_squared, 1.0)), 0.0)
        factors = jnp.where(above, radius * jax.lax.rsqrt(jnp.where(above, squares, 1.0)), 1.0)
        return Outcome(safe * factors[:, None], jnp.eye(n, dtype=messages.dtype), state)

    return Rule(apply)
