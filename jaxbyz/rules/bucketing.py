"""Bucketing: average random groups of messages before a rule sees them (Karimireddy et al. 2022; appendix A.2)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, State


def bucket_size(agents: int, byzantine: int, alpha_max: float) -> int:
    """The paper's bucket size ⌊α_max/α⌋ with α = f/K; all in one bucket's worth of 1 when nobody lies."""
    return 1 if byzantine == 0 else max(1, math.floor(alpha_max * agents / byzantine + 1e-9))


def bucketing(size: int = 2) -> Rule:
    """Means of ⌈n/s⌉ random groups of s messages (the last may be smaller): [n, D] -> [⌈n/s⌉, D].

    At most f buckets hold a Byzantine message, so the rule behind defends against f of ⌈n/s⌉. A non-finite message
    spoils its bucket, which the rule behind then counts as Byzantine. Cost n·D.
    """
    if size < 1:
        raise ValueError(f"bucketing size={size}: at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: State) -> Outcome:
        n = messages.shape[0]
        buckets = -(-n // size)
        bucket_of = jnp.arange(n) // size
        place = jax.random.permutation(key, n)
        member = jax.nn.one_hot(bucket_of[place], buckets, dtype=messages.dtype).T  # [m, n]
        shares = member / jnp.sum(member, axis=1, keepdims=True)
        finite = jnp.all(jnp.isfinite(messages), axis=1)
        rows = jnp.matmul(
            shares, jnp.where(finite[:, None], messages, 0.0), precision=jax.lax.Precision.HIGHEST
        )
        spoilt = jnp.any((member > 0) & ~finite, axis=1)
        return Outcome(jnp.where(spoilt[:, None], jnp.inf, rows), shares, state)

    return Rule(apply, random=True)
