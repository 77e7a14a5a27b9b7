"""Draw a batch of episodes and compute the coefficients of its estimate: what agents do before any gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.sampling.reward_attacks import with_false_rewards, with_poisoned_rewards
from jaxbyz.sampling.rollout import Episodes, collect
from jaxbyz.sampling.scoring import SamplingInputs, critic_scorer, plain_scorer
from jaxbyz.sampling.settings import Sampling


class ScoredBatch(NamedTuple):
    """Episodes with the coefficients of their estimate (1/M) Σ_i Σ_t ∇(q_t log π + b_t H).

    Attributes:
        episodes: as the agents report them.
        q: `[n, A, C, M]`, the coefficients of the scores.
        bonus: `[n, A, C, M]`, the coefficients b of the entropy; None for none.
        private: what every agent keeps for itself afterwards.
    """

    episodes: Episodes
    q: Float[Array, "n A C M"]
    bonus: Float[Array, "n A C M"] | None
    private: Any


class BatchDrawer(NamedTuple):
    """How agents draw a batch.

    Attributes:
        init: `key -> private` of one agent; empty without critics.
        draw: `(inputs, episodes per agent) -> Episodes`.
        score: `(inputs, Episodes) -> ScoredBatch`.
    """

    init: Callable[[PRNGKeyArray], Any]
    draw: Callable[[SamplingInputs, int], Episodes]
    score: Callable[[SamplingInputs, Episodes], ScoredBatch]


def batch_drawer(
    environment: Environment, policy: Policy, settings: Sampling, interference: Interference | None
) -> BatchDrawer:
    """Build the drawing of batches; `interference` is what Byzantine agents do wrong in their own environment."""
    if settings.entropy != 0 and policy.entropy is None:
        raise UsageError(f"entropy={settings.entropy}: the policy does not compute its entropy; use entropy=0")
    scorer = critic_scorer(environment, policy, settings) if settings.uses_critic else plain_scorer(settings)

    def honestly(inputs: SamplingInputs, episodes: int) -> Episodes:
        return collect(
            environment, policy, inputs.parameters, inputs.keys, episodes, settings.horizon, interference,
            inputs.interferes, inputs.environment,
        )  # fmt: skip

    rewards = None if interference is None else interference.rewards
    draw = honestly if rewards is None else with_false_rewards(honestly, rewards)
    if interference is not None and interference.poison is not None:
        scorer = with_poisoned_rewards(scorer, policy, settings, interference.poison)

    def entropy_coefficients(episodes: Episodes) -> Array | None:
        if settings.entropy == 0:
            return None
        taken = settings.entropy * episodes.alive.astype(jnp.float32)
        if not (settings.uses_critic and settings.advantages == "normalised"):
            return taken
        return taken / jnp.mean(episodes.lengths, axis=1)[None, :, None, None]

    def score(inputs: SamplingInputs, episodes: Episodes) -> ScoredBatch:
        reported, q, private = scorer.score(inputs, episodes)
        return ScoredBatch(reported, q, entropy_coefficients(reported), private)

    return BatchDrawer(scorer.init, draw, score)
