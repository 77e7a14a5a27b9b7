"""Bucketing: average random groups of messages before a rule sees them (Karimireddy et al. 2022; appendix A.2)."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.branches import shortcut
from jaxbyz.accelerate.sorting_networks import add_rows
from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, usable
from jaxbyz.rules.distances import ranks


def bucket_size(agents: int, byzantine: int, alpha_max: float) -> int:
    """The largest s with α·s < α_max, α = f/K, so that f bad buckets of ⌈K/s⌉ stay below the limit; 1 if nobody lies.

    The paper has ⌊α_max/α⌋, the same unless α_max/α is a whole number: then half of RFA's buckets could be bad.
    """
    return 1 if byzantine == 0 else max(1, math.ceil(alpha_max * agents / byzantine - 1e-9) - 1)


def bucketing(size: int = 2) -> Rule:
    """Means of ⌈n/s⌉ random groups of s messages (the last may be smaller): [n, D] -> [⌈n/s⌉, D].

    At most f buckets hold a Byzantine message, so the rule behind defends against f of ⌈n/s⌉. An unusable message is
    left out of its bucket; a bucket with nothing else in it, a Byzantine one, becomes the mean of all usable messages.
    Cost n·D; n²·D/s, a product, in a batch or where a message is unusable.
    """
    if size < 1:
        raise UsageError(f"bucketing size={size}: at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        buckets = -(-n // size)
        place = ranks(jax.random.uniform(key, (n,)))  # [n]: where each message lands, a random permutation
        ok = usable(messages)
        member = (place[None, :] // size == jnp.arange(buckets)[:, None]) & ok[None]  # [m, n]
        member = jnp.where(jnp.any(member, axis=1, keepdims=True), member, ok[None]).astype(messages.dtype)
        shares = member / jnp.maximum(jnp.sum(member, axis=1, keepdims=True), 1.0)
        return Outcome(_bucket_means(size, shares, place, messages), shares, state)

    return Rule(apply, random=True, moves=True)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _bucket_means(
    size: int, shares: Float[Array, "m n"], place: Int[Array, " n"], messages: Float[Array, "n D"]
) -> Float[Array, "m D"]:
    """shares @ messages; with no message left out, by adding up those that share a bucket."""
    buckets, n = shares.shape

    def add_up(shares: Array, place: Array, messages: Array) -> Array:
        sender = jnp.zeros(n, jnp.int32).at[place].set(jnp.arange(n, dtype=jnp.int32))  # who is at each place
        parts = [messages[sender[k::size]] for k in range(min(size, n))]  # the last bucket may lack some
        parts = [jnp.pad(part, ((0, buckets - len(part)), (0, 0))) for part in parts]
        return add_rows(parts) / jnp.sum(shares > 0, axis=1, keepdims=True, dtype=messages.dtype)

    return shortcut(jnp.all(shares.any(axis=0)), add_up, lambda shares, _, x: mix(shares, x), shares, place, messages)


@_bucket_means.defjvp
def _bucket_means_jvp(size: int, primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    return jax.jvp(mix, primals[::2], tangents[::2])
