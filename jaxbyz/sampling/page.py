"""The PAGE-PG estimate of one iteration: a large batch, or a small one that corrects the previous estimate.

c_t = 1:  ṽ_t = (1/N) Σ_i g(τ_i | θ_t)
c_t = 0:  ṽ_t = (1/B) Σ_i g(τ_i | θ_t) + v_{t−1} − (1/B) Σ_i g^ω(τ_i | θ_{t−1})
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.batching import cond_on_coin, fold_mapped_axis, map_groups
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment, OwnParams
from jaxbyz.errors import UsageError, check_choice, check_value
from jaxbyz.policies import Policy
from jaxbyz.sampling.critic import CriticSettings, CriticState, advantages, critic, normalised
from jaxbyz.sampling.estimators import (
    Estimator,
    Weights,
    coefficients,
    importance_weights,
    mean_ratio,
    sum_of_scores,
)
from jaxbyz.sampling.random_batches import first_episodes, mean_over_first, whitened_over_all_steps
from jaxbyz.sampling.reuse import Batch, clipped_estimate, keep, local_estimate, minibatch
from jaxbyz.sampling.reward_effects import reward_effects
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
        critic: the network and the training of the critics that `baseline="critic"` uses.
        epochs: how often an iteration uses its batch. Every use estimates, sends, aggregates and agrees anew.
        minibatches: the parts of a batch that are used one after the other in every epoch, one message for each.
        local_eta: if given, every agent uses its batch for local steps of this size along its own clipped estimates
            instead, and sends one message: their mean (`sampling.reuse.local_estimate`).
        ratio_clip: the distance of probability ratios from 1 beyond which they have no influence (`sampling.reuse`).
        entropy: the factor β of the entropy of the policy. The gradient of β times the entropy in every visited state
            is added to an estimate, summed over the steps of an episode; with normalised advantages, averaged over
            them. That an action leads to states with more entropy is not rewarded.
        batch_spread: the size of a large batch is drawn from {N − batch_spread, …, N + batch_spread} (FedPG-BR).
        ratio_window: a small batch has the mean of π(a_t | s_t; θ')/π(a_t | s_t; θ_t) over its steps, where θ' is the
            anchor, and FedPG-BR ends its inner loop if that is farther than this from 1. None for neither.
    """

    N: int = 50
    B: int = 4
    estimator: Estimator = Estimator()
    previous: str = "aggregated"
    eta: float | None = None
    clip_norm: float | None = None
    anchor: str = "previous"
    critic: CriticSettings = CriticSettings()
    epochs: int = 1
    minibatches: int = 1
    ratio_clip: float = 0.2
    entropy: float = 0.0
    batch_spread: int = 0
    ratio_window: float | None = None
    local_eta: float | None = None

    @property
    def messages(self) -> int:
        """The number of estimates that an agent sends per iteration."""
        return self.uses if self.local_eta is None else 1

    @property
    def uses(self) -> int:
        """The number of estimates that an agent makes of a batch."""
        return self.epochs * self.minibatches

    @property
    def uses_critic(self) -> bool:
        """Whether every agent has a critic."""
        return self.estimator.baseline == "critic"

    def check(self) -> None:
        """Raise a `UsageError` if the settings make no sense."""
        if self.N < 1 or self.B < 1:
            raise UsageError(f"N={self.N}, B={self.B}: must be at least 1")
        limits = {
            "eta": self.eta, "clip_norm": self.clip_norm, "ratio_clip": self.ratio_clip,
            "ratio_window": self.ratio_window, "local_eta": self.local_eta,
        }  # fmt: skip
        for option, value in limits.items():
            check_value(option, value, value is None or 0 < value < math.inf, "positive and finite")
        check_value("entropy", self.entropy, math.isfinite(self.entropy), "finite")
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
        if self.epochs < 1 or self.minibatches < 1:
            raise UsageError(f"epochs={self.epochs}, minibatches={self.minibatches}: must be at least 1")
        if self.N % self.minibatches:
            raise UsageError(f"minibatches={self.minibatches} with N={self.N}: N must be a multiple of minibatches")
        if not 0 <= self.batch_spread < self.N:
            raise UsageError(f"batch_spread={self.batch_spread} with N={self.N}: must be from 0 to N − 1")
        if self.batch_spread and self.uses > 1:
            given = f"batch_spread={self.batch_spread} with epochs={self.epochs}, minibatches={self.minibatches}"
            raise UsageError(f"{given}: a batch of random size is used once; use epochs=1, minibatches=1")
        if self.batch_spread and self.estimator.baseline in ("leave-one-out", "critic"):
            given = f"batch_spread={self.batch_spread} with baseline={self.estimator.baseline}"
            raise UsageError(f"{given}: needs baseline=none or constant")
        self.critic.check()
        self.estimator.check()

    def check_without_server(self) -> None:
        """Raise a `UsageError` if the settings need a server that samples the small batches alone."""
        for option, value, off in (("batch_spread", self.batch_spread, 0), ("ratio_window", self.ratio_window, None)):
            if value != off:
                raise UsageError(f"{option}={value}: needs a server that samples the small batches; use {option}={off}")

    def check_switch(self, always_large: bool) -> None:
        """Raise a `UsageError` if the settings need large batches only and there are small ones.

        A small batch corrects an estimate of the same kind, so that the previous one must have the same scale, which
        normalised advantages do not have, and must belong to the parameters before a single step.
        """
        if always_large:
            return
        if self.uses > 1:
            raise UsageError(
                f"epochs={self.epochs}, minibatches={self.minibatches} with small batches: a small batch corrects the "
                "estimate of one step; use p=1"
            )
        if self.uses_critic and self.estimator.advantages == "normalised":
            raise UsageError(
                "advantages=normalised with small batches: estimates of differently scaled batches cannot be "
                "subtracted; use p=1 or advantages=plain"
            )


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
        sampled: what is sent or reported. If the batch is used several times, its estimate is zero.
        critic: the trained critics, which stay with their agents; empty without critics.
        batch: the episodes, which stay with their agents; empty unless the batch is used several times.
        ratio: `[A]`, see `Page.ratio_window`; 1 for a large batch, and empty if there is no window.
    """

    sampled: Sampled
    critic: CriticState | tuple[()]
    batch: Batch | tuple[()]
    ratio: Float[Array, " A"] | tuple[()] = ()


class Sampler(NamedTuple):
    """How A agents sample and estimate in one iteration. Seeds may be mapped over with `vmap`.

    Attributes:
        init: `key -> CriticState` of one agent; empty without critics, and a private and a public critic where
            Byzantine agents poison their rewards.
        large: `(θ_t [A, D], keys [A], mask [A], own, critics, size) -> Drawn`, for c_t = 1. `own` holds the parameters
            `[A, …]` in which the agents' environments differ, as in `collect`; `size` `[A]` is how many trajectories
            count, by default all N. The last three may be left out.
        small: `(θ_t, θ_{t−1}, v_{t−1}, keys, mask, own, critics) -> Drawn`, for c_t = 0.
        either: `(c_t, θ_t, θ_{t−1}, v_{t−1}, keys, mask, own, critics) -> Drawn`. If all seeds share one coin, only
            the branch that it shows is run.
        estimate: `(Drawn, θ [A, D], i) -> Sampled`, with the estimate that message number i of the iteration holds.
    """

    init: Callable[[PRNGKeyArray], CriticState | tuple[()]]
    large: Callable[..., Drawn]
    small: Callable[..., Drawn]
    either: Callable[..., Drawn]
    estimate: Callable[[Drawn, Float[Array, "A D"], Int[Array, ""] | int], Sampled]


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
    page.check_switch(always_large)
    if page.entropy != 0 and policy.entropy is None:
        raise UsageError(f"entropy={page.entropy}: the policy does not compute its entropy; use entropy=0")
    estimator = page.estimator
    poison = None if interference is None else interference.poison
    judging = critic(environment.observation_size, page.critic) if page.uses_critic else None

    def sample(theta: Array, keys: PRNGKeyArray, mask: Array, own: OwnParams | None, batch: int) -> Episodes:
        episodes = collect(environment, policy, theta, keys, batch, estimator.horizon, interference, mask, own)
        return with_false_rewards(episodes, interference, keys, mask)

    def judge(critics: Any, episodes: Episodes) -> tuple[Array, Any]:
        """Return the coefficients q_t of a batch, and the critics after their training on it."""
        if judging is None:
            return coefficients(estimator, episodes), critics
        values, final_values = judging.values(critics, episodes)
        q = advantages(episodes, values, final_values, estimator.gamma, estimator.gae_lambda)
        critics = judging.train(critics, episodes, q + values)
        return normalised(q, episodes.alive) if estimator.advantages == "normalised" else q, critics

    def judge_reported(critics: Any, episodes: Episodes, theta: Array, mask: Array) -> tuple[Episodes, Array, Any]:
        """Return the episodes as the agents report them, with their coefficients and the trained critics."""
        if poison is None:
            return episodes, *judge(critics, episodes)
        private, public = critics if critics else ((), ())
        q, private = judge(private, episodes)
        true_estimate = sum_of_scores(policy, theta, episodes, q)
        effects = reward_effects(estimator, policy, theta, episodes, true_estimate)
        episodes = _with_poisoned_rewards(episodes, effects, poison, mask)
        q, public = judge(public, episodes)
        return episodes, q, (private, public) if critics else ()

    def entropy_coefficients(episodes: Episodes) -> Array | None:
        if page.entropy == 0:
            return None
        taken = page.entropy * episodes.alive.astype(jnp.float32)
        if not (page.uses_critic and estimator.advantages == "normalised"):
            return taken
        return taken / jnp.mean(episodes.lengths, axis=1)[None, :, None, None]

    def summary(
        episodes: Episodes, estimates: Array, weights: Weights | None = None, size: Array | None = None
    ) -> Sampled:
        mean = partial(jnp.mean, axis=1) if size is None else partial(mean_over_first, size=size)
        returns, lengths = mean(episodes.returns), mean(episodes.lengths.astype(jnp.float32))
        ess, largest = (jnp.ones_like(returns),) * 2 if weights is None else (weights.ess, weights.largest)
        return Sampled(clip_norm(estimates, page.clip_norm), returns, lengths, ess, largest)

    @fold_mapped_axis
    @partial(map_groups, episodes=page.N)
    def large(
        theta: Array, keys: PRNGKeyArray, mask: Array, own: OwnParams | None = None, critics: Any = (),
        size: Array | None = None,
    ) -> Drawn:  # fmt: skip
        episodes = sample(theta, keys, mask, own, page.N if size is None else page.N + page.batch_spread)
        if size is not None:
            episodes = first_episodes(episodes, size)
        episodes, q, critics = judge_reported(critics, episodes, theta, mask)
        bonus = entropy_coefficients(episodes)
        if size is not None:
            per_episode = episodes.alive.shape[3] / size[None, :, None, None]
            bonus = None if bonus is None else bonus * per_episode
            q = q * (whitened_over_all_steps(episodes) if estimator.kind == "whitened" else per_episode)
        if page.uses > 1:
            batch = keep(episodes, q, bonus)
            if page.local_eta is None:
                return Drawn(summary(episodes, jnp.zeros_like(theta)), critics, batch)
            steps = local_estimate(policy, theta, batch, page.ratio_clip, page.epochs, page.minibatches, page.local_eta)
            return Drawn(summary(episodes, steps), critics, ())
        estimates = sum_of_scores(policy, theta, episodes, q, bonus)
        ratio = () if page.ratio_window is None else jnp.ones(theta.shape[0])
        return Drawn(summary(episodes, estimates, size=size), critics, (), ratio)

    @fold_mapped_axis
    @partial(map_groups, episodes=page.B)
    def small(
        theta: Array, previous: Array, v_before: Array, keys: PRNGKeyArray, mask: Array,
        own: OwnParams | None = None, critics: Any = (),
    ) -> Drawn:  # fmt: skip
        episodes, q, critics = judge_reported(critics, sample(theta, keys, mask, own, page.B), theta, mask)
        omega = importance_weights(estimator, policy, previous, episodes)
        bonus = entropy_coefficients(episodes)
        now = sum_of_scores(policy, theta, episodes, q, bonus)
        omega_of_step = omega.values[None, :, None] if omega.values.ndim == 2 else omega.values
        q_before = coefficients(estimator, episodes, omega.values) if judging is None else q * omega_of_step
        bonus_before = None if bonus is None else bonus * omega_of_step
        before = sum_of_scores(policy, previous, episodes, q_before, bonus_before)
        ratio = () if page.ratio_window is None else mean_ratio(policy, previous, episodes)
        return Drawn(summary(episodes, now + (v_before - before), omega), critics, (), ratio)

    def either(coin: Array, theta: Array, previous: Array, v_before: Array, *who: Any) -> Drawn:
        if always_large:
            return large(theta, *who)
        return cond_on_coin(
            coin,
            lambda theta, previous, v_before, *who: large(theta, *who),
            small,
            *(theta, previous, v_before, *who),
        )

    @fold_mapped_axis
    def clipped(theta: Array, batch: Batch) -> Array:
        return clip_norm(clipped_estimate(policy, theta, batch, page.ratio_clip), page.clip_norm)

    def estimate_of_message(drawn: Drawn, theta: Array, index: Int[Array, ""] | int) -> Sampled:
        if not isinstance(drawn.batch, Batch):
            return drawn.sampled
        part = minibatch(drawn.batch, jnp.asarray(index), page.minibatches)
        return drawn.sampled._replace(estimate=clipped(theta, part))

    def init(key: PRNGKeyArray) -> Any:
        if judging is None:
            return ()
        return judging.init(key) if poison is None else (judging.init(key), judging.init(key))

    return Sampler(init, large, small, either, estimate_of_message)


def with_false_rewards(
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


def _with_poisoned_rewards(
    episodes: Episodes,
    effects: Float[Array, "n A C M"],
    poison: Callable[[Array, Array], Array],
    mask: Bool[Array, " A"],
) -> Episodes:
    """Replace the rewards of the Byzantine agents by those that they choose, knowing the effect of every reward."""
    shape = episodes.rewards.shape
    taken = jnp.where(episodes.alive, episodes.rewards, 0.0)
    by_agent = (jnp.moveaxis(x, 1, 0).reshape(shape[1], -1) for x in (taken, effects))
    chosen = jax.vmap(poison)(*by_agent).reshape(shape[1], shape[0], *shape[2:])
    return episodes._replace(
        rewards=jnp.where(mask[None, :, None, None] & episodes.alive, jnp.moveaxis(chosen, 0, 1), episodes.rewards)
    )


def clip_norm(vectors: Float[Array, "A D"], limit: float | None) -> Float[Array, "A D"]:
    """Scale every row that is longer than `limit` down to that norm."""
    if limit is None:
        return vectors
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * jnp.minimum(1.0, limit / jnp.maximum(norms, jnp.finfo(vectors.dtype).tiny))
