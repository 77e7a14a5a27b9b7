"""Rules that treat each coordinate alone: median, trimmed mean, mean around the median.

All three average a window of consecutive order statistics, so they share one form: a `Window` tells which values were
averaged, from which each sender's weight, and the derivative, follow without going back through the sorting network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.rules.base import Outcome, Receiver, Rule, State, usable
from jaxbyz.rules.sorting import add_rows, ranked_rows


class Window(NamedTuple):
    """mean [D] of `size` consecutive order statistics; low, high [D] the least and largest; start [D] rank of low."""

    mean: Float[Array, " D"]
    low: Float[Array, " D"]
    high: Float[Array, " D"]
    start: Int[Array, " D"] | int
    size: int


def middle(messages: Float[Array, "n D"], drop: int) -> Window:
    """The window without the `drop` lowest and the `drop` highest values."""
    n = messages.shape[0]
    rows = ranked_rows(messages, range(drop, n - drop))
    return Window(add_rows(rows) * (1.0 / len(rows)), rows[0], rows[-1], drop, len(rows))


def around_median(messages: Float[Array, "n D"], drop: int) -> Window:
    """The window of the n − drop values nearest to the median: of the drop + 1 windows, the one whose ends are."""
    n = messages.shape[0]
    count = n - drop
    rows = ranked_rows(messages, range(n))
    median = 0.5 * (rows[(n - 1) // 2] + rows[n // 2])
    sums = _window_sums(rows, count)
    best = (sums[0], rows[0], rows[count - 1], jnp.zeros(median.shape, jnp.int32))
    reach = jnp.maximum(median - rows[0], rows[count - 1] - median)
    for s in range(1, drop + 1):
        ends = jnp.maximum(median - rows[s], rows[s + count - 1] - median)
        closer = ends < reach
        found = (sums[s], rows[s], rows[s + count - 1], jnp.full(median.shape, s, jnp.int32))
        best = tuple(jnp.where(closer, new, old) for new, old in zip(found, best, strict=True))  # type: ignore
        reach = jnp.minimum(ends, reach)
    return Window(best[0] * (1.0 / count), best[1], best[2], best[3], count)


def _window_sums(rows: list[Array], size: int) -> list[Array]:
    """Sums of rows s..s+size−1 for every s. Nothing is subtracted: what all windows share is summed once, and the rest
    added outwards from it."""
    last = len(rows) - size
    if size <= last:  # the windows share nothing
        return [add_rows(rows[s : s + size]) for s in range(last + 1)]
    below, above = [jnp.zeros_like(rows[0])], [jnp.zeros_like(rows[0])]
    for s in range(last):
        below.insert(0, below[0] + rows[last - 1 - s])  # ranks s..last−1
        above.append(above[-1] + rows[size + s])  # ranks size..size+s−1
    core = add_rows(rows[last:size])
    return [core + low + high for low, high in zip(below, above, strict=True)]


Select = Callable[[Array], Window]


def window_weights(messages: Float[Array, "n D"], window: Window) -> Float[Array, "n D"]:
    """Each sender's weight in the window's mean, per coordinate; values tied with an end share its places equally."""
    dtype = messages.dtype
    low, high = window.low[None], window.high[None]
    at_low, at_high = messages == low, messages == high
    inside = ((messages > low) & (messages < high)).astype(dtype)
    # Counts over senders as products with a row of ones: XLA's sum over the leading axis is slow on a CPU.
    ones = jnp.ones((1, messages.shape[0]), dtype)
    ties_low, ties_high = ones @ at_low.astype(dtype), ones @ at_high.astype(dtype)
    below = ones @ (messages <= low).astype(dtype)
    start = jnp.broadcast_to(jnp.asarray(window.start, dtype), low.shape)
    places_low = jnp.where(low == high, window.size, below - start)
    places_high = window.size - places_low - ones @ inside
    weights = inside + at_low * (places_low / ties_low) + (at_high & (high > low)) * (places_high / ties_high)
    return weights * (1.0 / window.size)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def window_mean(select: Select, messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """The mean of the selected window, with the derivative Σ_i w_i dx_i of its weights."""
    return select(messages).mean


@window_mean.defjvp
def _window_mean_jvp(select: Select, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (messages,), (d_messages,) = primals, tangents
    window = select(messages)
    weights = window_weights(messages, window)
    return window.mean, jnp.einsum("nd,nd->d", weights, d_messages)


def cast_votes(messages: Float[Array, "n D"], ok: Bool[Array, " n"]) -> Float[Array, "n D"]:
    """Messages with unusable ones at +∞, −∞, +∞ … in every coordinate: votes without a side of their own."""
    before = jnp.arange(len(ok))[None, :] < jnp.arange(len(ok))[:, None]
    odd = jnp.sum(before & ~ok[None, :], axis=1) % 2 == 1
    return jnp.where(ok[:, None], messages, jnp.where(odd, -jnp.inf, jnp.inf)[:, None])


def _coordinatewise(select: Callable[[int], Select]) -> Rule:
    """An aggregator from a window of order statistics; an unusable message stands at one end, +∞ or −∞."""

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: State) -> Outcome:
        pick = select(messages.shape[0])
        votes = cast_votes(messages, usable(messages))
        vector = window_mean(pick, votes)
        fixed = jax.lax.stop_gradient(votes)
        shares = jnp.mean(window_weights(fixed, pick(fixed)), axis=1)
        # More unusable messages than the rule stands leave no answer; zero is at least a number.
        return Outcome(jnp.where(jnp.isfinite(vector), vector, 0.0)[None], shares[None], state)

    return Rule(apply)


def median() -> Rule:
    """Coordinate-wise median: med{x_1k, …, x_nk} for each k, the mean of the middle two when n is even.

    Yin et al. 2018. Breakdown point 1/2. Cost n·log²n·D.
    """
    return _coordinatewise(lambda n: partial(middle, drop=(n - 1) // 2))


def trimmed_mean(byzantine: int = 0) -> Rule:
    """Coordinate-wise mean without the f lowest and the f highest: (1/(n − 2f)) Σ_{r=f+1}^{n−f} x_(r)k.

    Yin et al. 2018. Breakdown point 1/2. Cost n·log²n·D. Sorted and summed, for "the sum less the extremes" loses
    every digit when an extreme is large.

    As an agreement it is the coordinate-wise one of El-Mhamdi et al. 2021: values stay within the honest range of
    every coordinate, and a round shrinks that range by f/(n − 2f) at least, also when senders equivocate: each order
    statistic lies between those f ranks away, and the sum of such gaps telescopes. Below 1 for f < n/3, and at most
    1/2 for f ≤ n/4.
    """

    def select(n: int) -> Select:
        if 2 * byzantine >= n:
            raise ValueError(f"trimmed-mean: byzantine={byzantine} of {n} messages leaves none: at most {(n - 1) // 2}")
        return partial(middle, drop=byzantine)

    return _coordinatewise(select)


def meamed(byzantine: int = 0) -> Rule:
    """Mean around the median: per coordinate the mean of the n − f values nearest to the median.

    Xie et al. 2018. Breakdown point 1/2. Cost n·log²n·D: the nearest values are consecutive in order, so f + 1
    windows are compared by their ends.
    """

    def select(n: int) -> Select:
        if 2 * byzantine >= n:
            raise ValueError(f"meamed: byzantine={byzantine} of {n} messages: at most {(n - 1) // 2}")
        return partial(around_median, drop=byzantine)

    return _coordinatewise(select)
