"""How much the reward of each step contributes to an estimate, as seen along a direction in parameter space.

An estimate is linear in the rewards before advantages are normalised: ĝ = (1/M) Σ_i Σ_t q_t^i ∇ log π(a_t^i | s_t^i; θ)
with q linear in r. The effect of r_h^i along a direction d is the derivative

    w_h^i = M·∂⟨d, ĝ⟩/∂r_h^i = Σ_t (∂q_t/∂r_h^i)·⟨d, ∇ log π(a_t | s_t; θ)⟩,

where the inner products come from one forward-mode derivative of the log-probabilities. An adversary that may change
its rewards by a vector of length ε moves ⟨d, ĝ⟩ furthest if it moves them along w.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.episode_sums import sum_from_each_step
from jaxbyz.policies import Policy
from jaxbyz.sampling.differentiation import log_probs
from jaxbyz.sampling.rollout import Episodes
from jaxbyz.sampling.settings import Sampling


def scores_along(
    policy: Policy, parameters: Float[Array, "A D"], episodes: Episodes, direction: Float[Array, "A D"]
) -> Float[Array, "n A C M"]:
    """Compute ⟨d, ∇ log π(a_t | s_t; θ)⟩ at every step that was taken, zero elsewhere."""
    return jax.jvp(lambda theta: log_probs(policy, theta, episodes), (parameters,), (direction,))[1]


def reward_effects(
    estimator: Sampling,
    policy: Policy,
    parameters: Float[Array, "A D"],
    episodes: Episodes,
    direction: Float[Array, "A D"],
) -> Float[Array, "n A C M"]:
    """Compute the effect w_h of every reward along a direction; zero at steps that were not taken.

    With a critic, its values are held fixed; for the whitened estimator, whitening is left out.

    Args:
        estimator: how rewards become coefficients q_t.
        policy: the policy π.
        parameters: `[A, D]`, the parameters θ of each agent.
        episodes: the batch.
        direction: `[A, D]`, the direction d of each agent.
    """
    scores = scores_along(policy, parameters, episodes, direction)
    n, _, C, M = scores.shape
    if estimator.baseline == "critic":
        effects = _sum_up_to_each_step(scores, estimator.gamma * estimator.gae_lambda)
        return jnp.where(episodes.alive, effects, 0.0)
    if estimator.estimator == "whitened":
        return jnp.where(episodes.alive, _sum_up_to_each_step(scores, estimator.gamma), 0.0)
    total = jnp.broadcast_to(jnp.sum(scores, axis=(0, 2), keepdims=True), scores.shape)
    credit = total if estimator.estimator == "reinforce" else _sum_up_to_each_step(scores, 1.0)
    if estimator.baseline == "leave-one-out" and M > 1:
        credit = credit - (jnp.sum(credit, axis=3, keepdims=True) - credit) / (M - 1)
    discounts = jnp.power(estimator.gamma, jnp.arange(n * C).reshape(n, 1, C, 1))
    return jnp.where(episodes.alive, discounts * credit, 0.0)


def _sum_up_to_each_step(values: Float[Array, "n A C M"], decay: float) -> Float[Array, "n A C M"]:
    """Compute Σ_{t≤h} decay^{h−t} x_t for every step h."""
    backwards = jnp.flip(values, axis=(0, 2))
    return jnp.flip(sum_from_each_step(backwards, values.shape[0], decay), axis=(0, 2))
