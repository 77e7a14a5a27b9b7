"""Bucketing: average random groups of messages before a rule sees them (Karimireddy et al. 2022; appendix A.2)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.registry import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, State, mix, usable
from jaxbyz.rules.distances import ranks


def bucket_size(agents: int, byzantine: int, alpha_max: float) -> int:
    """The paper's bucket size ⌊α_max/α⌋ with α = f/K; all in one bucket's worth of 1 when nobody lies."""
    return 1 if byzantine == 0 else max(1, math.floor(alpha_max * agents / byzantine + 1e-9))


def bucketing(size: int = 2) -> Rule:
    """Means of ⌈n/s⌉ random groups of s messages (the last may be smaller): [n, D] -> [⌈n/s⌉, D].

    At most f buckets hold a Byzantine message, so the rule behind defends against f of ⌈n/s⌉. An unusable message is
    left out of its bucket; a bucket with nothing else in it, a Byzantine one, becomes the mean of all usable messages.
    Cost n·D (a product of n²·D/s for a small n).
    """
    if size < 1:
        raise UsageError(f"bucketing size={size}: at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: State) -> Outcome:
        n = messages.shape[0]
        buckets = -(-n // size)
        place = ranks(jax.random.uniform(key, (n,)))  # [n]: where each message lands, a random permutation
        ok = usable(messages)
        member = (place[None, :] // size == jnp.arange(buckets)[:, None]) & ok[None]  # [m, n]
        member = jnp.where(jnp.any(member, axis=1, keepdims=True), member, ok[None]).astype(messages.dtype)
        shares = member / jnp.maximum(jnp.sum(member, axis=1, keepdims=True), 1.0)
        return Outcome(mix(shares, messages), shares, state)

    return Rule(apply, random=True)
