"""Comparative gradient elimination: leave out the longest messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.rules.base import Rule, check_byzantine, normalised, squared_norms, usable, weighted
from jaxbyz.rules.selection import lowest


def cge(byzantine: int = 0) -> Rule:
    """Return the mean of the n − f messages of least norm.

    Made for gradients near an optimum: zero is its centre, so it is not translation equivariant, and the error is
    bounded by the longest honest message. Breakdown point 1/2. Cost n·D.

    Args:
        byzantine: the number of messages f that are left out.

    References:
        Gupta & Vaidya, Fault-tolerance in distributed optimization, 2020 (they take the sum; ByzPy takes the mean).
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        check_byzantine("cge", byzantine, n, n - 1)
        ok = usable(messages)
        squares = jnp.where(ok, squared_norms(jax.lax.stop_gradient(messages)), jnp.inf)
        return normalised(lowest(squares, n - byzantine), ok)

    return weighted(weights, rotates=True)
