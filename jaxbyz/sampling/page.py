"""The PAGE-PG estimate of one iteration: a large batch, or a small one that corrects the previous estimate.

    c_t = 1:  ṽ_t = (1/N) Σ_i g(τ_i | θ_t)
    c_t = 0:  ṽ_t = (1/B) Σ_i g(τ_i | θ_t) + v_{t−1} − (1/B) Σ_i g^ω(τ_i | θ_{t−1})

Sampling and estimating happen inside one function whose agent axis swallows every `vmap` put around it, so that
a sweep over seeds is one batch of lanes with one end, not a batch of loops that each pay for both outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.batching import cond_on_coin, fold_mapped_axis, map_groups
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.sampling.estimators import Estimator, estimate, importance_weights
from jaxbyz.sampling.rollout import Episodes, collect

PREVIOUS = ("aggregated", "own", "realized")
ANCHORS = ("previous", "proposed", "snapshot")
# Rewards that lie have a stream of their own. `split(key, n)[i]` is `fold_in(key, i)`: a small number would be one of
# the keys that `collect` splits the same key into.
LIE_STREAM = 2**32 - 1


class Page(NamedTuple):
    """Numbers of the switch.

    N, B:      large and small batch size, in trajectories an agent
    estimator: how a batch becomes a gradient
    previous:  what v_{t−1} is in the small-batch formula:
               realized (θ_t − θ_{t−1})/η, the paper's letter, a gradient only under plain ascent with step eta, and
               only with the anchor θ_{t−1};
               aggregated v_{t−1}^{(k)}, the agent's result of Aggregate; own ṽ_{t−1}^{(k)}, what it sent. A server
               that samples alone has one estimate, whichever of the two is asked for.
    eta:       step size η, used by `realized` only
    anchor:    which parameters a small batch is compared with: previous θ_{t−1} (PAGE); proposed θ̃_t, what the agent's
               own last step led to before agreement (the published code's, which keeps them too late); or snapshot,
               those of the last large batch, whose estimate is then kept too (SVRPG, FedPG-BR)
    clip_norm: scale ṽ down to this norm before it is sent; None leaves it
    """

    N: int = 50
    B: int = 4
    estimator: Estimator = Estimator()
    previous: str = "aggregated"
    eta: float | None = None
    clip_norm: float | None = None
    anchor: str = "previous"

    def check(self) -> Page:
        """Raise a one-line error where the numbers make no sense."""
        if self.N < 1 or self.B < 1:
            raise UsageError(f"N={self.N}, B={self.B}: batch sizes are at least 1")
        if self.B > self.N:
            raise UsageError(f"B={self.B} exceeds N={self.N}: the small batch is at most the large one")
        if self.previous not in PREVIOUS:
            raise UsageError(f"previous={self.previous!r} is unknown: one of {', '.join(PREVIOUS)}")
        if self.previous == "realized" and not self.eta:
            raise UsageError("previous='realized' needs a constant step size eta and plain ascent (optimizer=sgd)")
        if self.anchor not in ANCHORS:
            raise UsageError(f"anchor={self.anchor!r} is unknown: one of {', '.join(ANCHORS)}")
        if self.previous == "realized" and self.anchor != "previous":
            raise UsageError(
                f"previous='realized' with anchor={self.anchor!r}: (θ_t − θ_t-1)/η needs anchor='previous'"
            )
        self.estimator.check()
        return self


class Sampled(NamedTuple):
    """One iteration's estimates of A agents.

    estimate [A, D] ṽ; returns, lengths [A] means over the batch; ess, largest [A] of the importance weights; steps [A].
    """

    estimate: Float[Array, "A D"]
    returns: Float[Array, " A"]
    lengths: Float[Array, " A"]
    ess: Float[Array, " A"]
    largest: Float[Array, " A"]


class Sampler(NamedTuple):
    """How A agents sample and estimate in one iteration.

    large:  (θ_t [A, D], keys [A], mask [A]) -> Sampled, c_t = 1
    small:  (θ_t, θ_{t−1}, v_{t−1} [A, D], keys, mask) -> Sampled, c_t = 0
    either: (coin [], θ_t, θ_{t−1}, v_{t−1}, keys, mask) -> Sampled. With one coin for all, only the branch it shows is
            run, also under vmap over everything else.
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
    """The sampler of an environment, a policy and a batch plan, for agents that lie as `interference` says.

    With always_large the coin never shows a small batch, and no program for one is compiled.
    """
    estimator = page.estimator

    def run(parameters: Array, keys: PRNGKeyArray, mask: Bool[Array, " A"], batch: int) -> Episodes:
        episodes = collect(environment, policy, parameters, keys, batch, estimator.horizon, interference, mask)
        if interference is not None and interference.rewards is not None:
            n, A, C, M = episodes.rewards.shape
            by_time = (jnp.swapaxes(x, 0, 1).reshape(A, n * C, M) for x in (episodes.rewards, episodes.alive))
            lie_keys = jax.vmap(lambda key: jax.random.fold_in(key, LIE_STREAM))(keys)
            lied = jax.vmap(interference.rewards)(lie_keys, *by_time).reshape(A, n, C, M).swapaxes(0, 1)
            episodes = episodes._replace(rewards=jnp.where(mask[None, :, None, None], lied, episodes.rewards))
        return episodes

    def summary(episodes: Episodes, estimate: Array, ess: Array, largest: Array) -> Sampled:
        returns, lengths = jnp.mean(episodes.returns, axis=1), jnp.mean(episodes.lengths.astype(jnp.float32), axis=1)
        return Sampled(clip_norm(estimate, page.clip_norm), returns, lengths, ess, largest)

    @fold_mapped_axis
    @partial(map_groups, episodes=page.N)
    def large(parameters: Array, keys: PRNGKeyArray, mask: Array) -> Sampled:
        episodes = run(parameters, keys, mask, page.N)
        one = jnp.ones(parameters.shape[0])
        return summary(episodes, estimate(estimator, policy, parameters, episodes), one, one)

    @fold_mapped_axis
    @partial(map_groups, episodes=page.B)
    def small(parameters: Array, previous: Array, memory: Array, keys: PRNGKeyArray, mask: Array) -> Sampled:
        episodes = run(parameters, keys, mask, page.B)
        weights = importance_weights(estimator, policy, previous, episodes)
        now = estimate(estimator, policy, parameters, episodes)
        before = estimate(estimator, policy, previous, episodes, weights.values)
        return summary(episodes, now + (memory - before), weights.ess, weights.largest)

    def either(
        coin: Array, parameters: Array, previous: Array, memory: Array, keys: PRNGKeyArray, mask: Array
    ) -> Sampled:
        if always_large:
            return large(parameters, keys, mask)
        return cond_on_coin(
            coin,
            lambda parameters, previous, memory, keys, mask: large(parameters, keys, mask),
            small,
            *(parameters, previous, memory, keys, mask),
        )

    return Sampler(large, small, either)


def clip_norm(vectors: Float[Array, "A D"], limit: float | None) -> Float[Array, "A D"]:
    """Each row scaled down to norm `limit` if it is longer."""
    if limit is None:
        return vectors
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * jnp.minimum(1.0, limit / jnp.maximum(norms, jnp.finfo(vectors.dtype).tiny))
