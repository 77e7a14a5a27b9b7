"""Gaussian noise instead of a message."""

from __future__ import annotations

import jax
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages

GAUSSIAN_SCALE = 200.0
LARGE_NOISE_SCALE = 1000.0


def gaussian(
    *, scale: float = GAUSSIAN_SCALE, location: float = 0.0, on: MessageKind = "both", equivocate: bool = False
) -> Attack:
    """Every Byzantine agent sends noise N(location, scale²) in every coordinate.

    Args:
        scale: standard deviation of the noise.
        location: mean of the noise.
        equivocate: draw new noise for every receiver, instead of sending the same noise to all.

    References:
        Blanchard et al., Machine learning with adversaries, 2017.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        key = jax.random.fold_in(key, receiver) if equivocate else key
        return location + scale * jax.random.normal(key, view.messages.shape, view.messages.dtype)

    return on_messages(forge, on, equivocates=equivocate)


def large_noise(scale: float = LARGE_NOISE_SCALE) -> Attack:
    """LargeNoise of the paper: N(0, scale²) for gradients and parameters, drawn anew for every receiver."""
    return gaussian(scale=scale, equivocate=True)
