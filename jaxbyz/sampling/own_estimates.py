"""Estimates that workers keep for themselves, although the state of the algorithm is that of a server."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.sampling.page import Drawn, Sampler
from jaxbyz.sampling.scoring import SamplingInputs
from jaxbyz.sampling.settings import PageSwitch


class OwnEstimate(NamedTuple):
    """What a worker keeps: its last estimate ṽ_{t−1}, `[D]`, and what it would keep anyway, such as its critic."""

    estimate: Float[Array, " D"]
    private: Any


def with_own_estimates(sample: Sampler, size: int, settings: PageSwitch) -> Sampler:
    """Return the sampler whose small batches correct each worker's own estimate instead of the one that is passed.

    Args:
        sample: how workers sample and estimate.
        size: the number of parameters D.
        settings: `anchor` says whether the estimate of the last iteration or of the last large batch is corrected.
    """

    def init(key: PRNGKeyArray) -> Any:
        return OwnEstimate(jnp.zeros(size), sample.init(key))

    def either(coin: Array, inputs: SamplingInputs) -> Drawn:
        kept = inputs.private
        drawn = sample.either(coin, inputs._replace(previous=kept.estimate, private=kept.private))
        estimate = drawn.sampled.estimate
        if settings.anchor == "snapshot":
            estimate = jnp.where(coin, estimate, kept.estimate)
        return drawn._replace(private=OwnEstimate(estimate, drawn.private))

    return sample._replace(init=init, either=either)
