"""Bulyan: Krum's winners one by one, then their mean around the median."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, check_byzantine
from jaxbyz.rules.coordinatewise import around_median, mean_and_shares
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import comparable, neighbour_sums


def bulyan(byzantine: int = 0) -> Rule:
    """Take out Krum's winner n − 2f times; return per coordinate the mean of the n − 4f winners nearest to the median.

    With m messages left, a score sums the m − f − 2 nearest others (at least one). Equal scores, which two mutual
    nearest points have, are ordered by the score over n − f points at the start. Breakdown point 1/4 (the authors ask
    for n ≥ 4f + 3). Cost n²·D + n³ + n·log²n·D.

    Args:
        byzantine: the number of messages f that it defends against.

    References:
        El-Mhamdi, Guerraoui & Rouault, The hidden vulnerability of distributed learning in Byzantium, 2018.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        check_byzantine("bulyan", byzantine, n, (n - 1) // 4)
        squares = jax.lax.stop_gradient(squared_distances(messages))
        winners = successive_winners(squares, byzantine, n - 2 * byzantine)
        ok = jnp.isfinite(jnp.diagonal(squares))[winners]
        vector, winner_shares = mean_and_shares(around_median(2 * byzantine), messages[winners], ok)
        shares = jnp.zeros(n, messages.dtype).at[winners].add(winner_shares)
        return Outcome(vector[None], shares[None], state)

    return Rule(apply, translates=True)


def successive_winners(squares: Float[Array, "n n"], f: int, count: int) -> Int[Array, " count"]:
    """Return the indices of Krum's winners, each removed before the next is chosen."""
    n = squares.shape[0]
    order = jnp.argsort(squares, axis=1)
    ascending = jnp.minimum(jnp.take_along_axis(squares, order, axis=1), jnp.finfo(squares.dtype).max / n)
    initial_scores = neighbour_sums(squares, n - f)
    cumulative = jnp.triu(jnp.ones((n, n), squares.dtype))

    def take(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        alive, winners = carry
        left = alive[order].astype(squares.dtype)
        # A point itself, at distance zero, counts as well: one more than the number of others.
        near = (left @ cumulative) <= jnp.maximum(n - t - f - 1, 2).astype(squares.dtype)
        scores = comparable(jnp.where(alive, jnp.sum(left * near * ascending, axis=1), jnp.inf))
        winner = jnp.argmin(jnp.where(scores == jnp.min(scores), initial_scores, jnp.inf))
        winner = jnp.where(jnp.isfinite(initial_scores[winner]), winner, jnp.argmin(scores))
        return alive.at[winner].set(False), winners.at[t].set(winner.astype(jnp.int32))

    start = jnp.ones(n, bool), jnp.zeros(count, jnp.int32)
    return jax.lax.fori_loop(0, count, take, start)[1]
