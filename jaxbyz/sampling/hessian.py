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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.batching import fold_mapped_axis, map_groups
from jaxbyz.accelerate.episode_sums import map_over_steps, sum_over_steps
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment, OwnParams
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.sampling.estimators import Estimator, coefficients, sum_of_scores
from jaxbyz.sampling.page import Drawn, Page, Sampled, Sampler, clip_norm, with_false_rewards
from jaxbyz.sampling.rollout import Episodes, collect

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
    pairs = jax.vmap(policy.unravel)(parameters), jax.vmap(policy.unravel)(direction)
    taken = episodes.observations, episodes.actions

    def log_prob(tree: Any, steps: tuple[Array, ...]) -> Float[Array, " L"]:
        return policy.log_prob(policy.apply(tree, steps[0]), steps[1])

    def slope(pair: tuple[Any, Any], steps: tuple[Array, ...]) -> Float[Array, " L"]:
        return jax.jvp(lambda tree: log_prob(tree, steps), pair[:1], pair[1:])[1]

    def curvature(pair: tuple[Any, Any], steps: tuple[Array, ...]) -> Any:
        weighted = jax.grad(lambda tree: jnp.sum(log_prob(tree, steps) * steps[2]))
        return jax.jvp(weighted, pair[:1], pair[1:])[1]

    along = jnp.sum(map_over_steps(slope, pairs, taken, episodes.alive, episodes.chunks), axis=(0, 2))  # [A, M]
    first = sum_of_scores(policy, parameters, episodes, q * along[None, :, None])
    second = sum_over_steps(curvature, pairs, (*taken, q), episodes.alive, episodes.chunks)
    return first + jax.vmap(lambda tree: ravel_pytree(tree)[0])(second) / episodes.alive.shape[3]


class Momentum(NamedTuple):
    """What an agent of Res-NHARPG keeps: its last direction d_{t−1}, `[D]`, and whether it has one, `[]`."""

    direction: Float[Array, " D"]
    started: Bool[Array, ""]


def hessian_momentum_sampler(
    environment: Environment,
    policy: Policy,
    page: Page,
    interference: Interference | None,
    always_large: bool = True,
    *,
    momentum: float,
) -> Sampler:
    """Build the sampler of Res-NHARPG, with the interface of `jaxbyz.sampling.page.sampler`.

    Every agent keeps d_t = β(d_{t−1} + B(τ̂_t; θ̂_t)(θ_t − θ_{t−1})) + (1 − β) g(τ_t; θ_t) with d_0 = g(τ_0; θ_0), where
    θ̂_t = q_tθ_t + (1 − q_t)θ_{t−1} with q_t ~ U(0, 1). Of its N trajectories, B are τ̂_t and N − B are τ_t.

    Args:
        environment: the task.
        policy: the policy that is trained.
        page: batch sizes and estimator; `anchor` must be `"previous"`.
        interference: what Byzantine agents do wrong in their own environment; None for nothing.
        always_large: ignored; there is one kind of batch.
        momentum: β = 1 − η_t in the notation of the paper.
    """
    if not 0 <= momentum < 1:
        raise UsageError(f"momentum={momentum}: must be in [0, 1)")
    if page.B >= page.N:
        raise UsageError(f"B={page.B} with N={page.N}: of N trajectories, B are for the Hessian; B must be less than N")
    if page.uses_critic or page.uses > 1 or page.anchor != "previous":
        raise UsageError("res-nharpg: needs a baseline other than critic, epochs=1, minibatches=1 and anchor=previous")
    if interference is not None and interference.poison is not None:
        raise UsageError("res-nharpg: agents have no critics that reward poisoning could use")
    estimator = page.estimator

    def sample(theta: Array, keys: PRNGKeyArray, mask: Array, own: OwnParams | None, batch: int) -> Episodes:
        episodes = collect(environment, policy, theta, keys, batch, estimator.horizon, interference, mask, own)
        return with_false_rewards(episodes, interference, keys, mask)

    @fold_mapped_axis
    @partial(map_groups, episodes=page.N)
    def draw(theta: Array, previous: Array, keys: PRNGKeyArray, mask: Array, own: Any, kept: Momentum) -> Drawn:
        episodes = sample(theta, keys, mask, own, page.N - page.B)
        gradient = sum_of_scores(policy, theta, episodes, coefficients(estimator, episodes))
        hessian_keys = jax.vmap(lambda key: jax.random.fold_in(key, HESSIAN_STREAM))(keys)
        q = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, HESSIAN_STREAM)))(hessian_keys)[:, None]
        between = q * theta + (1.0 - q) * previous
        others = sample(between, hessian_keys, mask, own, page.B)
        carried = kept.direction + hessian_vector_product(estimator, policy, between, theta - previous, others)
        mixed = momentum * carried + (1.0 - momentum) * gradient
        d = clip_norm(jnp.where(kept.started[:, None], mixed, gradient), page.clip_norm)
        one = jnp.ones(theta.shape[0])
        returns, lengths = jnp.mean(episodes.returns, axis=1), jnp.mean(episodes.lengths.astype(jnp.float32), axis=1)
        following: Any = Momentum(d, jnp.ones_like(kept.started))
        return Drawn(Sampled(d, returns, lengths, one, one), following, ())

    def either(coin: Array, theta: Array, previous: Array, v_before: Array, *who: Any) -> Drawn:
        keys, mask, own, kept = who
        return draw(theta, previous, keys, mask, own, kept)

    def init(key: PRNGKeyArray) -> Any:
        return Momentum(jnp.zeros(policy.size), jnp.bool_(False))

    return Sampler(init, _unused, _unused, either, lambda drawn, theta, index: drawn.sampled)


def _unused(*_: Any) -> Drawn:
    raise UsageError("res-nharpg: there is one kind of batch")
