"""Policy Hessians times vectors from episodes, and the momentum of Res-NHARPG that they correct.

For Φ(τ; θ) = Σ_t q_t log π(a_t | s_t; θ), whose gradient is the estimate g(τ; θ) of ∇J,

    B(τ; θ) u = ∇Φ(τ; θ) · ⟨∇ log p(τ | θ), u⟩ + ∇²Φ(τ; θ) u

is an unbiased estimate of ∇²J(θ) u if τ is drawn at θ. Both terms are exact derivatives of the policy, computed with
one forward-mode derivative each; no Hessian is ever formed.

References:
    Shen et al., Hessian aided policy gradient, 2019. Ganesh et al., Global convergence guarantees for federated policy
    gradient methods with adversaries, 2024 (Res-NHARPG).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.batching import fold_mapped_axis, map_groups
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.sampling.batches import batch_drawer
from jaxbyz.sampling.differentiation import log_probs
from jaxbyz.sampling.estimators import Estimator, coefficients, sum_of_scores
from jaxbyz.sampling.page import Drawn, Sampler, summary
from jaxbyz.sampling.rollout import Episodes
from jaxbyz.sampling.scoring import SamplingInputs
from jaxbyz.sampling.settings import Sampling

HESSIAN_STREAM = 2**32 - 2  # of an agent's key; `collect` splits the same key into streams 0, 1, …


def hessian_vector_product(
    estimator: Estimator,
    policy: Policy,
    parameters: Float[Array, "A D"],
    direction: Float[Array, "A D"],
    episodes: Episodes,
) -> Float[Array, "A D"]:
    """Return (1/M) Σ_i B(τ_i; θ) u for each agent.

    Args:
        estimator: which coefficients q_t are used.
        policy: the policy π.
        parameters: `[A, D]`, the parameters θ at which the episodes were drawn.
        direction: `[A, D]`, the vectors u.
        episodes: the batch.
    """
    q = coefficients(estimator, episodes)

    def log_prob(theta: Array) -> Float[Array, "n A C M"]:
        return log_probs(policy, theta, episodes)

    def gradient(theta: Array) -> Float[Array, "A D"]:
        return sum_of_scores(policy, theta, episodes, q)

    along = jnp.sum(jax.jvp(log_prob, (parameters,), (direction,))[1], axis=(0, 2))  # [A, M]
    first = sum_of_scores(policy, parameters, episodes, q * along[None, :, None])
    return first + jax.jvp(gradient, (parameters,), (direction,))[1]


class Momentum(NamedTuple):
    """What an agent of Res-NHARPG keeps: its last direction d_{t−1}, `[D]`, and whether it has one, `[]`."""

    direction: Float[Array, " D"]
    started: Bool[Array, ""]


def hessian_momentum_sampler(
    environment: Environment, policy: Policy, settings: Sampling, interference: Interference | None, beta: float
) -> Sampler:
    """Build the sampler of Res-NHARPG, with the interface of `jaxbyz.sampling.page.sampler`.

    Every agent keeps d_t = β(d_{t−1} + B(τ̂_t; θ̂_t)(θ_t − θ_{t−1})) + (1 − β) g(τ_t; θ_t) with d_0 = g(τ_0; θ_0), where
    θ̂_t = q_tθ_t + (1 − q_t)θ_{t−1} with q_t ~ U(0, 1). Of its N trajectories, B are τ̂_t and N − B are τ_t.

    Args:
        environment: the task.
        policy: the policy that is trained.
        settings: batch sizes and estimator.
        interference: what Byzantine agents do wrong in their own environment; None for nothing.
        beta: β = 1 − η_t in the notation of the paper.
    """
    N, B = settings.N, settings.B
    if B >= N:
        raise UsageError(f"B={B} with N={N}: of N trajectories, B are for the Hessian; B must be less than N")
    if settings.uses_critic or settings.uses > 1 or settings.anchor != "previous":
        raise UsageError("res-nharpg: needs a baseline other than critic, epochs=1, minibatches=1 and anchor=previous")
    if interference is not None and interference.poison is not None:
        raise UsageError("res-nharpg: agents have no critics that reward poisoning could use")
    drawer = batch_drawer(environment, policy, settings, interference)

    @fold_mapped_axis
    @partial(map_groups, episodes=N)
    def draw(inputs: SamplingInputs) -> Drawn:
        theta, anchor, keys, kept = inputs.parameters, inputs.anchor, inputs.keys, inputs.private
        episodes = drawer.draw(inputs, N - B)
        gradient = sum_of_scores(policy, theta, episodes, coefficients(settings, episodes))
        hessian_keys = jax.vmap(lambda key: jax.random.fold_in(key, HESSIAN_STREAM))(keys)
        q = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, HESSIAN_STREAM)))(hessian_keys)[:, None]
        between = q * theta + (1.0 - q) * anchor
        others = drawer.draw(inputs._replace(parameters=between, keys=hessian_keys), B)
        carried = kept.direction + hessian_vector_product(settings, policy, between, theta - anchor, others)
        mixed = beta * carried + (1.0 - beta) * gradient
        sampled = summary(settings, episodes, jnp.where(kept.started[:, None], mixed, gradient))
        return Drawn(sampled, Momentum(sampled.estimate, jnp.ones_like(kept.started)), ())

    def init(key: PRNGKeyArray) -> Momentum:
        return Momentum(jnp.zeros(policy.size), jnp.bool_(False))

    return Sampler(
        init, draw, draw, lambda coin, inputs: draw(inputs), lambda drawn, theta, index: drawn.sampled
    )  # there is one kind of batch
