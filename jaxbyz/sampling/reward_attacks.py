"""Byzantine agents that report other rewards than they received: wrappers of how batches are drawn and scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.policies import Policy
from jaxbyz.sampling.estimators import sum_of_scores
from jaxbyz.sampling.reward_effects import reward_effects
from jaxbyz.sampling.rollout import Episodes
from jaxbyz.sampling.scoring import SamplingInputs, Scorer
from jaxbyz.sampling.settings import Sampling

# The stream of false rewards. `split(key, n)[i]` equals `fold_in(key, i)`, so a small number would be one of the keys
# that `collect` splits the same key into.
FALSE_REWARD_STREAM = 2**32 - 1

Draw = Callable[[SamplingInputs, int], Episodes]


def with_false_rewards(draw: Draw, rewards: Callable[[PRNGKeyArray, Array, Array], Array]) -> Draw:
    """Replace the rewards of Byzantine agents by those that they report; `rewards` as in `Interference`."""

    def reported(inputs: SamplingInputs, count: int) -> Episodes:
        episodes = draw(inputs, count)
        n, A, C, M = episodes.rewards.shape
        by_time = (jnp.swapaxes(x, 0, 1).reshape(A, n * C, M) for x in (episodes.rewards, episodes.alive))
        own_keys = jax.vmap(lambda key: jax.random.fold_in(key, FALSE_REWARD_STREAM))(inputs.keys)
        false = jax.vmap(rewards)(own_keys, *by_time).reshape(A, n, C, M).swapaxes(0, 1)
        return episodes._replace(rewards=jnp.where(inputs.interferes[None, :, None, None], false, episodes.rewards))

    return reported


def with_poisoned_rewards(
    scorer: Scorer, policy: Policy, settings: Sampling, poison: Callable[[Array, Array], Array]
) -> Scorer:
    """Let Byzantine agents choose their rewards, knowing how every reward moves their estimate.

    With critics, every agent has two: a private one for the true rewards, and a public one for those that it reports.

    Args:
        scorer: how honest agents score their episodes.
        policy: the policy π.
        settings: the estimator.
        poison: as in `Interference`.
    """

    def init(key: PRNGKeyArray) -> Any:
        kept = scorer.init(key)
        return (kept, scorer.init(key)) if kept else ()

    def score(inputs: SamplingInputs, episodes: Episodes) -> tuple[Episodes, Array, Any]:
        private, public = inputs.private or ((), ())
        _, q, private = scorer.score(inputs._replace(private=private), episodes)
        true_estimate = sum_of_scores(policy, inputs.parameters, episodes, q)
        effects = reward_effects(settings, policy, inputs.parameters, episodes, true_estimate)
        episodes = _with_poisoned_rewards(episodes, effects, poison, inputs.interferes)
        _, q, public = scorer.score(inputs._replace(private=public), episodes)
        return episodes, q, (private, public) if inputs.private else ()

    return scorer._replace(init=init, score=score)


def _with_poisoned_rewards(
    episodes: Episodes,
    effects: Float[Array, "n A C M"],
    poison: Callable[[Array, Array], Array],
    interferes: Bool[Array, " A"],
) -> Episodes:
    """Replace the rewards of the agents that interfere by those that they choose from the effect of every reward."""
    shape = episodes.rewards.shape
    taken = jnp.where(episodes.alive, episodes.rewards, 0.0)
    by_agent = (jnp.moveaxis(x, 1, 0).reshape(shape[1], -1) for x in (taken, effects))
    chosen = jax.vmap(poison)(*by_agent).reshape(shape[1], shape[0], *shape[2:])
    replaced = interferes[None, :, None, None] & episodes.alive
    return episodes._replace(rewards=jnp.where(replaced, jnp.moveaxis(chosen, 0, 1), episodes.rewards))
