"""Bucketing: average random groups of messages before a rule sees them (the paper's appendix A.2)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.errors import check_value
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, usable
from jaxbyz.rules.selection import ranks


def bucket_size(agents: int, byzantine: int, alpha_max: float) -> int:
    """Return the largest s with α·s < α_max, where α = f/K, so that f bad buckets of ⌈K/s⌉ stay below the limit.

    It is 1 if f = 0. The paper has ⌊α_max/α⌋, which differs only if α_max/α is a whole number: then half of RFA's
    buckets could be bad.
    """
    return 1 if byzantine == 0 else max(1, math.ceil(alpha_max * agents / byzantine - 1e-9) - 1)


def bucketing(byzantine: int = 0, *, size: int | None = None, alpha_max: float = 0.5) -> Rule:
    """Return the means of ⌈n/s⌉ random groups of s messages; the last group may be smaller.

    A pre-aggregator: `[n, D]` -> `[⌈n/s⌉, D]`. At most f buckets hold a Byzantine message, so the rule behind it
    defends against f of ⌈n/s⌉. An unusable message is left out of its bucket; a bucket without a usable message, which
    is a Byzantine one, becomes the mean of all usable messages. Cost n·D.

    Args:
        byzantine: the number of Byzantine messages f.
        size: the number of messages s per bucket; by default the largest that keeps the fraction of bad buckets below
            `alpha_max` (see `bucket_size`).
        alpha_max: the limit of the rule behind it. A name such as `"bucketing+krum"` sets it to Krum's limit.

    References:
        Karimireddy, He & Jaggi, Byzantine-robust learning on heterogeneous datasets via bucketing, 2022.
    """
    check_value("bucketing: size", size, size is None or size >= 1, "at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        s = min(n, bucket_size(n, byzantine, alpha_max) if size is None else size)
        buckets = -(-n // s)
        place = ranks(jax.random.uniform(key, (n,)))  # a random permutation: message i goes to bucket place[i] // s
        ok = usable(messages)
        member = (place[None, :] // s == jnp.arange(buckets)[:, None]) & ok[None]  # [buckets, n]
        empty = ~jnp.any(member, axis=1, keepdims=True)
        member = jnp.where(empty, ok[None], member).astype(messages.dtype)
        shares = member / jnp.maximum(jnp.sum(member, axis=1, keepdims=True), 1.0)

        sender = jnp.zeros(n, jnp.int32).at[place].set(jnp.arange(n, dtype=jnp.int32))  # the inverse permutation
        safe = jnp.where(ok[:, None], messages, 0.0)
        totals = jnp.zeros((buckets, messages.shape[1]), messages.dtype)
        for k in range(s):  # the k-th member of every bucket; the last bucket may lack some
            members = safe[sender[k::s]]
            totals = totals.at[: len(members)].add(members)
        means = totals / jnp.maximum(jnp.sum(member, axis=1, keepdims=True), 1.0)
        everyone = mix((ok / jnp.maximum(jnp.sum(ok), 1)).astype(messages.dtype)[None], messages)
        return Outcome(jnp.where(empty, everyone, means), shares, state)

    return Rule(apply, random=True, moves=True, rotates=True, averages=True, translates=True)
