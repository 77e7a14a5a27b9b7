"""FLTrust: messages count as far as they point in the direction of a vector that the receiver trusts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, normalised, root, squared_norms, usable_squares


def fltrust() -> Rule:
    """Return ‖g_0‖ · Σ_i w_i x_i/‖x_i‖ with w_i ∝ max(0, cos(x_i, g_0)), where g_0 is the receiver's own vector.

    ByzPG's server samples B trajectories of its own for g_0; an agent without a server trusts its own estimate.
    Whatever is sent, the result is at most as long as g_0 and does not point away from it, for any number of Byzantine
    messages. Cost n·D. The share of a sender is w_i.

    References:
        Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, 2021.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        reference = jnp.where(jnp.all(jnp.isfinite(receiver.own)), receiver.own, 0.0)
        squares = squared_norms(messages)
        ok = usable_squares(squares) & (squares > 0)
        lengths = jnp.where(ok, jax.lax.rsqrt(jnp.where(ok, squares, 1.0)), 0.0)
        units = jnp.where(ok[:, None], messages, 0.0) * lengths[:, None]
        along = jnp.matmul(units, reference, precision=jax.lax.Precision.HIGHEST)
        share = normalised(jnp.maximum(along, 0.0), ok)
        direction = jnp.matmul(share, units, precision=jax.lax.Precision.HIGHEST)
        return Outcome((root(jnp.sum(reference * reference)) * direction)[None], share[None], state)

    return Rule(apply, personal=True, trusts_own=True)
