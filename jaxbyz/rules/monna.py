"""MoNNA: the mean of the messages nearest to the receiver's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.rules.base import (
    Receiver,
    Rule,
    check_byzantine,
    normalised,
    squared_norms,
    usable_squares,
    weighted_for_receiver,
)  # fmt: skip
from jaxbyz.rules.selection import lowest


def monna(byzantine: int = 0) -> Rule:
    """Return the mean of the n − f messages nearest to the receiver's own message x_k.

    `S* = argmin_{|S| = n−f} Σ_{i∈S} ‖x_i − x_k‖²`. As an agreement this is the paper's Greedy Diameter Averaging
    (GDA_k, appendix A.3), with limit 1/5. Cost n·D. Each receiver has its own result. Its own message is always kept;
    behind bucketing no row is its own. If its own message is not finite, it is left out, and distances are taken from
    zero.

    Args:
        byzantine: the number of messages f that are left out.

    References:
        Farhadkhani et al., Robust collaborative learning with linear gradient overhead, 2023.
    """

    def weights(messages: Array, receiver: Receiver) -> Array:
        n = messages.shape[0]
        check_byzantine("monna", byzantine, n, n - 1)
        own_ok = jnp.all(jnp.isfinite(receiver.own))
        centre = jnp.where(own_ok, receiver.own, 0.0)
        squares = squared_norms(jax.lax.stop_gradient(messages - centre[None]))
        ok = usable_squares(squares)
        squares = jnp.where(ok, squares, jnp.inf)
        own = (jnp.arange(n) == receiver.index) & own_ok
        return normalised(lowest(jnp.where(own, -1.0, squares), n - byzantine), ok | own)

    return weighted_for_receiver(weights, personal=True, translates=True)
