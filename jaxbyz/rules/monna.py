"""MoNNA: the mean of the messages nearest to the receiver's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, normalised, squared_norms, usable_squares
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

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        if not 0 <= byzantine < n:
            raise UsageError(f"monna: byzantine={byzantine} of {n} messages: must be at most {n - 1}")
        own_ok = jnp.all(jnp.isfinite(receiver.own))
        centre = jnp.where(own_ok, receiver.own, 0.0)
        squares = squared_norms(jax.lax.stop_gradient(messages - centre[None]))
        ok = usable_squares(squares)
        squares = jnp.where(ok, squares, jnp.inf)
        own = (jnp.arange(n) == receiver.index) & own_ok
        share = normalised(lowest(jnp.where(own, -1.0, squares), n - byzantine), ok | own)[None]
        return Outcome(mix(share, messages), share, state)

    return Rule(apply, personal=True, averages=True, translates=True)
