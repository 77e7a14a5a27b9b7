"""Batches of random size: more episodes are sampled than count, so that one program serves every size."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.sampling.rollout import Episodes


def first_episodes(episodes: Episodes, size: Int[Array, " A"]) -> Episodes:
    """Return a batch in which only the first `size` episodes of each agent have steps and rewards."""
    counts = jnp.arange(episodes.alive.shape[3])[None, None, None] < size[None, :, None, None]
    return episodes._replace(alive=episodes.alive & counts, rewards=jnp.where(counts, episodes.rewards, 0.0))


def mean_over_first(values: Float[Array, "A M"], size: Int[Array, " A"]) -> Float[Array, " A"]:
    """Return the mean of `size` values that are followed by zeros."""
    return jnp.sum(values, axis=1) / size


def whitened_over_all_steps(episodes: Episodes) -> Float[Array, "1 A 1 1"]:
    """Return the factor by which whitened coefficients of a batch become those of its episodes that have steps.

    They belong to a mean over all steps of the batch, in which an episode without steps was counted as one step.
    """
    lengths = episodes.lengths.astype(jnp.float32)
    return (jnp.sum(jnp.maximum(lengths, 1.0), axis=1) / jnp.sum(lengths, axis=1))[None, :, None, None]
