"""Nearest-neighbour mixing: replace every message by the mean of its neighbourhood."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, check_byzantine, mix
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import nearest, neighbour_sums


def nnm(byzantine: int = 0) -> Rule:
    """Return `y_i = (1/(n − f)) Σ_{j∈N_i} x_j`, where N_i are the n − f messages nearest to x_i, itself included.

    A pre-aggregator: `[n, D]` -> `[n, D]`. It keeps the breakdown point 1/2 of the rule behind it and makes that rule
    optimal for heterogeneous messages. Cost n²·D + n³. An unusable message has no neighbours, so its row becomes that
    of the message with the tightest neighbourhood.

    Args:
        byzantine: the number of messages f that every mean leaves out.

    References:
        Allouah et al., Fixing by mixing, 2023.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        check_byzantine("nnm", byzantine, n, n - 1)
        squares = jax.lax.stop_gradient(squared_distances(messages))
        ok = jnp.isfinite(jnp.diagonal(squares))
        tightest = jnp.argmin(neighbour_sums(squares, n - byzantine))
        kept = nearest(squares, n - byzantine)
        kept = jnp.where(ok[:, None], kept, kept[tightest][None]) * ok[None]
        shares = kept / jnp.maximum(jnp.sum(kept, axis=1, keepdims=True), 1.0)
        return Outcome(mix(shares, messages), shares, state)

    return Rule(apply, rotates=True, averages=True, translates=True)
