"""The two attacks of the FedPG-BR paper in which Byzantine agents know only their own estimates.

References:
    Fan et al., Fault-tolerant federated reinforcement learning with theoretical guarantee, 2021.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages, sent_by_all
from jaxbyz.attacks.honest_statistics import mean_over, squared_distances_among

COLLUSION_REACH = 1.5
NOISE_RANGES = 3.0


def collusion_row(view: View, direction: Float[Array, " D"], reach: float) -> Float[Array, " D"]:
    """Return (1/f) Σ_b g_b + reach · max_{b,c} ‖g_b − g_c‖ · u/‖u‖, where b and c are Byzantine and u = `direction`."""
    diameter = jnp.sqrt(jnp.max(squared_distances_among(view.messages, view.mask)))
    return mean_over(view.messages, view.mask) + reach * diameter * direction / jnp.linalg.norm(direction)


def ranges_of(messages: Float[Array, "K D"]) -> Float[Array, "K 1"]:
    """Return max g_b − min g_b of every message."""
    return jnp.max(messages, axis=1, keepdims=True) - jnp.min(messages, axis=1, keepdims=True)


def range_noise(
    messages: Float[Array, "K D"], ranges: Float[Array, "K 1"], uniform: Float[Array, "K D"], scale: float
) -> Float[Array, "K D"]:
    """Return g_b + scale·(max g_b − min g_b)·u, where u = `uniform` is uniform in (−1, 1) in every coordinate."""
    return messages + scale * ranges * uniform


def fedpg_br(*, reach: float = COLLUSION_REACH, on: MessageKind = "gradients") -> Attack:
    """FedPG-BR's colluders: their own mean plus a random direction, `reach` times as long as their own diameter.

    All colluders use the same direction u ~ N(0, I). A single colluder has diameter zero and sends its true message.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        direction = jax.random.normal(key, view.messages.shape[1:], view.messages.dtype)
        return sent_by_all(collusion_row(view, direction, reach), view)

    return on_messages(forge, on)


def fedpg_br_noise(*, scale: float = NOISE_RANGES, on: MessageKind = "gradients") -> Attack:
    """FedPG-BR's noise: g_b + U(−1, 1)·scale·(max g_b − min g_b), uniform in every coordinate."""

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        uniform = jax.random.uniform(key, view.messages.shape, view.messages.dtype, -1.0, 1.0)
        return range_noise(view.messages, ranges_of(view.messages), uniform, scale)

    return on_messages(forge, on)
