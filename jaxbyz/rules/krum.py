"""Krum, Multi-Krum and Bulyan: messages with the tightest neighbourhoods (Blanchard et al. 2017; appendix A.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, chosen, weighted
from jaxbyz.rules.coordinatewise import around_median, counted
from jaxbyz.rules.distances import lowest, neighbour_sums, settled, squared_distances


def krum_scores(squares: Float[Array, "n n"], byzantine: int, neighbours: int | None) -> Float[Array, " n"]:
    """Sum of squared distances to the nearest points: n − f with itself, or `neighbours` others."""
    n = squares.shape[0]
    count = n - byzantine if neighbours is None else neighbours + 1
    if not 1 <= count <= n:
        raise UsageError(f"krum: neighbours={count - 1} of {n} messages: between 0 and {n - 1}")
    return neighbour_sums(squares, count)


def krum(byzantine: int = 0, *, neighbours: int | None = None) -> Rule:
    """argmin over x_i of Σ_{j∈S_i} ‖x_j − x_i‖², S_i the ⌈(1−α)n⌉ = n − f points nearest to x_i, itself included.

    That count is the paper's. `neighbours` sets another number of *other* points: n − f − 2 in Blanchard et al. and
    Flower, n − f − 1 in ByzFL (which is the paper's, since a point's distance to itself is zero).
    Breakdown point 1/4 with bucketing in the paper; without it Krum does not satisfy Definition 2, for its error does
    not vanish with α. Cost n²·D. Exact ties (n − f = 2: two points are each other's nearest) are averaged.
    """
    return multi_krum(byzantine, selected=1, neighbours=neighbours)


def multi_krum(byzantine: int = 0, *, selected: int | None = None, neighbours: int | None = None) -> Rule:
    """Mean of the m messages with the least Krum scores; m = `selected` = n − f by default.

    Blanchard et al. 2017; ByzFL takes m = n − f, Garfield n − f − 2. Breakdown point 1/2. Cost n²·D.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        m = n - byzantine if selected is None else selected
        if not 1 <= m <= n:
            raise UsageError(f"multi-krum: selected={m} of {n} messages: between 1 and {n}")
        squares = jax.lax.stop_gradient(squared_distances(messages))
        scores = krum_scores(squares, byzantine, neighbours)
        return chosen(lowest(scores, m), jnp.isfinite(jnp.diagonal(squares)))

    return weighted(weights)


def bulyan(byzantine: int = 0) -> Rule:
    """Krum's winner, taken out n − 2f times, then per coordinate the mean of the n − 4f nearest to their median.

    El-Mhamdi et al. 2018: with m messages left, a score sums the m − f − 2 nearest others (at least one). Equal
    scores, which two mutual nearest points have, are told apart by the score over n − f points at the start.
    Breakdown point 1/4 (the paper asks n ≥ 4f + 3). Cost n²·D + n³ + n·log²n·D.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n = messages.shape[0]
        theta = n - 2 * byzantine
        if theta - 2 * byzantine < 1:
            raise UsageError(f"bulyan: byzantine={byzantine} of {n} messages: at most {(n - 1) // 4}")
        squares = jax.lax.stop_gradient(squared_distances(messages))
        picked = _take_in_turn(squares, byzantine, theta)
        ok = jnp.isfinite(jnp.diagonal(squares))[picked]
        vector, parts = counted(around_median(2 * byzantine), messages[picked], ok)
        shares = jnp.zeros(n, messages.dtype).at[picked].add(parts)
        return Outcome(vector[None], shares[None], state)

    return Rule(apply)


def _take_in_turn(squares: Float[Array, "n n"], f: int, count: int) -> Array:
    """[count] indices of Krum's winners, each removed before the next is chosen."""
    n = squares.shape[0]
    order = jnp.argsort(squares, axis=1)
    ordered = jnp.take_along_axis(squares, order, axis=1)
    finite = jnp.minimum(ordered, jnp.finfo(squares.dtype).max / n)
    start = neighbour_sums(squares, n - f)
    upto = jnp.triu(jnp.ones((n, n), squares.dtype))  # a @ upto counts the living among the nearest so far

    def take(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        alive, picked = carry
        living = alive[order].astype(squares.dtype)
        # Itself, at distance zero, is counted too: one more than the number of others.
        among = (living @ upto) <= jnp.maximum(n - t - f - 1, 2).astype(squares.dtype)
        scores = settled(jnp.where(alive, jnp.sum(living * among * finite, axis=1), jnp.inf))
        winner = jnp.argmin(jnp.where(scores == jnp.min(scores), start, jnp.inf))
        winner = jnp.where(jnp.isfinite(start[winner]), winner, jnp.argmin(scores))
        return alive.at[winner].set(False), picked.at[t].set(winner.astype(jnp.int32))

    alive = jnp.ones(n, bool)
    return jax.lax.fori_loop(0, count, take, (alive, jnp.zeros(count, jnp.int32)))[1]
