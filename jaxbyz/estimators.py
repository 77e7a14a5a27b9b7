"""Gradient estimates from episodes: GPOMDP and REINFORCE, baselines, importance weights (the paper's appendix A.1).

Both estimators are Σ_t q_t ∇ log π(a_t | s_t) with their own q_t, so one pass over the episodes serves both: chunks of
time are visited from the last living one to the first, carrying the reward to go. Axes as in `jaxbyz.rollout`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.policies import Policy
from jaxbyz.registry import UsageError
from jaxbyz.rollout import CHUNK, Episodes

ESTIMATORS = ("gpomdp", "reinforce")
BASELINES = ("none", "constant", "leave-one-out")
WEIGHTS = ("trajectory", "per-decision")
LARGEST_LOG_WEIGHT = 40.0  # a weight of e⁴⁰ is no estimate any more, but it stays a finite number


class Estimator(NamedTuple):
    """Which estimate is made of a batch.

    kind:     gpomdp: q_t = Σ_{h≥t} (γ^h r_h − b_h); reinforce: q_t = Σ_h γ^h r_h − b
    gamma:    discount γ
    horizon:  H; rewards after an episode's end are zero, a constant baseline is subtracted up to H all the same
    baseline: none; constant (b_h = b = baseline_value); leave-one-out: the mean over the *other* episodes of the batch,
              b_h time step by time step for gpomdp. All three leave the estimate unbiased.
    weights:  trajectory: ω(τ) = p(τ|θ')/p(τ|θ), the paper's; per-decision: reward h is weighted by the actions up to h
    clip:     weights are cut at this value; None for the paper's
    """

    kind: str = "gpomdp"
    gamma: float = 0.999
    horizon: int = 500
    baseline: str = "none"
    baseline_value: float = 0.0
    weights: str = "trajectory"
    clip: float | None = None

    def check(self) -> Estimator:
        """Raise a one-line error for a name that does not exist."""
        for option, value, known in (
            ("estimator", self.kind, ESTIMATORS),
            ("baseline", self.baseline, BASELINES),
            ("weights", self.weights, WEIGHTS),
        ):
            if value not in known:
                raise UsageError(f"{option}={value!r} is unknown: one of {', '.join(known)}")
        return self


def estimate(
    estimator: Estimator,
    policy: Policy,
    parameters: Float[Array, "A D"],
    episodes: Episodes,
    weights: Float[Array, "T A M"] | Float[Array, "1 A M"] | None = None,
) -> Float[Array, "A D"]:
    """(1/M) Σ_i Σ_t q_t^i ∇ log π(a_t^i | s_t^i; θ) for each of A agents.

    weights [T, A, M] (or [1, A, M], the same at all times) multiply the reward terms: importance weights ω_{0:h}.
    """
    T, A, M = episodes.rewards.shape
    size = min(CHUNK, T)
    trees = jax.vmap(policy.unravel)(parameters)
    later = jnp.triu(jnp.ones((size, size), jnp.float32))  # [t, h]: h at or after t
    constant = weights is None or weights.shape[0] == 1

    def objective(trees: Any, observations: Array, actions: Array, q: Array) -> Array:
        distribution = jax.vmap(policy.apply, in_axes=(0, 1), out_axes=1)(trees, observations)
        return jnp.sum(policy.log_prob(distribution, actions) * q)

    def terms(start: Array) -> Array:
        """Weighted γ^h r_h − b_h of one chunk, [size, A, M]."""
        h = start + jnp.arange(size)
        value = _slice(episodes.rewards, start, size) * jnp.power(estimator.gamma, h)[:, None, None]
        if estimator.baseline == "leave-one-out" and M > 1:
            value = value - (jnp.sum(value, axis=2, keepdims=True) - value) / (M - 1)
        if estimator.baseline == "constant" and estimator.kind == "gpomdp":
            value = value - estimator.baseline_value * (h < estimator.horizon)[:, None, None]
        if weights is None:
            return value
        return value * (weights if constant else _slice(weights, start, size))

    def total(i: Array, done: Array) -> Array:
        return done + jnp.sum(terms(i * size), axis=0)

    whole = jnp.zeros((A, M))
    if estimator.kind == "reinforce":
        whole = jax.lax.fori_loop(0, episodes.chunks, total, whole)
        if estimator.baseline == "constant":
            last = 1.0 if weights is None else weights[-1]
            whole = whole - estimator.baseline_value * last
    elif estimator.baseline == "constant":  # b is subtracted up to the horizon, also after the last living chunk
        rest = jnp.maximum(estimator.horizon - episodes.chunks * size, 0)
        last = jnp.ones((A, M)) if weights is None else weights[-1]
        whole = whole - estimator.baseline_value * rest * last

    def chunk(i: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        to_go, gradient = carry
        start = (episodes.chunks - 1 - i) * size
        if estimator.kind == "gpomdp":
            q = jnp.einsum("th,ham->tam", later, terms(start), precision=jax.lax.Precision.HIGHEST) + to_go
            to_go = q[0]
        else:
            q = jnp.broadcast_to(whole, (size, A, M))
        q = jnp.where(_slice(episodes.alive, start, size), q, 0.0)
        part = jax.grad(objective)(
            trees, _slice(episodes.observations, start, size), _slice(episodes.actions, start, size), q
        )
        return to_go, jax.tree.map(jnp.add, gradient, part)

    zero = jax.tree.map(jnp.zeros_like, trees)
    _, gradient = jax.lax.fori_loop(0, episodes.chunks, chunk, (whole, zero))
    return jax.vmap(_ravel)(gradient) / M


def log_ratios(policy: Policy, parameters: Float[Array, "A D"], episodes: Episodes) -> Float[Array, "T A M"]:
    """log π(a_t | s_t; θ') − log π(a_t | s_t; θ) at every step, θ' = parameters [A, D], θ the behaviour policy's."""
    T = episodes.rewards.shape[0]
    size = min(CHUNK, T)
    trees = jax.vmap(policy.unravel)(parameters)

    def chunk(i: Array, ratios: Array) -> Array:
        start = i * size
        observations = _slice(episodes.observations, start, size)
        distribution = jax.vmap(policy.apply, in_axes=(0, 1), out_axes=1)(trees, observations)
        new = policy.log_prob(distribution, _slice(episodes.actions, start, size))
        part = jnp.where(_slice(episodes.alive, start, size), new - _slice(episodes.log_probs, start, size), 0.0)
        return jax.lax.dynamic_update_slice_in_dim(ratios, part, start, axis=0)

    return jax.lax.fori_loop(0, episodes.chunks, chunk, jnp.zeros_like(episodes.log_probs))


class Weights(NamedTuple):
    """values: what `estimate` takes; ess [A]: (Σω)²/(M·Σω²), in (0, 1]; largest [A]: max ω before clipping."""

    values: Float[Array, "T A M"]
    ess: Float[Array, " A"]
    largest: Float[Array, " A"]


def importance_weights(
    estimator: Estimator, policy: Policy, previous: Float[Array, "A D"], episodes: Episodes
) -> Weights:
    """ω(τ | θ, θ') = p(τ | θ')/p(τ | θ) for episodes drawn at θ, θ' = previous; products taken in log space."""
    ratios = log_ratios(policy, previous, episodes)
    logs = jnp.cumsum(ratios, axis=0) if estimator.weights == "per-decision" else jnp.sum(ratios, axis=0, keepdims=True)
    omega = jnp.exp(jnp.minimum(logs, LARGEST_LOG_WEIGHT))
    values = omega if estimator.clip is None else jnp.minimum(omega, estimator.clip)
    final = values[-1]
    M = final.shape[1]
    ess = jnp.sum(final, axis=1) ** 2 / jnp.maximum(M * jnp.sum(final * final, axis=1), jnp.finfo(final.dtype).tiny)
    return Weights(values, ess, jnp.max(omega[-1], axis=1))


def _slice(x: Array, start: Array, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis=0)


def _ravel(tree: Any) -> Array:
    return jax.flatten_util.ravel_pytree(tree)[0]
