"""Static clipping: shorten long messages to a fixed length."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.errors import check_value
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, shortening, squared_norms, usable_squares


def clipping(*, radius: float = 2.0) -> Rule:
    """Return `y_i = x_i·min(1, c/‖x_i‖)`. A pre-aggregator. Cost n·D.

    An unusable message has no direction to keep and becomes zero. Clipping alone is no defence; it bounds what the rule
    behind it has to tolerate. Before the mean, the breakdown point is 0 and the error at most 2c·f/n.

    Args:
        radius: the length c.
    """
    check_value("clipping: radius", radius, radius > 0, "positive")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        squares = squared_norms(messages)
        ok = usable_squares(squares)
        factors = shortening(jnp.where(ok, squares, 0.0), radius * radius)
        rows = jnp.where(ok[:, None], messages, 0.0) * factors[:, None]
        return Outcome(rows, jnp.eye(messages.shape[0], dtype=messages.dtype), state)

    return Rule(apply, rotates=True)
