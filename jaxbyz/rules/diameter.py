"""Minimum Diameter Averaging, exactly, without enumerating C(n, f) subsets; and its greedy cousin (appendix A.3)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, State, mix, usable, weighted
from jaxbyz.rules.distances import squared_distances


def minimum_diameter_subset(squares: Float[Array, "n n"], f: int) -> Bool[Array, " n"]:
    """[n] bool: n − f points whose largest pairwise distance is least.

    At most 2^f sets are looked at, for this reason. Let S be the current set and (a, b) its farthest pair. A subset of S
    with a smaller diameter cannot hold both a and b, so it lies in S∖{a} or in S∖{b}. Branching on which of the two
    goes, f times, from S = all: the leaves are 2^f sets of n − f points. Take an optimal set S*. While the current S ⊇ S*
    holds a farthest pair that is not inside S*, one branch drops a point outside S* and still contains S*. If the
    farthest pair does lie inside S*, then diam(S) = diam(S*), so S and every subset of it are as good as S*: whatever
    is dropped from here on leads to an optimal leaf. Hence some leaf is optimal, and the least diameter among the
    leaves is the minimum. (Ties: the first leaf in branching order; subsets of equal diameter are equally minimal.)

    One level is one vectorised step over all sets of that level: cost Σ_l 2^l·n² = 2^f·n².
    """
    n = squares.shape[0]
    finite = jnp.where(
        jnp.isfinite(squares), squares, jnp.finfo(squares.dtype).max
    )  # farthest, yet comparable
    kept = jnp.ones((1, n), bool)
    for _ in range(f):
        inside = jnp.where(kept[:, :, None] & kept[:, None, :], finite[None], -1.0)
        pair = jnp.argmax(inside.reshape(kept.shape[0], n * n), axis=1)
        ends = jnp.stack([pair // n, pair % n], axis=1)  # [sets, 2]
        # With fewer than two distinct points apart (all equal) both ends coincide: dropping it once is right.
        drop = jax.nn.one_hot(ends, n, dtype=jnp.bool_)  # [sets, 2, n]
        kept = (kept[:, None, :] & ~drop).reshape(-1, n)
    inside = jnp.where(kept[:, :, None] & kept[:, None, :], finite[None], 0.0)
    diameters = jnp.max(inside, axis=(1, 2))
    return kept[jnp.argmin(diameters)]


def mda(byzantine: int = 0) -> Rule:
    """Mean of the (n − f)-subset S* with the least diameter max_{i,j∈S} ‖x_i − x_j‖ (El-Mhamdi et al. 2021).

    Exact. Limit 1/4 as the paper's averaging agreement, breakdown point 1/2 as an aggregator;
    cost n²·D + 2^f·n² instead of C(n, f)·n².
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        if byzantine >= n:
            raise ValueError(f"mda: byzantine={byzantine} of {n} messages leaves none")
        kept = minimum_diameter_subset(squared_distances(messages), byzantine)
        return kept.astype(messages.dtype) / (n - byzantine)

    return weighted(weights)


def monna(byzantine: int = 0) -> Rule:
    """Mean of the n − f messages nearest to the receiver's own (Farhadkhani et al. 2023, MoNNA; the paper's GDA_k).

    S* = argmin_{|S| = n−f} Σ_{i∈S} ‖x_i − x_k‖²: Greedy Diameter Averaging when used for agreement, limit 1/5.
    Cost n·D. Each receiver has its own result.
    """

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: State) -> Outcome:
        n = messages.shape[0]
        ok = usable(messages)
        gaps = jnp.where(ok[:, None], messages - receiver.own, 0.0)
        squares = jnp.where(ok, jnp.sum(gaps * gaps, axis=1), jnp.inf)
        squares = squares.at[receiver.index].set(-1.0)  # one's own vector is always among the nearest
        order = jnp.argsort(squares, stable=True)
        share = jnp.zeros((1, n), messages.dtype).at[0, order[: n - byzantine]].set(1.0 / (n - byzantine))
        return Outcome(mix(share, messages), share, state)

    return Rule(apply, personal=True)
