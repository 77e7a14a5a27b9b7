"""The average: optimal without attackers, defenceless against one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, normalised


def mean(*, skip_missing: bool = False) -> Rule:
    """Return the average `(1/n) Σ_i x_i`.

    Breakdown point 0. Cost n·D. The only registered aggregator that lets a non-finite message through.

    Args:
        skip_missing: average the messages that have arrived only; a missing message is a row of NaN.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        shares = jnp.full((1, n), 1.0 / n, messages.dtype)
        if skip_missing:
            arrived = ~jnp.all(jnp.isnan(messages), axis=1)
            shares = normalised(shares[0], arrived)[None]
            messages = jnp.where(arrived[:, None], messages, 0.0)
        return Outcome(jnp.matmul(shares, messages, precision=jax.lax.Precision.HIGHEST), shares, state)

    return Rule(apply, rotates=True, averages=True, translates=True)
