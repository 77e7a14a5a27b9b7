"""Rules that treat every coordinate separately: median, trimmed mean, and mean around the median.

Each is a mean of selected values of the coordinate. The selection, as weights `[n, D]`, also gives the shares of the
senders and the derivative of the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.sorting_networks import count_rows, sum_of_ranks
from jaxbyz.accelerate.weighted_sums import sum_weighted_coordinates
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, check_byzantine, usable


class Selection(NamedTuple):
    """Which values of a coordinate are averaged.

    Attributes:
        weights: votes `[n, D]` -> `[n, D]`, the weight of each vote in the mean; columns sum to one.
        mean: (weights, votes) -> `[D]`, the mean of the selected values.
    """

    weights: Callable[[Array], Array]
    mean: Callable[[Array, Array], Array] = sum_weighted_coordinates


def middle(drop: int) -> Selection:
    """Select all values but the `drop` lowest and the `drop` highest."""

    def weights(votes: Array) -> Array:
        n = len(votes)
        low = sum_of_ranks(votes, range(drop, drop + 1))
        high = sum_of_ranks(votes, range(n - drop - 1, n - drop))
        # Values tied with an end of the selected range share the places at that end equally.
        all_equal = low == high
        places_low = jnp.where(all_equal, n - 2 * drop, count_rows(jnp.less_equal, votes, low) - drop)
        places_high = count_rows(jnp.greater_equal, votes, high) - drop
        at_low = (places_low / count_rows(jnp.equal, votes, low))[None]
        at_high = (places_high / count_rows(jnp.equal, votes, high))[None]
        inside = ((votes > low[None]) & (votes < high[None])).astype(votes.dtype)
        places = jnp.where(votes == low[None], at_low, jnp.where(votes == high[None], at_high, inside))
        return places / (n - 2 * drop)

    def mean(_: Array, votes: Array) -> Array:  # cheaper than to compute the weights first
        n = len(votes)
        return sum_of_ranks(votes, range(drop, n - drop)) / (n - 2 * drop)

    return Selection(weights, mean)


def around_median(drop: int) -> Selection:
    """Select the n − `drop` values nearest to the median; values at the same distance share the last places equally."""

    def weights(votes: Array) -> Array:
        count = len(votes) - drop
        centre = finite_median(votes)
        radius = sum_of_ranks(votes, range(count - 1, count), centre)

        places = count - count_rows(lambda x, m, r: jnp.abs(x - m) < r, votes, centre, radius)
        ties = count_rows(lambda x, m, r: jnp.abs(x - m) == r, votes, centre, radius)
        gaps = jnp.abs(votes - centre[None])
        inside = (gaps < radius[None]).astype(votes.dtype)
        return jnp.where(gaps == radius[None], (places / ties)[None], inside) / count

    return Selection(weights)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def selected_mean(selection: Selection, votes: Float[Array, "n D"], weights: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Return the mean of the selected votes, with the derivative Σ_i w_i dx_i: the selection is held fixed."""
    return selection.mean(weights, votes)


@selected_mean.defjvp
def _selected_mean_jvp(
    selection: Selection, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    votes, weights = primals
    return selection.mean(weights, votes), jnp.einsum("nd,nd->d", weights, tangents[0])


def cast_votes(messages: Float[Array, "n D"], ok: Bool[Array, " n"]) -> Float[Array, "n D"]:
    """Replace unusable messages by +∞, −∞, +∞, … in every coordinate, so that they favour no side.

    Args:
        messages: `[n, D]`.
        ok: `[n]`, the usable messages.
    """
    before = jnp.arange(len(ok))[None, :] < jnp.arange(len(ok))[:, None]
    odd = jnp.sum(before & ~ok[None, :], axis=1) % 2 == 1
    return jnp.where(ok[:, None], messages, jnp.where(odd, -jnp.inf, jnp.inf)[:, None])


def mean_and_shares(
    selection: Selection, messages: Float[Array, "n D"], ok: Bool[Array, " n"]
) -> tuple[Float[Array, " D"], Float[Array, " n"]]:
    """Return the mean of the selected values, `[D]`, and the share of each sender, averaged over coordinates, `[n]`.

    If more messages are unusable than the selection tolerates, the result is zero.
    """
    votes = cast_votes(messages, ok)
    weights = selection.weights(jax.lax.stop_gradient(votes))
    vector = selected_mean(selection, votes, weights)
    return jnp.where(jnp.isfinite(vector), vector, 0.0), jnp.mean(weights, axis=1)


def finite_median(messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Return the coordinate-wise median, zero where it is not finite. NaN counts as +∞. Not differentiated."""
    n = len(messages)
    ranks = range((n - 1) // 2, n // 2 + 1)
    value = sum_of_ranks(jnp.where(jnp.isnan(messages), jnp.inf, messages), ranks) / len(ranks)
    return jnp.where(jnp.isfinite(value), value, 0.0)


def _coordinatewise(select: Callable[[int], Selection]) -> Rule:
    """Build an aggregator from a function `n -> Selection`."""

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        vector, shares = mean_and_shares(select(len(messages)), messages, usable(messages))
        return Outcome(vector[None], shares[None], state)

    return Rule(apply, translates=True)


def median() -> Rule:
    """Return the coordinate-wise median: `med{x_1k, …, x_nk}`, the mean of the middle two if n is even.

    Breakdown point 1/2. Cost n·log²n·D.

    References:
        Yin et al., Byzantine-robust distributed learning, 2018.
    """
    return _coordinatewise(lambda n: middle((n - 1) // 2))


def trimmed_mean(byzantine: int = 0) -> Rule:
    """Return the coordinate-wise mean without the f lowest and the f highest values.

    `(1/(n − 2f)) Σ_{r=f+1}^{n−f} x_(r)k`. Breakdown point 1/2. Cost n·log²n·D. The kept values are summed, because the
    sum of all less the extremes loses every digit if an extreme is large.

    As an agreement, values stay within the honest range of every coordinate, and every round multiplies that range by
    at most f/(n − 2f), even if senders equivocate: each order statistic lies between those f ranks away, and the sum of
    such gaps telescopes. This is below 1 for f < n/3, and at most 1/2 for f ≤ n/4.

    Args:
        byzantine: the number of values f that are dropped at each end.

    References:
        Yin et al., Byzantine-robust distributed learning, 2018; as an agreement: El-Mhamdi et al., Collaborative
        learning in the jungle, 2021.
    """

    def select(n: int) -> Selection:
        check_byzantine("trimmed-mean", byzantine, n, (n - 1) // 2)
        return middle(byzantine)

    return _coordinatewise(select)


def meamed(byzantine: int = 0) -> Rule:
    """Return the mean around the median: in every coordinate, the mean of the n − f values nearest to the median.

    Breakdown point 1/2. Cost n·log²n·D.

    Args:
        byzantine: the number of values f that are dropped.

    References:
        Xie et al., Generalized Byzantine-tolerant SGD, 2018.
    """

    def select(n: int) -> Selection:
        check_byzantine("meamed", byzantine, n, (n - 1) // 2)
        return around_median(byzantine)

    return _coordinatewise(select)
