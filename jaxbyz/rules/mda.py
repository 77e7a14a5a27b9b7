"""Minimum Diameter Averaging, exact without enumerating all C(n, f) subsets (the paper's appendix A.3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.rules.base import Rule, check_byzantine, normalised, weighted
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.selection import neighbour_sums, ranks

LEVELS_LIMIT = 8  # up to this f, all 2^f sets of a level are one array; beyond it, a depth-first search is cheaper


def mda(byzantine: int = 0) -> Rule:
    """Return the mean of the (n − f)-subset of least diameter, `S* = argmin_{|S| = n−f} max_{i,j∈S} ‖x_i − x_j‖`.

    The minimum is exact. Breakdown point 1/2; the registered limit 1/4 is that of the paper's agreement. Cost
    n²·D + 2^f·n² up to f = 8, beyond that n²·D and at most (1.47^f·log n + 1.62^f)·n², instead of C(n, f)·n².

    Args:
        byzantine: the number of messages f that are left out.

    References:
        El-Mhamdi et al., Collaborative learning in the jungle, 2021.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        check_byzantine("mda", byzantine, n, n - 1)
        squares = jax.lax.stop_gradient(squared_distances(messages))
        kept = minimum_diameter_subset(squares, byzantine)
        return normalised(kept.astype(messages.dtype), ok=jnp.isfinite(jnp.diagonal(squares)))

    return weighted(weights, rotates=True, translates=True)


def minimum_diameter_subset(squares: Float[Array, "n n"], f: int) -> Bool[Array, " n"]:
    """Return n − f points whose largest pairwise distance is least.

    Often several subsets have that diameter: if two points are far from each other only, either may be left out. Of
    these subsets, the one with the least sum of Krum scores (squared distances to the n − f nearest points) is taken,
    so that the result depends on the points and not on their order.

    Args:
        squares: `[n, n]`, squared distances.
        f: the number of points that are left out.
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
    """Find the subset among at most 2^f candidates, level by level.

    Let S be the current set and (a, b) its farthest pair. A subset of S with a smaller diameter cannot contain both a
    and b, so it lies in S∖{a} or in S∖{b}. Starting from all points, branch f times on which of the two to drop: the
    leaves are 2^f sets of n − f points. One of them is optimal. To see this, take an optimal set S* and follow the
    branches that contain it. As long as the farthest pair of S is not inside S*, one branch drops a point outside S*.
    If the farthest pair is inside S*, then diam(S) = diam(S*), so every subset of S is as good as S*. (If all distances
    differ, the second case implies |S| = n − f, so every optimal set is a leaf, and the choice among them is complete.)

    One level is one vectorised step over all sets of that level: cost Σ_l 2^l·n² = 2^f·n².
    """
    n = squares.shape[0]
    kept = jnp.ones((1, n), bool)
    for _ in range(f):
        reach = _reach(squares, kept)  # [sets, n]
        a = jnp.argmax(reach, axis=1)
        b = jnp.argmax(jnp.where(kept, squares[a], -1.0), axis=1)
        drop = jnp.arange(n)[None, None] == jnp.stack([a, b], axis=1)[:, :, None]  # [sets, 2, n]
        # If all points that are left are equal, a = b, and dropping it once is right.
        kept = (kept[:, None, :] & ~drop).reshape(-1, n)
    diameters = jnp.max(_reach(squares, kept), axis=1)
    totals = jnp.where(kept, score[None], 0.0).sum(axis=1)
    best = jnp.argmin(jnp.where(diameters == jnp.min(diameters), totals, jnp.inf))
    return kept[best]


def _reach(squares: Float[Array, "n n"], kept: Bool[Array, "sets n"]) -> Float[Array, "sets n"]:
    """Return each kept point's distance to the farthest point kept with it; −1 for points not kept."""
    far = jnp.max(jnp.where(kept[:, :, None], squares[None], -1.0), axis=1)
    return jnp.where(kept, far, -1.0)


class _Search(NamedTuple):
    """State of the depth-first search for a vertex cover.

    Attributes:
        stack: `[f + 2, n]`, the sets that are still to be visited.
        spare: `[f + 2]`, how many points each of them may still lose.
        top: the number of sets on the stack.
        best: `[n]`, the best set found.
        total: its sum of scores.
    """

    stack: Bool[Array, "depth n"]
    spare: Array
    top: Array
    best: Bool[Array, " n"]
    total: Array


def _by_search(squares: Float[Array, "n n"], score: Float[Array, " n"], f: int) -> Bool[Array, " n"]:
    """Find the subset by bisection over its diameter t.

    n − f points have diameter at most t if and only if the graph of the pairs farther apart than t has a vertex cover
    of at most f points. Each decision is a bounded search tree (see `_cover`). It has at most 1.47^f nodes of cost n²,
    and few on most data. At the least t a last search, of at most 1.62^f nodes, visits every cover of f points, to
    choose among subsets of equal diameter.
    """
    n = squares.shape[0]
    upper = jnp.triu_indices(n, 1)
    candidates = jnp.sort(squares[upper])

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # there is a cover at candidates[high], and none below candidates[low]
        mid = (low + high) // 2
        found = jnp.isfinite(_cover(squares > candidates[mid], score, f, every=False).total)
        return jnp.where(found, low, jnp.minimum(mid + 1, high)), jnp.where(found, mid, high)

    pairs = n * (n - 1) // 2
    low, high = jnp.int32(0), jnp.int32(pairs - 1)
    _, at = jax.lax.fori_loop(0, pairs.bit_length(), halve, (low, high))
    return _cover(squares > candidates[at], score, f, every=True).best


def _cover(far: Bool[Array, "n n"], score: Float[Array, " n"], f: int, *, every: bool) -> _Search:
    """Search for f points that cover all edges of a graph, and return the n − f points that they leave.

    A point with more partners than points may still be dropped must be dropped. If a point has one partner, dropping
    the partner is as good as any other choice. Otherwise branch on the point with the most partners, d ≥ 2: it is
    dropped, or all its partners are. (If d = 2 the graph is a set of cycles, and each needs one branch only.)

    Args:
        far: `[n, n]`, the edges.
        score: `[n]`, the scores of the points.
        f: the number of points in the cover.
        every: whether to visit all covers and take the one that leaves the least total score, instead of the first one.
    """
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
        # If the cover has fewer than f points, which needs many ties, the points of largest score are dropped too.
        kept = alive & (ranks(jnp.where(alive, score, jnp.inf)) < n - f)
        total = jnp.sum(jnp.where(kept, score, 0.0))
        better = covered & (total < now.total)

        lone = jnp.argmax(degree == 1)
        partner = jnp.argmax(far[lone] & alive)
        pendant = degree[lone] == 1
        isolated = pendant & (degree[partner] == 1)  # a pair far from each other only: drop the one of larger score
        loser = jnp.where(isolated & (score[lone] > score[partner]), lone, partner)
        forced = most > spare
        single = isolated if every else pendant
        dropped = jnp.where(forced, hub, jnp.where(single, loser, hub))
        branches = ~(covered | hopeless)
        both = branches & ~(forced | single)

        without = alive & (places != dropped)
        without_partners = alive & ~far[hub]
        # Keeping the hub and dropping its partners is pushed first and visited last.
        stack = now.stack.at[now.top - 1].set(without_partners)
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
