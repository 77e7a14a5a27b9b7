"""Dissensus: messages that differ per receiver and keep honest parameters from coming together."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages, sent_by_all


def dissensus(*, epsilon: float = 1.5, on: MessageKind = "parameters") -> Attack:
    """Undo gossip: receiver i is sent x_i − ε·Σ_{j honest} W_ij (x_j − x_i) / Σ_{b Byzantine} W_ib.

    W are the graph's mixing weights if the view has any, and equal weights otherwise.

    Args:
        epsilon: under plain averaging with weights W, ε = 1 cancels everything that i learns from its honest
            neighbours, and ε > 1 drives it away from them.

    References:
        He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        x, mask = view.messages, view.mask
        weights = jnp.ones(len(mask), x.dtype) if view.weights is None else jnp.asarray(view.weights, x.dtype)[receiver]
        honest = jnp.where(mask, 0.0, weights)
        byzantine = jnp.sum(weights) - jnp.sum(honest)
        own = x[receiver]
        pull = honest @ (x - own[None]) / jnp.where(byzantine > 0, byzantine, 1.0)
        return sent_by_all(own - epsilon * pull, view)

    return on_messages(forge, on, equivocates=True)
