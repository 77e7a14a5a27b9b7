"""Large batches of random size: one program samples the largest size and ignores the episodes that do not count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.accelerate.batching import fold_mapped_axis, map_groups
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy
from jaxbyz.sampling.batches import batch_drawer
from jaxbyz.sampling.estimators import sum_of_scores
from jaxbyz.sampling.page import Drawn, summary
from jaxbyz.sampling.rollout import Episodes
from jaxbyz.sampling.scoring import SamplingInputs
from jaxbyz.sampling.settings import Sampling


def random_size_batches(
    environment: Environment, policy: Policy, settings: Sampling, interference: Interference | None, most: int
) -> Callable[[SamplingInputs, Int[Array, " A"]], Drawn]:
    """Return the function `(inputs, size [A]) -> Drawn` for a large batch of which the first `size` episodes count.

    Args:
        environment: the task.
        policy: the policy that is trained.
        settings: the estimator.
        interference: what Byzantine agents do wrong in their own environment; None for nothing.
        most: the largest size.
    """
    drawer = batch_drawer(environment, policy, settings, interference)

    @fold_mapped_axis
    @partial(map_groups, episodes=most)
    def large(inputs: SamplingInputs, size: Int[Array, " A"]) -> Drawn:
        drawn = first_episodes(drawer.draw(inputs, most), size)
        episodes, q, bonus, private = drawer.score(inputs, drawn)
        per_episode = most / size[None, :, None, None]
        q = q * (_counted_steps_only(episodes) if settings.estimator == "whitened" else per_episode)
        bonus = None if bonus is None else bonus * per_episode
        estimates = sum_of_scores(policy, inputs.parameters, episodes, q, bonus)
        sampled = summary(settings, episodes, estimates)
        returns, lengths = (x * (most / size) for x in (sampled.returns, sampled.lengths))
        return Drawn(sampled._replace(returns=returns, lengths=lengths), private, (), jnp.ones(size.shape))

    return large


def first_episodes(episodes: Episodes, size: Int[Array, " A"]) -> Episodes:
    """Return a batch in which only the first `size` episodes of each agent have steps and rewards."""
    counts = jnp.arange(episodes.alive.shape[3])[None, None, None] < size[None, :, None, None]
    return episodes._replace(alive=episodes.alive & counts, rewards=jnp.where(counts, episodes.rewards, 0.0))


def _counted_steps_only(episodes: Episodes) -> Float[Array, "1 A 1 1"]:
    """Return the factor that corrects whitened coefficients for episodes without steps.

    An estimate from `whitened_coefficients` is divided by the number of sampled episodes and by the mean of
    max(length, 1) over them, hence by the sum Σ max(length, 1). This factor replaces that sum by Σ length, the number
    of steps that were taken.
    """
    lengths = episodes.lengths.astype(jnp.float32)
    return (jnp.sum(jnp.maximum(lengths, 1.0), axis=1) / jnp.sum(lengths, axis=1))[None, :, None, None]
