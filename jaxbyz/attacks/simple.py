"""Attacks that need no statistics beyond the honest mean: sign flip, IPM, noise, zero, infinities, not-a-number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Place, View, honest_mean, honest_squares, on_messages, same_for_all
from jaxbyz.errors import UsageError


def sign_flip(*, scale: float = 1.0, of: str = "own", on: Place = "gradients", equivocate: bool = False) -> Attack:
    """Byzantine agents send the negative: −scale·g_b of what they would have sent, or −scale·μ with of="mean".

    On gradients by default: gradient ascent becomes descent. FedPG-BR's sign flip is scale=2.5. Li et al. 2019 (RSA).
    """
    if of not in ("own", "mean"):
        raise UsageError(f"of={of!r}: 'own' or 'mean'")

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        if of == "own":
            return -scale * view.messages
        return same_for_all(-scale * honest_mean(view.messages, view.mask), view)

    return on_messages(forge, on, mirrored=equivocate)


def ipm(*, epsilon: float = 0.5, on: Place = "gradients", equivocate: bool = False) -> Attack:
    """Inner-product manipulation, or fall of empires: every Byzantine agent sends −ε·μ, μ the honest mean.

    A small ε passes distance-based filters and still turns ⟨aggregate, μ⟩ down; codes use 0.1, 2 or 10. On gradients
    by default: parameters share a large common part, whose negative is only an outlier. Xie et al. 2020.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return same_for_all(-epsilon * honest_mean(view.messages, view.mask), view)

    return on_messages(forge, on, mirrored=equivocate)


def gaussian(*, scale: float = 200.0, location: float = 0.0, on: Place = "both", equivocate: bool = False) -> Attack:
    """Every Byzantine agent sends noise N(location, scale²) in every coordinate, the same to all receivers.

    With `equivocate`, fresh noise for each receiver (the paper's LargeNoise). Blanchard et al. 2017.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        key = jax.random.fold_in(key, receiver) if equivocate else key
        noise = jax.random.normal(key, view.messages.shape, view.messages.dtype)
        return location + scale * noise

    return on_messages(forge, on, equivocates=equivocate)


def _constant(value: float, on: Place) -> Attack:
    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return jnp.full(view.messages.shape, value, view.messages.dtype)

    return on_messages(forge, on)


def zero(*, on: Place = "gradients") -> Attack:
    """Byzantine agents send the zero vector: they take part and contribute nothing (FedPG-BR's zero gradient)."""
    return _constant(0.0, on)


def inf(*, on: Place = "both") -> Attack:
    """Byzantine agents send +∞ in every coordinate: one message that is not a number spoils an unguarded mean."""
    return _constant(float("inf"), on)


def nan(*, on: Place = "both") -> Attack:
    """Byzantine agents send NaN in every coordinate: comparisons with it are false, so unguarded sorting breaks."""
    return _constant(float("nan"), on)


def fedpg_br(*, reach: float = 1.5, on: Place = "gradients") -> Attack:
    """FedPG-BR's colluders: their own mean plus a random direction as long as `reach` times their own diameter.

    m = (1/f) Σ_b g_b + reach · max_{b,c} ‖g_b − g_c‖ · u/‖u‖, u ~ N(0, I), one u for all colluders, who know only what
    they sampled themselves: b, c range over the Byzantine. With one colluder the diameter is zero and it sends g_b.
    Fan et al. 2021.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        x, mask = view.messages, view.mask
        centre = honest_mean(x, ~mask)
        squares = honest_squares(x, ~mask)
        direction = jax.random.normal(key, centre.shape, x.dtype)
        unit = direction / jnp.linalg.norm(direction)
        return same_for_all(centre + reach * jnp.sqrt(jnp.max(squares)) * unit, view)

    return on_messages(forge, on)


def fedpg_br_noise(*, scale: float = 3.0, on: Place = "gradients") -> Attack:
    """FedPG-BR's noise: g_b + U(−1, 1)·scale·(max g_b − min g_b), uniform in every coordinate. Fan et al. 2021."""

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        x = view.messages
        extent = jnp.max(x, axis=1, keepdims=True) - jnp.min(x, axis=1, keepdims=True)
        return x + scale * extent * jax.random.uniform(key, x.shape, x.dtype, -1.0, 1.0)

    return on_messages(forge, on)
