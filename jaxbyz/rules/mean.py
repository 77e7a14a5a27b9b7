"""The average: optimal without attackers, defenceless against one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState


def mean() -> Rule:
    """Return the average `(1/n) Σ_i x_i`.

    Breakdown point 0. Cost n·D. The only registered aggregator that lets a non-finite message through.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        shares = jnp.full((1, n), 1.0 / n, messages.dtype)
        return Outcome(jnp.matmul(shares, messages, precision=jax.lax.Precision.HIGHEST), shares, state)

    return Rule(apply)
