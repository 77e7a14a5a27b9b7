"""The same number in every coordinate: zero, infinity, or not-a-number."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages


def _constant(value: float, on: MessageKind) -> Attack:
    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return jnp.full(view.messages.shape, value, view.messages.dtype)

    return on_messages(forge, on)


def zero(*, on: MessageKind = "gradients") -> Attack:
    """Byzantine agents send the zero vector: they take part and contribute nothing (FedPG-BR's zero gradient)."""
    return _constant(0.0, on)


def inf(*, on: MessageKind = "both") -> Attack:
    """Byzantine agents send +∞ in every coordinate: one such message spoils an unguarded mean."""
    return _constant(float("inf"), on)


def nan(*, on: MessageKind = "both") -> Attack:
    """Byzantine agents send NaN in every coordinate: comparisons with it are false, so unguarded sorting breaks."""
    return _constant(float("nan"), on)
