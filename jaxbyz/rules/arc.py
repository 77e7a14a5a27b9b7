"""ARC: shorten the longest messages to the length of the next longest."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, shortening, squared_norms, usable_squares
from jaxbyz.rules.selection import lowest


def arc(byzantine: int = 0) -> Rule:
    """Clip the ⌊2f(n − f)/n⌋ longest messages to the length of the next longest. A pre-aggregator.

    It keeps the breakdown point of the rule behind it, f < n/2. Cost n·D + n². An unusable message counts as the
    longest, has no direction to keep, and becomes zero.

    Args:
        byzantine: the number of messages f that it defends against.

    References:
        Allouah et al., Adaptive gradient clipping for robust federated learning, 2025.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        squares = squared_norms(messages)
        ok = usable_squares(squares)
        safe, squares = jnp.where(ok[:, None], messages, 0.0), jnp.where(ok, squares, 0.0)
        clipped = min(2 * byzantine * (n - byzantine) // n, n - 1)
        kept = lowest(jnp.where(ok, squares, jnp.inf), n - clipped) > 0
        longest_kept = jnp.max(jnp.where(kept & ok, squares, 0.0))
        rows = safe * shortening(squares, longest_kept)[:, None]
        return Outcome(rows, jnp.eye(n, dtype=messages.dtype), state)

    return Rule(apply, rotates=True)
