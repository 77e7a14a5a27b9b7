"""Rules that treat each coordinate alone: median, trimmed mean, mean around the median.

All average consecutive order statistics, found by sorting networks that are fused loops over D. Each sender's weight,
and with it the derivative, comes from comparisons with the ends of what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.branches import shortcut
from jaxbyz.accelerate.platform import on_cpu
from jaxbyz.accelerate.sorting_networks import add_rows, in_columns, median_rows, ranked_once, ranked_rows, written_out
from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, usable

# On a CPU messages of so many numbers leave the caches, and a copy with votes cast costs as much as the network. A
# program for the case that all are usable is then worth its compilation, if they are not too many.
LARGE, FEW = 2**18, 64


class Selection(NamedTuple):
    """Which values of a coordinate are averaged.

    mean:    messages [n, D] -> [D]
    weights: messages [n, D] -> [n, D], the part of each sender in that mean; columns sum to one
    """

    mean: Callable[[Array], Array]
    weights: Callable[[Array], Array]


def middle(drop: int) -> Selection:
    """All but the `drop` lowest and the `drop` highest values."""

    def mean(messages: Array) -> Array:
        rows = ranked_rows(messages, range(drop, messages.shape[0] - drop))
        return add_rows(rows) * (1.0 / len(rows))

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        low, high = (
            ranked_once(lambda part, r=r: ranked_rows(part, range(r, r + 1))[0], messages)[None]
            for r in (drop, n - drop - 1)
        )
        inside = (messages > low) & (messages < high)
        at_low, at_high = messages == low, messages == high
        # Values tied with an end share equally the places left at that end.
        places_low = jnp.where(low == high, n - 2 * drop, _count(messages <= low) - drop)
        places_high = n - 2 * drop - places_low - _count(inside)
        ends = at_low * (places_low / _count(at_low)) + (at_high & (high > low)) * (places_high / _count(at_high))
        return (inside + ends).astype(messages.dtype) * (1.0 / (n - 2 * drop))

    return Selection(mean, weights)


def around_median(drop: int) -> Selection:
    """The n − `drop` values nearest to the median; those at the same distance share the last places equally."""

    def reach_of(messages: Array, median: Array) -> Array:
        """Distance of the last value that is kept."""

        def reach(part: Array, centre: Array) -> Array:
            last = part.shape[0] - drop - 1
            return ranked_rows([jnp.abs(row - centre) for row in part], range(last, last + 1))[0]

        return ranked_once(reach, messages, median)

    def mean(messages: Array) -> Array:
        count = messages.shape[0] - drop
        median = median_rows(messages)
        reach = reach_of(messages, median)
        rows = list(messages)  # row by row, so that each step is one loop over D
        gaps = [jnp.abs(row - median) for row in rows]
        inside, at = [gap < reach for gap in gaps], [gap == reach for gap in gaps]
        places = count - add_rows([mark.astype(reach.dtype) for mark in inside])
        shared = places / add_rows([mark.astype(reach.dtype) for mark in at])
        total = add_rows([jnp.where(mark, row, 0.0) for mark, row in zip(inside, rows, strict=True)])
        ends = add_rows([jnp.where(mark, row, 0.0) for mark, row in zip(at, rows, strict=True)])
        return (total + ends * shared) * (1.0 / count)

    def weights(messages: Array) -> Array:
        count = messages.shape[0] - drop
        median = median_rows(messages)
        gaps, reach = jnp.abs(messages - median[None]), reach_of(messages, median)[None]
        inside, at = gaps < reach, gaps == reach
        places = (count - _count(inside)) / _count(at)
        return (inside + at * places).astype(messages.dtype) * (1.0 / count)

    return Selection(mean, weights)


def _count(marks: Bool[Array, "n D"]) -> Float[Array, "1 D"]:
    """How many are marked, per coordinate."""
    if not written_out(marks.shape[0]):
        return jnp.sum(marks, axis=0, keepdims=True, dtype=jnp.float32)
    return add_rows([marks[i : i + 1].astype(jnp.float32) for i in range(marks.shape[0])])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def selected_mean(selection: Selection, messages: Float[Array, "n D"], ok: Bool[Array, " n"]) -> Float[Array, " D"]:
    """The mean of the selected votes, with the derivative Σ_i w_i dx_i of its weights."""

    def mean(messages: Array, ok: Array) -> Array:
        return selection.mean(cast_votes(messages, ok))

    if messages.shape[0] > FEW or messages.size < LARGE or not on_cpu():
        return in_columns(mean, messages, fixed=(ok,))
    return shortcut(jnp.all(ok), lambda messages, _: selection.mean(messages), mean, messages, ok)


@selected_mean.defjvp
def _selected_mean_jvp(
    selection: Selection, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    (messages, ok), (d_messages, _) = primals, tangents
    weights = selection.weights(cast_votes(messages, ok))
    moved = jnp.einsum("nd,nd->d", weights, jnp.where(ok[:, None], d_messages, 0.0))
    return selected_mean(selection, messages, ok), moved


def cast_votes(messages: Float[Array, "n D"], ok: Bool[Array, " n"]) -> Float[Array, "n D"]:
    """Messages with unusable ones at +∞, −∞, +∞ … in every coordinate: votes without a side of their own."""
    before = jnp.arange(len(ok))[None, :] < jnp.arange(len(ok))[:, None]
    odd = jnp.sum(before & ~ok[None, :], axis=1) % 2 == 1
    return jnp.where(ok[:, None], messages, jnp.where(odd, -jnp.inf, jnp.inf)[:, None])


def counted(selection: Selection, messages: Float[Array, "n D"], ok: Bool[Array, " n"]) -> tuple[Array, Array]:
    """The mean of the selected votes [D], and each sender's weight in it, averaged over coordinates [n].

    More unusable messages than the selection stands leave no answer; zero is at least a number.
    """
    vector = selected_mean(selection, messages, ok)
    weights = selection.weights(cast_votes(jax.lax.stop_gradient(messages), ok))
    D = weights.shape[1]
    return jnp.where(jnp.isfinite(vector), vector, 0.0), weights @ jnp.full(D, 1.0 / D, weights.dtype)


def _coordinatewise(select: Callable[[int], Selection]) -> Rule:
    """An aggregator from a selection of order statistics; an unusable message stands at one end, +∞ or −∞."""

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        vector, shares = counted(select(messages.shape[0]), messages, usable(messages))
        return Outcome(vector[None], shares[None], state)

    return Rule(apply)


def median() -> Rule:
    """Coordinate-wise median: med{x_1k, …, x_nk} for each k, the mean of the middle two when n is even.

    Yin et al. 2018. Breakdown point 1/2. Cost n·log²n·D.
    """
    return _coordinatewise(lambda n: middle((n - 1) // 2))


def trimmed_mean(byzantine: int = 0) -> Rule:
    """Coordinate-wise mean without the f lowest and the f highest: (1/(n − 2f)) Σ_{r=f+1}^{n−f} x_(r)k.

    Yin et al. 2018. Breakdown point 1/2. Cost n·log²n·D. Sorted and summed, for "the sum less the extremes" loses
    every digit when an extreme is large.

    As an agreement it is the coordinate-wise one of El-Mhamdi et al. 2021: values stay within the honest range of
    every coordinate, and a round shrinks that range by f/(n − 2f) at least, also when senders equivocate: each order
    statistic lies between those f ranks away, and the sum of such gaps telescopes. Below 1 for f < n/3, and at most
    1/2 for f ≤ n/4.
    """

    def select(n: int) -> Selection:
        if 2 * byzantine >= n:
            raise UsageError(f"trimmed-mean: byzantine={byzantine} of {n} messages leaves none: at most {(n - 1) // 2}")
        return middle(byzantine)

    return _coordinatewise(select)


def meamed(byzantine: int = 0) -> Rule:
    """Mean around the median: per coordinate the mean of the n − f values nearest to the median.

    Xie et al. 2018. Breakdown point 1/2. Cost n·log²n·D.
    """

    def select(n: int) -> Selection:
        if 2 * byzantine >= n:
            raise UsageError(f"meamed: byzantine={byzantine} of {n} messages: at most {(n - 1) // 2}")
        return around_median(byzantine)

    return _coordinatewise(select)
