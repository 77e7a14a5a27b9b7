"""AvgZero of the paper: the average of all gradients becomes zero."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.attacks.base import Attack, View, same_row


def avg_zero_row(view: View) -> Float[Array, " D"]:
    """Return −(1/f) Σ_honest x_i, where f is the number of Byzantine senders in this iteration."""
    honest_sum = jnp.sum(jnp.where(view.mask[:, None], 0.0, view.messages), axis=0)
    return -honest_sum / jnp.maximum(jnp.sum(view.mask), 1)


def avg_zero() -> Attack:
    """Byzantine agents collude so that the average of all gradients is zero: each sends −(1/f) Σ_honest g.

    On parameters they behave honestly, because the paper defines the attack for gradients.
    """

    return same_row(avg_zero_row, "gradients")
