"""The average: best without attackers, helpless against one."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, State


def mean() -> Rule:
    """(1/n) Σ_i x_i. Breakdown point 0; cost n·D. The one rule that lets a non-finite message through."""

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: State) -> Outcome:
        n = messages.shape[0]
        return Outcome(jnp.mean(messages, axis=0)[None], jnp.full((1, n), 1.0 / n, messages.dtype), state)

    return Rule(apply)
