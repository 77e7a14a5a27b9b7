"""SMEA: the mean of the subset whose covariance has the least largest eigenvalue (Allouah et al. 2023).

For any vector u, ‖Hu‖/‖u‖ is a lower bound on the largest eigenvalue of a positive semi-definite H, and for all subsets
together costs one product with the n×n Gram matrix. Subsets are looked at in the order of their bounds until the next
bound exceeds the best value found; bounds are first sharpened where that pays. Few subsets are ever diagonalised, and
the minimum is exact.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbyz.accelerate.eigenvalues import largest_eigenvalues
from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Rule, normalised, weighted
from jaxbyz.rules.covariance import projections, scaled, weighted_gram
from jaxbyz.rules.distances import gram_matrix

CHUNK = 64  # subsets whose bounds are sharpened together
STEPS = 12  # products that go into a sharpened bound
TRIED = 8  # exchanges diagonalised in one step of the local search
SUBSETS = 20_000  # up to so many subsets the minimum is exact


def scatter_values(gram: Float[Array, "n n"], masks: Float[Array, "s n"]) -> Float[Array, " s"]:
    """Largest eigenvalue of Σ_{i∈S}(x_i − μ_S)(x_i − μ_S)ᵀ for each subset, given as a row of zeros and ones."""

    def one(mask: Array) -> Array:
        about = weighted_gram(gram, mask / jnp.maximum(jnp.sum(mask), 1.0))
        return mask[:, None] * about * mask[None, :]

    return largest_eigenvalues(jax.vmap(one)(masks))


def scatter_bounds(
    gram: Float[Array, "n n"], masks: Float[Array, "s n"], directions: Float[Array, "n k"]
) -> Float[Array, " s"]:
    """Largest scatter of each subset along the given directions Σ_j a_j x_j, the columns of a: [s], a lower bound."""
    exact = jax.lax.Precision.HIGHEST
    along = jnp.matmul(gram, directions, precision=exact)  # [n, k]
    lengths = jnp.sum(directions * along, axis=0)
    floor = jnp.finfo(gram.dtype).tiny
    p = jnp.where((lengths > floor)[None], along / jnp.sqrt(jnp.maximum(lengths, floor))[None], 0.0)
    sums = jnp.matmul(masks, p, precision=exact)
    squares = jnp.matmul(masks, p * p, precision=exact)
    return jnp.max(squares - sums * sums / jnp.sum(masks, axis=1, keepdims=True), axis=1)


def filtered_subset(gram: Float[Array, "n n"], ok: Array, f: int) -> Float[Array, " n"]:
    """[n] zeros and ones: f times, the point farthest along the direction of largest spread goes; unusable ones first.

    Let R be the largest distance of an honest point from the honest mean. While b Byzantine and h > b honest points are
    left whose means are δ apart along that direction, some Byzantine point is at least hδ/(b+h) from the mean and no
    honest one farther than bδ/(b+h) + R. So if an honest point goes, δ ≤ R(b+h)/(h−b), and every projection, hence the
    largest eigenvalue, is bounded by R alone, and later removals only lower it: the error is at most R times a
    constant in f/n.
    """

    def remove(i: Array, mask: Array) -> Array:
        tau = projections(gram, mask * ok / jnp.maximum(jnp.sum(mask * ok), 1.0))[1]
        tau = jnp.where(ok, tau, jnp.inf)
        return mask.at[jnp.argmax(jnp.where(mask > 0, tau, -1.0))].set(0.0)

    return jax.lax.fori_loop(0, f, remove, jnp.ones(gram.shape[0], gram.dtype))


@cache
def _dropped(n: int, f: int) -> np.ndarray:
    """[C(n, f), f]: every choice of f of n."""
    return np.array(list(itertools.combinations(range(n), f)), np.int16).reshape(-1, f)


def _within(masks: Float[Array, "s n"], u: Float[Array, "s n"]) -> Float[Array, "s n"]:
    """Each row on its subset, less its mean there: the projection that makes a Gram matrix the subset's own."""
    u = masks * u
    return u - masks * (jnp.sum(u, axis=1, keepdims=True) / jnp.sum(masks, axis=1, keepdims=True))


def _scatter_times(gram: Float[Array, "n n"], masks: Float[Array, "s n"], u: Float[Array, "s n"]) -> Array:
    """H_S u for every subset, H_S its centred Gram matrix; u as made by `_within`."""
    return _within(masks, jnp.matmul(u, gram, precision=jax.lax.Precision.HIGHEST))


def _lengths(u: Float[Array, "s n"]) -> Float[Array, " s"]:
    return jnp.sqrt(jnp.sum(u * u, axis=1))


def _ratio(above: Array, below: Array) -> Array:
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 0.0)


def _bounds(gram: Array, masks: Array, u: Float[Array, " n"]) -> tuple[Array, Array]:
    """‖H_S u‖/‖u‖ [s] and H_S u [s, n]."""
    within = _within(masks, u[None])
    product = _scatter_times(gram, masks, within)
    return _ratio(_lengths(product), _lengths(within)), product


def _sharpened(gram: Array, masks: Array, u: Array, low: Array, high: Array) -> Float[Array, " s"]:
    """Lower bounds after Chebyshev iterations, which leave the eigenvalues within [low, high] as they are and enlarge
    what lies above: a subset that is worse than `high` shows it."""
    middle, half = 0.5 * (high + low), jnp.maximum(0.5 * (high - low), 1e-3 * high)
    u = u / jnp.maximum(_lengths(u), jnp.finfo(u.dtype).tiny)[:, None]

    def times(v: Array) -> Array:
        return (_scatter_times(gram, masks, v) - middle * v) / jnp.where(half > 0, half, 1.0)

    def step(i: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        before, now = pair
        after = _within(masks, 2.0 * times(now) - before)  # or rounding would grow outside the subset
        size = jnp.maximum(_lengths(after), 1.0)[:, None]
        return now / size, after / size

    last = jax.lax.fori_loop(0, STEPS, step, (u, times(u)))[1]
    return _ratio(_lengths(_scatter_times(gram, masks, last)), _lengths(last))


def _best_of_all(gram: Float[Array, "n n"], ok: Array, f: int) -> Float[Array, " n"]:
    """The exact minimum over all C(n, f) subsets, best bound first."""
    n = gram.shape[0]
    start = filtered_subset(gram, ok, f)
    usable = ok.astype(gram.dtype)
    masks = jnp.all(jnp.asarray(_dropped(n, f))[:, :, None] != jnp.arange(n, dtype=jnp.int16)[None, None], axis=1)
    masks = masks.astype(gram.dtype)
    count = masks.shape[0]
    barred = masks @ (1.0 - usable) > 0

    def spectrum(mask: Array) -> tuple[Array, Array]:
        about = weighted_gram(gram, mask / jnp.maximum(jnp.sum(mask), 1.0))
        return jnp.linalg.eigh(mask[:, None] * about * mask[None, :])

    values, vectors = spectrum(usable)
    least, direction = spectrum(start * usable)
    # Every subset's eigenvalues lie above the second least of all points (the least is the mean's, zero).
    low = jnp.where(jnp.all(ok), jnp.maximum(values[min(1, n - 1)], 0.0), 0.0)
    top, kept_top = vectors[:, -1], direction[:, -1]  # most spread among all points, and among those first kept
    bounds = jnp.where(barred, jnp.inf, _bounds(gram, masks, top)[0])
    slack = 1.0 - 64.0 * jnp.finfo(gram.dtype).eps * math.sqrt(n)  # rounding of the bounds
    chunk = min(CHUNK, count)

    def unsettled(carry: tuple[Array, Array, Array]) -> Array:
        bounds, _, least = carry
        return jnp.min(bounds) * slack < least

    def look(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bounds, best, least = carry
        some = jax.lax.top_k(-bounds, chunk)[1]  # many times faster than to sort them all
        (one, once), (other, twice) = (_bounds(gram, masks[some], u) for u in (top, kept_top))
        sharp = _sharpened(gram, masks[some], jnp.where((other > one)[:, None], twice, once), low, least)
        sharp = jnp.where(bounds[some] * slack < least, jnp.maximum(sharp, jnp.maximum(one, other)), jnp.inf)

        def promising(inner: tuple[Array, Array, Array]) -> Array:
            return jnp.min(inner[0]) * slack < inner[2]

        def diagonalise(inner: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            sharp, best, least = inner
            at = jnp.argmin(sharp)
            mask = masks[some[at]]
            value = scatter_values(gram, mask[None])[0]
            better = value < least
            return sharp.at[at].set(jnp.inf), jnp.where(better, mask, best), jnp.where(better, value, least)

        _, best, least = jax.lax.while_loop(promising, diagonalise, (sharp, best, least))
        return bounds.at[some].set(jnp.inf), best, least

    guess = jnp.where(jnp.sum(start * (1.0 - usable)) > 0, jnp.inf, least[-1])
    high = jnp.where(jnp.isfinite(guess), guess, jnp.finfo(gram.dtype).max)
    return jax.lax.while_loop(unsettled, look, (bounds, start, high))[1]


def _by_exchanges(gram: Float[Array, "n n"], ok: Array, f: int) -> Float[Array, " n"]:
    """A local minimum: from the filtered subset, exchange one point for another while that lowers the eigenvalue.

    Of the f·(n − f) exchanges, those with the least scatter along the present direction are tried.
    """
    n = gram.shape[0]
    start = filtered_subset(gram, ok, f)
    pairs = f * (n - f)
    tried = min(TRIED, pairs)

    def improve(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        i, mask, value, _ = carry
        order = jnp.argsort(mask)
        outside, inside = order[:f], order[f:]
        about = mask[:, None] * weighted_gram(gram, mask / jnp.sum(mask)) * mask[None, :]
        direction = jnp.linalg.eigh(about)[1][:, -2:] * mask[:, None]
        direction = direction - mask[:, None] * (jnp.sum(direction, axis=0) / jnp.sum(mask))[None]
        into = jax.nn.one_hot(outside, n, dtype=gram.dtype)[:, None, :]
        out = jax.nn.one_hot(inside, n, dtype=gram.dtype)[None, :, :]
        masks = (mask[None, None] + into - out).reshape(pairs, n)
        bounds = scatter_bounds(gram, masks, direction)
        bounds = jnp.where(jnp.repeat(ok[outside], n - f), bounds, jnp.inf)
        some = jax.lax.top_k(-bounds, tried)[1]
        values = jnp.where(jnp.isfinite(bounds[some]), scatter_values(gram, masks[some]), jnp.inf)
        at = jnp.argmin(values)
        better = values[at] < value * (1.0 - 1e-6)
        return i + 1, jnp.where(better, masks[some[at]], mask), jnp.where(better, values[at], value), better

    def going(carry: tuple[Array, Array, Array, Array]) -> Array:
        return (carry[0] < 2 * f) & carry[3]

    first = (jnp.int32(0), start, scatter_values(gram, start[None])[0], jnp.asarray(True))
    return jax.lax.while_loop(going, improve, first)[1]


def smea(byzantine: int = 0, *, subsets: int = SUBSETS) -> Rule:
    """Smallest maximum eigenvalue averaging: the mean of argmin_{|S| = n−f} λ_max((1/|S|) Σ_{i∈S}(x_i−μ_S)(x_i−μ_S)ᵀ).

    Allouah et al. 2023. Breakdown point 1/2. Exact while C(n, f) ≤ `subsets` (n = 13: every f; n = 50: f ≤ 3), at
    n²·D + C(n, f)·n and some tens of n³. Beyond that the minimum is out of reach (10^11 subsets at n = 50, f = 12),
    and a spectral filter followed by exchanges to a local minimum takes its place: n²·D + O(f·n³); its error is bounded
    in the same way with a larger constant (see `filtered_subset`). `subsets` moves the border.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        if 2 * byzantine >= n:
            raise UsageError(f"smea: byzantine={byzantine} of {n} messages: at most {(n - 1) // 2}")
        gram, ok = gram_matrix(jax.lax.stop_gradient(messages))
        gram = scaled(gram)
        if byzantine == 0:
            kept = jnp.ones(n, gram.dtype)
        elif math.comb(n, byzantine) <= subsets:
            kept = _best_of_all(gram, ok, byzantine)
        else:
            kept = _by_exchanges(gram, ok, byzantine)
        return normalised(kept, ok)

    return weighted(weights)
