"""Gradient estimates from episodes: GPOMDP and REINFORCE, baselines, importance weights (the paper's appendix A.1).

All estimators are Σ_t q_t ∇ log π(a_t | s_t) with their own q_t (`coefficients`), so one weighted sum of scores serves
them all. Both go chunk by chunk over the living steps only. Axes as in `jaxbyz.sampling.rollout`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxbyz.accelerate import kernels
from jaxbyz.accelerate.living import PARAMETERS, Strips, living
from jaxbyz.accelerate.platform import kernels_run, on_cpu
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.sampling.rollout import Episodes

ESTIMATORS = ("gpomdp", "reinforce", "whitened")
BASELINES = ("none", "constant", "leave-one-out")
WEIGHTS = ("trajectory", "per-decision", "per-step", "published")
LARGEST_LOG_WEIGHT = 40.0  # a weight of e⁴⁰ is no estimate any more, but it stays a finite number
PUBLISHED_FLOOR = 1e-9  # added to p(τ|θ) by the published code


class Estimator(NamedTuple):
    """Which estimate is made of a batch.

    kind:     gpomdp: q_t = Σ_{h≥t} (γ^h r_h − b_h); reinforce: q_t = Σ_h γ^h r_h − b; whitened: q_t = the reward to go
              Σ_{h≥t} γ^{h−t} r_h less its mean over the episode, over its deviation, all divided by the batch's steps
              an episode (FedPG-BR's estimate, not of ∇J but of bounded size)
    gamma:    discount γ
    horizon:  H; rewards after an episode's end are zero, a constant baseline is subtracted up to H all the same
    baseline: none; constant (b_h = b = baseline_value); leave-one-out: the mean over the *other* episodes of the batch,
              b_h time step by time step for gpomdp. All three leave the estimate unbiased.
    weights:  trajectory: ω(τ) = p(τ|θ')/p(τ|θ), the paper's; per-decision: reward h is weighted by the actions up to h;
              per-step: the term of step t is weighted by its own action's ratio (FedPG-BR's, for `whitened`);
              published: p(τ|θ')/(p(τ|θ) + 1e-9) with float32 products, as the paper's code has it: 0 for long episodes
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
        if (problem := incompatible(self.kind, self.weights, self.baseline)) is not None:
            raise UsageError(problem)
        return self


def incompatible(kind: str, weights: str, baseline: str) -> str | None:
    """Why an estimator, its weights and its baseline do not go together, or None."""
    if kind == "reinforce" and weights == "per-decision":
        return "weights=per-decision with estimator=reinforce: biased; they belong to gpomdp's step rewards"
    if (kind == "whitened") != (weights == "per-step"):
        return f"weights={weights} with estimator={kind}: per-step weights and the whitened estimate belong together"
    if kind == "whitened" and baseline != "none":
        return f"baseline={baseline} with estimator=whitened: whitening is its baseline; use none"
    return None


def whitened_coefficients(estimator: Estimator, episodes: Episodes) -> Float[Array, "n A C M"]:
    """q_t of the whitened estimate: each episode's rewards to go with mean 0 and deviation 1, over steps an episode."""
    n, A, C, M = episodes.rewards.shape
    later = jnp.triu(jnp.ones((C, C))) * estimator.gamma ** jnp.maximum(jnp.arange(C)[None] - jnp.arange(C)[:, None], 0)
    left = estimator.gamma ** (C - jnp.arange(C, dtype=jnp.float32))  # from step t to the next chunk

    def chunk(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        to_go, buffer = carry
        c = episodes.chunks - 1 - i
        value = jnp.einsum("th,ahm->atm", later, episodes.rewards[c], precision=jax.lax.Precision.HIGHEST)
        value = value + left[None, :, None] * to_go[:, None]
        return value[:, 0], buffer.at[c].set(value)

    _, to_go = jax.lax.fori_loop(0, episodes.chunks, chunk, (jnp.zeros((A, M)), jnp.zeros((n, A, C, M))))
    length = jnp.maximum(episodes.lengths, 1).astype(jnp.float32)[None, :, None]
    mean = jnp.sum(jnp.where(episodes.alive, to_go, 0.0), axis=(0, 2), keepdims=True) / length
    gap = jnp.where(episodes.alive, to_go - mean, 0.0)
    deviation = jnp.sqrt(jnp.sum(gap * gap, axis=(0, 2), keepdims=True) / length)
    steps = jnp.sum(length, axis=3, keepdims=True) / M
    return gap / ((deviation + 1e-8) * steps)


def estimate(
    estimator: Estimator,
    policy: Policy,
    parameters: Float[Array, "A D"],
    episodes: Episodes,
    weights: Float[Array, "n A C M"] | Float[Array, "A M"] | None = None,
) -> Float[Array, "A D"]:
    """(1/M) Σ_i Σ_t q_t^i ∇ log π(a_t^i | s_t^i; θ) for each of A agents.

    weights multiply the reward terms: importance weights ω [A, M] of whole episodes, or ω_{0:h} [n, A, C, M].
    """
    q = coefficients(estimator, episodes, weights)
    gradient = weighted_scores(policy, jax.vmap(policy.unravel)(parameters), episodes, q)
    return jax.vmap(lambda tree: ravel_pytree(tree)[0])(gradient) / q.shape[3]


def coefficients(
    estimator: Estimator,
    episodes: Episodes,
    weights: Float[Array, "n A C M"] | Float[Array, "A M"] | None = None,
) -> Float[Array, "n A C M"]:
    """q_t^i, zero at steps that were not taken. Chunks after the last living one are zero."""
    n, A, C, M = episodes.rewards.shape
    later = jnp.triu(jnp.ones((C, C), jnp.float32))  # [t, h]: h at or after t
    last = 1.0 if weights is None else weights if weights.ndim == 2 else weights[-1, :, -1]

    def terms(c: Array) -> Float[Array, "A C M"]:
        """Weighted γ^h r_h − b_h of one chunk."""
        h = c * C + jnp.arange(C)
        value = episodes.rewards[c] * jnp.power(estimator.gamma, h)[None, :, None]
        if estimator.baseline == "leave-one-out" and M > 1:
            value = value - (jnp.sum(value, axis=2, keepdims=True) - value) / (M - 1)
        if estimator.baseline == "constant" and estimator.kind == "gpomdp":
            value = value - estimator.baseline_value * (h < estimator.horizon)[None, :, None]
        if weights is None:
            return value
        return value * (weights[:, None] if weights.ndim == 2 else weights[c])

    if estimator.kind == "whitened":
        whitened = whitened_coefficients(estimator, episodes)
        return whitened if weights is None else whitened * weights
    whole = jnp.zeros((A, M))
    if estimator.kind == "reinforce":
        whole = jax.lax.fori_loop(0, episodes.chunks, lambda c, done: done + jnp.sum(terms(c), axis=1), whole)
        if estimator.baseline == "constant":
            whole = whole - estimator.baseline_value * last
        return jnp.where(episodes.alive, whole[:, None], 0.0)
    if estimator.baseline == "constant":  # b is subtracted up to the horizon, also after the last living chunk
        rest = jnp.maximum(estimator.horizon - episodes.chunks * C, 0)
        whole = whole - estimator.baseline_value * rest * last

    def chunk(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        to_go, buffer = carry
        c = episodes.chunks - 1 - i
        q = jnp.einsum("th,ahm->atm", later, terms(c), precision=jax.lax.Precision.HIGHEST) + to_go[:, None]
        return q[:, 0], buffer.at[c].set(jnp.where(episodes.alive[c], q, 0.0))

    return jax.lax.fori_loop(0, episodes.chunks, chunk, (whole, jnp.zeros((n, A, C, M))))[1]


def weighted_scores(policy: Policy, trees: Any, episodes: Episodes, q: Float[Array, "n A C M"]) -> Any:
    """Σ_i Σ_t q_t^i ∇ log π(a_t^i | s_t^i; θ) for each of A agents, as a tree with leaves [A, …]."""
    n, A, C, M = q.shape

    def objective(tree: Any, steps: tuple[Array, Array, Array]) -> Array:
        """Of one agent over L lanes."""
        observations, actions, q = steps
        return jnp.sum(policy.log_prob(policy.apply(tree, observations), actions) * q)

    steps = (episodes.observations, episodes.actions, q.reshape(n, A, C * M))
    if kernels_run() and policy.size <= kernels.LARGEST:
        sums = kernels.traced_sums(jax.grad(objective), trees, steps)
        if sums is not None:
            return kernels.sum_kernel(sums, trees, steps, episodes.chunks)

    if packing_pays(policy):
        strips = living(episodes.alive)

        def block(b: Array, gradient: Any) -> Any:
            a = strips.agent[b]
            part = jax.grad(objective)(jax.tree.map(lambda leaf: leaf[a], trees), _block(strips, episodes, b, q))
            return jax.tree.map(lambda whole, mine: whole.at[a].add(mine), gradient, part)

        return jax.lax.fori_loop(0, strips.blocks, block, jax.tree.map(jnp.zeros_like, trees))

    def chunk(c: Array, gradient: Any) -> Any:
        here = jax.tree.map(lambda a: a[c], steps)
        part = jax.grad(lambda trees: jnp.sum(jax.vmap(objective)(trees, here)))(trees)
        return jax.tree.map(jnp.add, gradient, part)

    return jax.lax.fori_loop(0, episodes.chunks, chunk, jax.tree.map(jnp.zeros_like, trees))


def packing_pays(policy: Policy) -> bool:
    """Whether gradients go over living strips instead of everybody's chunks."""
    return on_cpu() and policy.size > PARAMETERS


def _block(strips: Strips, episodes: Episodes, b: Array, *more: Array) -> tuple[Array, ...]:
    """Observations [O, L], actions and `more` [L] of block b, L = S·C lanes."""
    C, M = episodes.alive.shape[2:]
    split = [x.reshape(*x.shape[:-1], C, M) for x in (episodes.observations, episodes.actions)]
    taken = [strips.take(x, b) for x in (*split, *more)]
    return tuple(jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1) for x in taken)


def log_ratios(policy: Policy, parameters: Float[Array, "A D"], episodes: Episodes) -> Float[Array, "n A C M"]:
    """log π(a_t | s_t; θ') − log π(a_t | s_t; θ) at every step, θ' = parameters [A, D], θ the behaviour policy's."""
    shape = episodes.rewards.shape[1:]
    trees = jax.vmap(policy.unravel)(parameters)
    if packing_pays(policy):
        strips = living(episodes.alive)

        def block(b: Array, ratios: Array) -> Array:
            observations, actions = _block(strips, episodes, b)
            distribution = policy.apply(jax.tree.map(lambda leaf: leaf[strips.agent[b]], trees), observations)
            alive, old = strips.take(episodes.alive, b), strips.take(episodes.log_probs, b)
            new = policy.log_prob(distribution, actions).reshape(alive.shape)
            return strips.put(ratios, b, jnp.where(alive, new - old, 0.0))

        return jax.lax.fori_loop(0, strips.blocks, block, jnp.zeros_like(episodes.log_probs))

    def chunk(c: Array, ratios: Array) -> Array:
        distribution = jax.vmap(policy.apply)(trees, episodes.observations[c])
        new = jax.vmap(policy.log_prob)(distribution, episodes.actions[c]).reshape(shape)
        return ratios.at[c].set(jnp.where(episodes.alive[c], new - episodes.log_probs[c], 0.0))

    return jax.lax.fori_loop(0, episodes.chunks, chunk, jnp.zeros_like(episodes.log_probs))


class Weights(NamedTuple):
    """values: what `estimate` takes; ess [A]: (Σω)²/(M·Σω²), in (0, 1]; largest [A]: max ω before clipping."""

    values: Array
    ess: Float[Array, " A"]
    largest: Float[Array, " A"]


def importance_weights(
    estimator: Estimator, policy: Policy, previous: Float[Array, "A D"], episodes: Episodes
) -> Weights:
    """ω(τ | θ, θ') = p(τ | θ')/p(τ | θ) for episodes drawn at θ, θ' = previous; products taken in log space."""
    ratios = log_ratios(policy, previous, episodes)
    if estimator.weights == "per-decision":
        within = jnp.cumsum(ratios, axis=2)
        chunks = jnp.cumsum(within[:, :, -1:], axis=0)
        logs = within + jnp.concatenate([jnp.zeros_like(chunks[:1]), chunks[:-1]])
    elif estimator.weights == "per-step":
        logs = ratios
    else:
        logs = jnp.sum(ratios, axis=(0, 2))
    if estimator.weights == "published":
        behaviour = jnp.sum(jnp.where(episodes.alive, episodes.log_probs, 0.0), axis=(0, 2))
        omega = jnp.exp(behaviour + logs) / (jnp.exp(behaviour) + PUBLISHED_FLOOR)
    else:
        omega = jnp.exp(jnp.minimum(logs, LARGEST_LOG_WEIGHT))
    values = omega if estimator.clip is None else jnp.minimum(omega, estimator.clip)
    if estimator.weights == "per-step":  # steps, not episodes, are the samples
        final, largest = (jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1) for x in (values, omega))
    else:
        final, largest = (x if x.ndim == 2 else x[-1, :, -1] for x in (values, omega))
    M = final.shape[1]
    ess = jnp.sum(final, axis=1) ** 2 / jnp.maximum(M * jnp.sum(final * final, axis=1), jnp.finfo(final.dtype).tiny)
    return Weights(values, ess, jnp.max(largest, axis=1))
