"""The PAGE-PG estimate of one iteration: a large batch, or a small one that corrects the previous estimate.

c_t = 1:  ṽ_t = (1/N) Σ_i g(τ_i | θ_t)
c_t = 0:  ṽ_t = (1/B) Σ_i g(τ_i | θ_t) + v_{t−1} − (1/B) Σ_i g^ω(τ_i | θ_{t−1})
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.batching import cond_on_coin, fold_mapped_axis, map_groups
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy
from jaxbyz.sampling.batches import batch_drawer
from jaxbyz.sampling.estimators import Weights, coefficients, importance_weights, sum_of_scores
from jaxbyz.sampling.reuse import (
    Batch,
    check_minibatches,
    clipped_estimate,
    deal,
    keep,
    local_estimate,
    minibatch,
)
from jaxbyz.sampling.rollout import Episodes
from jaxbyz.sampling.scoring import SamplingInputs
from jaxbyz.sampling.settings import Sampling


class Sampled(NamedTuple):
    """The estimates of A agents in one iteration.

    Attributes:
        estimate: `[A, D]`, ṽ_t of each agent.
        returns: `[A]`, mean return over the batch.
        lengths: `[A]`, mean episode length over the batch.
        ess: `[A]`, effective sample size of the importance weights.
        largest: `[A]`, largest importance weight.
    """

    estimate: Float[Array, "A D"]
    returns: Float[Array, " A"]
    lengths: Float[Array, " A"]
    ess: Float[Array, " A"]
    largest: Float[Array, " A"]


class Drawn(NamedTuple):
    """What A agents have after sampling.

    Attributes:
        sampled: the estimate and the statistics of the batch. If the batch serves several messages, the estimate is a
            placeholder of zeros, and `Sampler.estimate` computes that of every message.
        private: what stays with every agent, such as its trained critic; empty for nothing.
        batch: the episodes, which stay with their agents; empty unless the batch serves several messages.
        measured: what `measure_small` returns for a small batch, and 1 for a large one; empty without it.
    """

    sampled: Sampled
    private: Any
    batch: Batch | tuple[()]
    measured: Float[Array, " A"] | tuple[()] = ()


class Sampler(NamedTuple):
    """How A agents sample and estimate in one iteration. Seeds may be mapped over with `vmap`.

    Attributes:
        init: `key -> private` of one agent: what it keeps for itself, such as its critic.
        large: `SamplingInputs -> Drawn`, for c_t = 1.
        small: `SamplingInputs -> Drawn`, for c_t = 0.
        either: `(c_t, SamplingInputs) -> Drawn`. If all seeds share one coin, only its branch is run.
        estimate: `(Drawn, θ [A, D], i) -> Sampled`, with the estimate that message number i of the iteration holds.
    """

    init: Callable[[PRNGKeyArray], Any]
    large: Callable[[SamplingInputs], Drawn]
    small: Callable[[SamplingInputs], Drawn]
    either: Callable[[Array, SamplingInputs], Drawn]
    estimate: Callable[[Drawn, Float[Array, "A D"], Int[Array, ""] | int], Sampled]


def sampler(
    environment: Environment,
    policy: Policy,
    settings: Sampling,
    interference: Interference | None = None,
    *,
    measure_small: Callable[[Float[Array, "A D"], Episodes], Float[Array, " A"]] | None = None,
) -> Sampler:
    """Build the sampler of an environment, a policy and the settings of the PAGE switch.

    Args:
        environment: the task.
        policy: the policy that is trained.
        settings: batch sizes, estimator, critic and reuse of a batch.
        interference: what Byzantine agents do wrong in their own environment; None for nothing.
        measure_small: `(anchor, episodes) -> [A]`, a number that a small batch reports beside its estimate.
    """
    drawer = batch_drawer(environment, policy, settings, interference)
    check_minibatches(settings, policy)

    @fold_mapped_axis
    @partial(map_groups, episodes=settings.N)
    def large(inputs: SamplingInputs) -> Drawn:
        theta = inputs.parameters
        episodes, q, bonus, private = drawer.score(inputs, drawer.draw(inputs, settings.N))
        measured = () if measure_small is None else jnp.ones(theta.shape[0])
        if settings.uses == 1:
            estimates = sum_of_scores(policy, theta, episodes, q, bonus)
            return Drawn(summary(settings, episodes, estimates), private, (), measured)
        batch = keep(episodes, q, bonus)
        if settings.deals_steps:
            batch = deal(batch, settings.minibatches)
        if settings.local_eta is None:
            return Drawn(summary(settings, episodes, jnp.zeros_like(theta)), private, batch)
        return Drawn(summary(settings, episodes, local_estimate(policy, theta, batch, settings)), private, ())

    @fold_mapped_axis
    @partial(map_groups, episodes=settings.B)
    def small(inputs: SamplingInputs) -> Drawn:
        theta, anchor = inputs.parameters, inputs.anchor
        episodes, q, bonus, private = drawer.score(inputs, drawer.draw(inputs, settings.B))
        omega = importance_weights(settings, policy, anchor, episodes)
        now = sum_of_scores(policy, theta, episodes, q, bonus)
        omega_of_step = omega.values[None, :, None] if omega.values.ndim == 2 else omega.values
        q_before = q * omega_of_step if settings.uses_critic else coefficients(settings, episodes, omega.values)
        bonus_before = None if bonus is None else bonus * omega_of_step
        before = sum_of_scores(policy, anchor, episodes, q_before, bonus_before)
        measured = () if measure_small is None else measure_small(anchor, episodes)
        return Drawn(summary(settings, episodes, now + (inputs.previous - before), omega), private, (), measured)

    def either(coin: Array, inputs: SamplingInputs) -> Drawn:
        return large(inputs) if settings.always_large else cond_on_coin(coin, large, small, inputs)

    @fold_mapped_axis
    def clipped(theta: Array, batch: Batch) -> Array:
        return clip_norm(clipped_estimate(policy, theta, batch, settings.ratio_clip), settings.clip_norm)

    def estimate_of_message(drawn: Drawn, theta: Array, index: Int[Array, ""] | int) -> Sampled:
        if not isinstance(drawn.batch, Batch):
            return drawn.sampled
        part = minibatch(drawn.batch, jnp.asarray(index), settings.minibatches)
        return drawn.sampled._replace(estimate=clipped(theta, part))

    return Sampler(drawer.init, large, small, either, estimate_of_message)


def summary(
    settings: Sampling, episodes: Episodes, estimates: Float[Array, "A D"], weights: Weights | None = None
) -> Sampled:
    """Return the estimates of a batch, shortened to `clip_norm`, with what is reported about its episodes."""
    returns, lengths = jnp.mean(episodes.returns, axis=1), jnp.mean(episodes.lengths.astype(jnp.float32), axis=1)
    ess, largest = (jnp.ones_like(returns),) * 2 if weights is None else (weights.ess, weights.largest)
    return Sampled(clip_norm(estimates, settings.clip_norm), returns, lengths, ess, largest)


def clip_norm(vectors: Float[Array, "A D"], limit: float | None) -> Float[Array, "A D"]:
    """Scale every row that is longer than `limit` down to that norm."""
    if limit is None:
        return vectors
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * jnp.minimum(1.0, limit / jnp.maximum(norms, jnp.finfo(vectors.dtype).tiny))
