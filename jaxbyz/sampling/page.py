"""The PAGE-PG estimate of one iteration: a large batch, or a small one that corrects the previous estimate.

c_t = 1:  ṽ_t = (1/N) Σ_i g(τ_i | θ_t)
c_t = 0:  ṽ_t = (1/B) Σ_i g(τ_i | θ_t) + v_{t−1} − (1/B) Σ_i g^ω(τ_i | θ_{t−1})
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.batching import cond_on_coin, fold_mapped_axis, map_groups
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment, OwnParams
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.policies import Policy
from jaxbyz.sampling.estimators import Estimator, Weights, estimate, importance_weights
from jaxbyz.sampling.rollout import Episodes, collect

PREVIOUS = ("aggregated", "own", "realized")
ANCHORS = ("previous", "proposed", "snapshot")
# The stream of false rewards. `split(key, n)[i]` equals `fold_in(key, i)`, so a small number would be one of the keys
# that `collect` splits the same key into.
FALSE_REWARD_STREAM = 2**32 - 1


class Page(NamedTuple):
    """The settings of the PAGE switch.

    Attributes:
        N: the large batch size, in trajectories per agent.
        B: the small batch size.
        estimator: how a batch becomes a gradient.
        previous: what v_{t−1} is in the small-batch formula. `"realized"`, the paper's definition:
            (θ_t − θ_{t−1})/η, which is a gradient only under plain ascent with step size `eta`, and only with
            `anchor="previous"`. `"aggregated"`: v_{t−1}^(k), the agent's own result of Aggregate. `"own"`:
            ṽ_{t−1}^(k), what the agent sent. A server that samples alone has one estimate, so that the last two agree.
        eta: the step size η, used only by `previous="realized"`.
        clip_norm: the largest norm of ṽ, which is scaled down to it before it is sent; None for no limit.
        anchor: the parameters that a small batch is compared with. `"previous"`: θ_{t−1} (PAGE). `"proposed"`: θ̃_t, the
            result of the agent's own last step before agreement, as in the published code, which saves the
            parameters after the optimizer step instead of before it.
            `"snapshot"`: the parameters of the last large batch, whose estimate is then kept as well (SVRPG, FedPG-BR).
    """

    N: int = 50
    B: int = 4
    estimator: Estimator = Estimator()
    previous: str = "aggregated"
    eta: float | None = None
    clip_norm: float | None = None
    anchor: str = "previous"

    def check(self) -> None:
        """Raise a `UsageError` if the settings make no sense."""
        if self.N < 1 or self.B < 1:
            raise UsageError(f"N={self.N}, B={self.B}: must be at least 1")
        if self.B > self.N:
            raise UsageError(f"B={self.B} exceeds N={self.N}: B must not exceed N")
        check_choice("previous", self.previous, PREVIOUS)
        check_choice("anchor", self.anchor, ANCHORS)
        if self.previous == "realized" and not self.eta:
            raise UsageError("previous='realized' needs a constant step size eta and plain ascent (optimizer=sgd)")
        if self.previous == "realized" and self.anchor != "previous":
            raise UsageError(
                f"previous='realized' with anchor={self.anchor!r}: (θ_t − θ_{{t−1}})/η needs anchor='previous'"
            )
        self.estimator.check()


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


class Sampler(NamedTuple):
    """How A agents sample and estimate in one iteration. Seeds may be mapped over with `vmap`.

    Attributes:
        large: `(θ_t [A, D], keys [A], mask [A], own) -> Sampled`, for c_t = 1. `own` holds the parameters `[A, …]` in
            which the agents' environments differ, as in `collect`; it may be left out.
        small: `(θ_t, θ_{t−1}, v_{t−1}, keys, mask, own) -> Sampled`, for c_t = 0.
        either: `(c_t, θ_t, θ_{t−1}, v_{t−1}, keys, mask, own) -> Sampled`. If all seeds share one coin, only the branch
            that it shows is run.
    """

    large: Callable[..., Sampled]
    small: Callable[..., Sampled]
    either: Callable[..., Sampled]


def sampler(
    environment: Environment,
    policy: Policy,
    page: Page,
    interference: Interference | None,
    always_large: bool = False,
) -> Sampler:
    """Build the sampler of an environment, a policy and the settings of the PAGE switch.

    Args:
        environment: the task.
        policy: the policy that is trained.
        page: batch sizes and estimator.
        interference: what Byzantine agents do wrong in their own environment; None for nothing.
        always_large: whether c_t is always 1, so that no program for small batches is compiled.
    """
    estimator = page.estimator

    def sample(theta: Array, keys: PRNGKeyArray, mask: Array, own: OwnParams | None, batch: int) -> Episodes:
        episodes = collect(environment, policy, theta, keys, batch, estimator.horizon, interference, mask, own)
        return _with_false_rewards(episodes, interference, keys, mask)

    def summary(episodes: Episodes, estimates: Array, weights: Weights | None = None) -> Sampled:
        returns, lengths = jnp.mean(episodes.returns, axis=1), jnp.mean(episodes.lengths.astype(jnp.float32), axis=1)
        ess, largest = (jnp.ones_like(returns),) * 2 if weights is None else (weights.ess, weights.largest)
        return Sampled(clip_norm(estimates, page.clip_norm), returns, lengths, ess, largest)

    @fold_mapped_axis
    @partial(map_groups, episodes=page.N)
    def large(theta: Array, keys: PRNGKeyArray, mask: Array, own: OwnParams | None = None) -> Sampled:
        episodes = sample(theta, keys, mask, own, page.N)
        return summary(episodes, estimate(estimator, policy, theta, episodes))

    @fold_mapped_axis
    @partial(map_groups, episodes=page.B)
    def small(
        theta: Array, previous: Array, v_before: Array, keys: PRNGKeyArray, mask: Array, own: OwnParams | None = None
    ) -> Sampled:
        episodes = sample(theta, keys, mask, own, page.B)
        omega = importance_weights(estimator, policy, previous, episodes)
        now = estimate(estimator, policy, theta, episodes)
        before = estimate(estimator, policy, previous, episodes, omega.values)
        return summary(episodes, now + (v_before - before), omega)

    def either(coin: Array, theta: Array, previous: Array, v_before: Array, *who: Any) -> Sampled:
        if always_large:
            return large(theta, *who)
        return cond_on_coin(
            coin,
            lambda theta, previous, v_before, *who: large(theta, *who),
            small,
            *(theta, previous, v_before, *who),
        )

    return Sampler(large, small, either)


def _with_false_rewards(
    episodes: Episodes, interference: Interference | None, keys: PRNGKeyArray, mask: Bool[Array, " A"]
) -> Episodes:
    """Replace the rewards of the Byzantine agents by those that they report."""
    if interference is None or interference.rewards is None:
        return episodes
    n, A, C, M = episodes.rewards.shape
    by_time = (jnp.swapaxes(x, 0, 1).reshape(A, n * C, M) for x in (episodes.rewards, episodes.alive))
    own_keys = jax.vmap(lambda key: jax.random.fold_in(key, FALSE_REWARD_STREAM))(keys)
    reported = jax.vmap(interference.rewards)(own_keys, *by_time).reshape(A, n, C, M).swapaxes(0, 1)
    return episodes._replace(rewards=jnp.where(mask[None, :, None, None], reported, episodes.rewards))


def clip_norm(vectors: Float[Array, "A D"], limit: float | None) -> Float[Array, "A D"]:
    """Scale every row that is longer than `limit` down to that norm."""
    if limit is None:
        return vectors
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * jnp.minimum(1.0, limit / jnp.maximum(norms, jnp.finfo(vectors.dtype).tiny))
