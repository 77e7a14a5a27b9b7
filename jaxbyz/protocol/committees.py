"""Messages within randomly drawn committees: about K·log K messages per round instead of K².

In every round the agents are divided at random into committees of s members, which all agents know from the common
random numbers of the paper (Common-Sample). The members of a committee send to each other only, and apply a rule for s
messages. If s does not divide K, the K mod s last agents of the draw sit the round out and keep what they have. Over
the rounds, every agent meets others, so that what one committee knows spreads to all.

A committee is safe if at most as many members are Byzantine as its rule defends against. Their number is
hypergeometric, so that the chance of an unsafe committee falls exponentially with s: s = O(log K) suffices for any
fixed α below the limit of the rule, see `failure_probability` and `committee_size`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.registry import largest_below
from jaxbyz.rules import THIRD, Outcome, Rule, aggregators

ROUND_FAILURE = 1e-3  # accepted probability that a round has an unsafe committee
LARGEST_SIZE = 128  # of a committee that is chosen automatically


def draw_committees(key: PRNGKeyArray, agents: int, size: int) -> tuple[Int[Array, "n s"], Int[Array, " r"]]:
    """Divide K agents into ⌊K/s⌋ committees at random; the others sit out."""
    order = jax.random.permutation(key, agents).astype(jnp.int32)
    together = agents // size * size
    return order[:together].reshape(-1, size), order[together:]


def scatter_outcomes(
    messages: Float[Array, "K D"], members: Int[Array, "n s"], sitting_out: Int[Array, " r"], found: Outcome
) -> Outcome:
    """Return the results of all committees, `[n, s, …]` each, as one row per agent."""
    K = messages.shape[0]
    rows = messages.at[members].set(found.rows)
    shares = jnp.zeros((K, K), found.shares.dtype).at[members[:, :, None], members[:, None, :]].set(found.shares)
    return Outcome(rows, shares.at[sitting_out, sitting_out].set(1.0), ())


def committees(
    agents: int,
    byzantine: int = 0,
    *,
    rule: str = "trimmed-mean",
    size: int | None = None,
    tolerated: int | None = None,
) -> Rule:
    """Return a rule that is applied within committees.

    Args:
        agents: the number of agents K.
        byzantine: the number of Byzantine agents f, which decides the default size.
        rule: the aggregator of a committee.
        size: the members of a committee, s; by default the smallest s for which all committees of a round are safe with
            probability 0.999 or more, and at most 128.
        tolerated: the Byzantine members that the rule defends against; by default as many as it tolerates among s.
    """
    entry = aggregators[rule]
    if size is None:
        size = committee_size(agents, byzantine, rule)
    if not 2 <= size <= agents:
        raise UsageError(f"size={size}: a committee of agents={agents} must have 2 to {agents} members")
    tolerated = members_tolerated(size, rule) if tolerated is None else tolerated
    if not 0 <= tolerated < size:
        raise UsageError(f"tolerated={tolerated}: must be between 0 and {size - 1}, with size={size}")
    inner: Any = entry.build(size, tolerated)
    if inner.stateful or inner.graph is not None:
        raise UsageError(f"rule={rule!r}: a rule with memory or on a graph cannot be applied in changing committees")
    return inner._replace(committee=size, random=True)


def members_tolerated(size: int, rule: str = "trimmed-mean") -> int:
    """Return how many Byzantine members a committee of s defends against: fewer than a third and the rule's limit.

    With a third or more, equivocation can keep the members from coming closer to each other.
    """
    limit = aggregators[rule].limit
    return largest_below(THIRD if limit is None else min(limit, THIRD), size)


def failure_probability(agents: int, byzantine: int, size: int, tolerated: int) -> float:
    """Return the probability that a committee of s has more than `tolerated` of the f Byzantine agents of K."""
    ways = (
        math.comb(byzantine, b) * math.comb(agents - byzantine, size - b)
        for b in range(tolerated + 1, min(byzantine, size) + 1)
    )
    return sum(ways) / math.comb(agents, size)


def committee_size(agents: int, byzantine: int, rule: str = "trimmed-mean", failure: float = ROUND_FAILURE) -> int:
    """Return the smallest committee with which a round has an unsafe committee with at most this probability.

    It is all K agents if no smaller committee suffices, and never more than `LARGEST_SIZE`.
    """
    for size in range(2, min(agents, LARGEST_SIZE) + 1):
        unsafe = failure_probability(agents, byzantine, size, members_tolerated(size, rule))
        if agents // size * unsafe <= failure:
            return size
    return min(agents, LARGEST_SIZE)
