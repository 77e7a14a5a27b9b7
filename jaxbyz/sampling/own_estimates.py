"""Estimates that workers keep for themselves, although the state of the algorithm is that of a server."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.sampling.page import Drawn, Page, Sampler


class OwnEstimate(NamedTuple):
    """What a worker keeps: its last estimate ṽ_{t−1}, `[D]`, and its critic, which is empty if it has none."""

    estimate: Float[Array, " D"]
    critic: Any


def with_own_estimates(sample: Sampler, size: int, page: Page) -> Sampler:
    """Return the sampler whose small batches correct each worker's own estimate instead of the one that is passed.

    Args:
        sample: how workers sample and estimate.
        size: the number of parameters D.
        page: its `anchor` says whether the estimate of the last iteration or of the last large batch is corrected.
    """

    def init(key: PRNGKeyArray) -> Any:
        return OwnEstimate(jnp.zeros(size), sample.init(key))

    def either(coin: Array, theta: Array, previous: Array, v_before: Array, *who: Any) -> Drawn:
        *common, kept = who
        drawn = sample.either(coin, theta, previous, kept.estimate, *common, kept.critic)
        estimate = drawn.sampled.estimate
        if page.anchor == "snapshot":
            estimate = jnp.where(coin, estimate, kept.estimate)
        following: Any = OwnEstimate(estimate, drawn.critic)
        return drawn._replace(critic=following)

    return sample._replace(init=init, either=either)
