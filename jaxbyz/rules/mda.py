"""Minimum Diameter Averaging, exactly, without enumerating C(n, f) subsets; and its greedy cousin (appendix A.3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Rule, normalised, weighted
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import neighbour_sums, ranks

LEVELS_LIMIT = 8  # up to this f all 2^f sets of a level are one array; beyond it a depth-first search takes over


def minimum_diameter_subset(squares: Float[Array, "n n"], f: int) -> Bool[Array, " n"]:
    """[n] bool: n − f points whose largest pairwise distance is least, from squared distances.

    Several subsets may have that diameter, and commonly do: when two far points are far from each other only, either
    may go. Among equals the one with the least sum of Krum scores (squared distances to the n − f nearest) is taken, so
    the result depends on the points and not on their order.
    """
    n = squares.shape[0]
    if f == 0:
        return jnp.ones(n, bool)
    largest = jnp.finfo(squares.dtype).max
    finite = jnp.where(jnp.isfinite(squares), squares, largest)  # farthest, yet comparable
    score = neighbour_sums(squares, n - f)
    score = jnp.where(jnp.isfinite(score), score, largest / n)
    return _by_levels(finite, score, f) if f <= LEVELS_LIMIT else _by_search(finite, score, f)


def _by_levels(squares: Float[Array, "n n"], score: Float[Array, " n"], f: int) -> Bool[Array, " n"]:
    """All of at most 2^f sets, level by level, for this reason.

    Let S be the current set and (a, b) its farthest pair. A subset of S with a smaller diameter cannot hold both a and
    b, so it lies in S∖{a} or in S∖{b}. Branching on which of the two goes, f times, from S = all: the leaves are 2^f
    sets of n − f points. Take an optimal set S*. While the current S ⊇ S* holds a farthest pair that is not inside S*,
    one branch drops a point outside S* and still contains S*. If the farthest pair does lie inside S*, then
    diam(S) = diam(S*), so S and every subset of it are as good as S*: whatever is dropped from here on leads to an
    optimal leaf. Hence some leaf is optimal, and the least diameter among the leaves is the minimum. (When all
    distances differ the second case needs |S| = n − f, so every optimal set is a leaf, and the choice among
    equals is complete.)

    One level is one vectorised step over all sets of that level: cost Σ_l 2^l·n² = 2^f·n².
    """
    n = squares.shape[0]
    kept = jnp.ones((1, n), bool)
    for _ in range(f):
        reach = _reach(squares, kept)  # [sets, n]
        a = jnp.argmax(reach, axis=1)
        b = jnp.argmax(jnp.where(kept, squares[a], -1.0), axis=1)
        drop = jnp.arange(n)[None, None] == jnp.stack([a, b], axis=1)[:, :, None]  # [sets, 2, n]
        # All points left equal: both ends coincide, and dropping it once is right.
        kept = (kept[:, None, :] & ~drop).reshape(-1, n)
    diameters = jnp.max(_reach(squares, kept), axis=1)
    totals = jnp.where(kept, score[None], 0.0).sum(axis=1)
    best = jnp.argmin(jnp.where(diameters == jnp.min(diameters), totals, jnp.inf))
    return kept[best]


def _reach(squares: Float[Array, "n n"], kept: Bool[Array, "sets n"]) -> Float[Array, "sets n"]:
    """Each kept point's distance to the farthest point kept with it; −1 for points not kept."""
    far = jnp.max(jnp.where(kept[:, :, None], squares[None], -1.0), axis=1)
    return jnp.where(kept, far, -1.0)


class _Search(NamedTuple):
    """Depth-first search for a vertex cover. stack [f+2, n] and spare [f+2]: sets still to look at, with the number of
    points each may yet lose; top: how many there are; best [n], total: the best set found, and its sum of scores."""

    stack: Bool[Array, "depth n"]
    spare: Array
    top: Array
    best: Bool[Array, " n"]
    total: Array


def _by_search(squares: Float[Array, "n n"], score: Float[Array, " n"], f: int) -> Bool[Array, " n"]:
    """Bisection over the distances: n − f points have diameter ≤ t if and only if the graph of the pairs farther apart
    than t has a vertex cover of at most f points. Each decision is a bounded search tree: a point with more far
    partners than may still go must itself go; the partner of a point with one far partner may as well; otherwise branch
    on the point with the most partners, d ≥ 2: it goes, or they all do. That is at most 1.47^f nodes (d ≥ 3;
    cycles, d = 2, branch once), of n² each, and few of them on most data. At the least t a last search (at most 1.62^f
    nodes) visits every cover of f points, for the choice among equals.
    """
    n = squares.shape[0]
    upper = jnp.triu_indices(n, 1)
    candidates = jnp.sort(squares[upper])

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # some cover at candidates[high], none below candidates[low]
        mid = (low + high) // 2
        found = jnp.isfinite(_cover(squares > candidates[mid], score, f, every=False).total)
        return jnp.where(found, low, jnp.minimum(mid + 1, high)), jnp.where(found, mid, high)

    pairs = n * (n - 1) // 2
    low, high = jnp.int32(0), jnp.int32(pairs - 1)
    _, at = jax.lax.fori_loop(0, pairs.bit_length(), halve, (low, high))
    return _cover(squares > candidates[at], score, f, every=True).best


def _cover(far: Bool[Array, "n n"], score: Float[Array, " n"], f: int, *, every: bool) -> _Search:
    """The n − f points left by a cover of the graph `far`: any cover, or of all those of f points the one that leaves
    the least total score."""
    n = far.shape[0]
    edge = far.astype(score.dtype)
    places = jnp.arange(n)

    def unfinished(now: _Search) -> Array:
        return (now.top > 0) & (every | ~jnp.isfinite(now.total))

    def visit(now: _Search) -> _Search:
        alive, spare = now.stack[now.top - 1], now.spare[now.top - 1]
        degree = jnp.where(alive, edge @ alive.astype(edge.dtype), 0.0)
        edges = 0.5 * jnp.sum(degree)
        hub = jnp.argmax(degree)
        most = degree[hub]
        covered = edges == 0
        hopeless = edges > spare * most
        # A cover was found: should points be left to lose (only when ties abound), those of largest score go.
        kept = alive & (ranks(jnp.where(alive, score, jnp.inf)) < n - f)
        total = jnp.sum(jnp.where(kept, score, 0.0))
        better = covered & (total < now.total)

        lone = jnp.argmax(degree == 1)
        partner = jnp.argmax(far[lone] & alive)
        pendant = degree[lone] == 1
        isolated = pendant & (degree[partner] == 1)  # a pair far from each other only: the one of larger score goes
        loser = jnp.where(isolated & (score[lone] > score[partner]), lone, partner)
        forced = most > spare
        alone = isolated | pendant if not every else isolated
        goes = jnp.where(forced, hub, jnp.where(alone, loser, hub))
        branches = ~(covered | hopeless)
        both = branches & ~(forced | alone)

        without = alive & (places != goes)
        partners = alive & ~far[hub]
        # The hub stays: its partners go. Pushed first, looked at last.
        stack = now.stack.at[now.top - 1].set(partners)
        left = now.spare.at[now.top - 1].set(spare - most.astype(jnp.int32))
        top = now.top - 1 + both.astype(jnp.int32)
        stack = stack.at[top].set(jnp.where(branches, without, stack[top]))
        left = left.at[top].set(jnp.where(branches, spare - 1, left[top]))
        return _Search(
            stack, left, top + branches.astype(jnp.int32),
            jnp.where(better, kept, now.best), jnp.where(better, total, now.total),
        )  # fmt: skip

    start = _Search(
        jnp.ones((f + 2, n), bool), jnp.full(f + 2, f, jnp.int32), jnp.int32(1),
        jnp.ones(n, bool), jnp.asarray(jnp.inf, score.dtype),
    )  # fmt: skip
    return jax.lax.while_loop(unfinished, visit, start)


def mda(byzantine: int = 0) -> Rule:
    """Mean of the (n − f)-subset S* with the least diameter max_{i,j∈S} ‖x_i − x_j‖ (El-Mhamdi et al. 2021).

    Exact. Limit 1/4 as the paper's averaging agreement, breakdown point 1/2 as an aggregator; cost n²·D + 2^f·n² up
    to f = 8, beyond it n²·D and a search of at most 1.47^f·n²·log n, instead of C(n, f)·n².
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        if not 0 <= byzantine < n:
            raise UsageError(f"mda: byzantine={byzantine} of {n} messages leaves none: at most {n - 1}")
        squares = jax.lax.stop_gradient(squared_distances(messages))
        kept = minimum_diameter_subset(squares, byzantine)
        return normalised(kept.astype(messages.dtype), jnp.isfinite(jnp.diagonal(squares)))

    return weighted(weights)
