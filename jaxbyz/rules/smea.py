"""SMEA: the mean of the subset whose covariance has the least largest eigenvalue.

For any vector u, ‖Hu‖/‖u‖ is a lower bound on the largest eigenvalue of a positive semi-definite matrix H. For all
subsets together it costs one product with the n×n Gram matrix. Subsets are visited in the order of their bounds, which
are sharpened first, until the next bound exceeds the best value found. Hence only a few subsets are diagonalised, and
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

from jaxbyz.rules.base import Rule, check_byzantine, normalised, weighted
from jaxbyz.rules.covariance import gram_around_mean, projections, scaled
from jaxbyz.rules.distances import gram_matrix

SUBSETS_AT_ONCE = 64  # subsets whose bounds are sharpened together
CHEBYSHEV_STEPS = 12  # matrix products for a sharpened bound
EXCHANGES_TRIED = 8  # exchanges that are diagonalised in one step of the local search
SUBSETS = 20_000  # up to this many subsets the minimum is exact


def smea(byzantine: int = 0, *, subsets: int = SUBSETS) -> Rule:
    """Return the mean of the (n − f)-subset S of smallest maximum eigenvalue `λ_max(Σ_{i∈S} (x_i−μ_S)(x_i−μ_S)ᵀ)`.

    Breakdown point 1/2. The minimum is exact while C(n, f) ≤ `subsets` (n = 13: every f; n = 50: f ≤ 3), at a cost of
    n²·D + C(n, f)·n and some tens of n³. Beyond that it is out of reach (10^11 subsets at n = 50, f = 12), and a
    spectral filter followed by exchanges to a local minimum takes its place. Its cost is n²·D + O(f·n³), and its error
    has the same form of bound with a larger constant (see `filtered_subset`).

    Args:
        byzantine: the number of messages f that are left out.
        subsets: the largest number of subsets for which the minimum is exact.

    References:
        Allouah et al., On the privacy-robustness-utility trilemma in distributed learning, 2023.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        check_byzantine("smea", byzantine, n, (n - 1) // 2)
        gram, ok = gram_matrix(jax.lax.stop_gradient(messages))
        gram = scaled(gram)
        if byzantine == 0:
            kept = jnp.ones(n, gram.dtype)
        elif math.comb(n, byzantine) <= subsets:
            kept = _exact_minimum(gram, ok, byzantine)
        else:
            kept = _local_minimum(gram, ok, byzantine)
        return normalised(kept, ok)

    return weighted(weights, rotates=True, translates=True)


def scatter_values(gram: Float[Array, "n n"], masks: Float[Array, "s n"]) -> Float[Array, " s"]:
    """Return the largest eigenvalue of `Σ_{i∈S} (x_i−μ_S)(x_i−μ_S)ᵀ` for each subset, a row of zeros and ones."""
    return jnp.linalg.eigvalsh(jax.vmap(_centred_gram, (None, 0))(gram, masks))[:, -1]


def _centred_gram(gram: Float[Array, "n n"], mask: Float[Array, " n"]) -> Float[Array, "n n"]:
    """Return the Gram matrix of a subset around its mean, zero outside it; its eigenvalues are those of the scatter."""
    return mask[:, None] * gram_around_mean(gram, mask / jnp.maximum(jnp.sum(mask), 1.0)) * mask[None, :]


def scatter_bounds(
    gram: Float[Array, "n n"], masks: Float[Array, "s n"], directions: Float[Array, "n k"]
) -> Float[Array, " s"]:
    """Return the largest scatter of each subset along directions `Σ_j a_j x_j`, a lower bound on its eigenvalue.

    Args:
        gram: `[n, n]`.
        masks: `[s, n]`, the subsets.
        directions: `[n, k]`, the coefficients a of one direction per column.
    """
    exact = jax.lax.Precision.HIGHEST
    along = jnp.matmul(gram, directions, precision=exact)  # [n, k]
    lengths = jnp.sum(directions * along, axis=0)
    floor = jnp.finfo(gram.dtype).tiny
    p = jnp.where((lengths > floor)[None], along / jnp.sqrt(jnp.maximum(lengths, floor))[None], 0.0)
    sums = jnp.matmul(masks, p, precision=exact)
    squares = jnp.matmul(masks, p * p, precision=exact)
    return jnp.max(squares - sums * sums / jnp.sum(masks, axis=1, keepdims=True), axis=1)


def filtered_subset(gram: Float[Array, "n n"], ok: Array, f: int) -> Float[Array, " n"]:
    """Remove f times the point farthest along the direction of largest spread; unusable points first.

    Let R be the largest distance of an honest point from the honest mean. While b Byzantine and h > b honest points are
    left, with means δ apart along that direction, some Byzantine point is at least hδ/(b+h) from the mean and no honest
    point is farther than bδ/(b+h) + R. So if an honest point is removed, δ ≤ R(b+h)/(h−b). Then every projection, and
    with it the largest eigenvalue, is bounded by R, and later removals only lower it: the error is at most R times a
    constant that depends on f/n.

    Returns:
        The points that are left, `[n]` zeros and ones.
    """

    def remove(i: Array, mask: Array) -> Array:
        tau = projections(gram, mask * ok / jnp.maximum(jnp.sum(mask * ok), 1.0))[1]
        tau = jnp.where(ok, tau, jnp.inf)
        return mask.at[jnp.argmax(jnp.where(mask > 0, tau, -1.0))].set(0.0)

    return jax.lax.fori_loop(0, f, remove, jnp.ones(gram.shape[0], gram.dtype))


@cache
def _choices(n: int, f: int) -> np.ndarray:
    """Return every choice of f out of n points, `[C(n, f), f]`."""
    return np.array(list(itertools.combinations(range(n), f)), np.int16).reshape(-1, f)


def _centred(masks: Float[Array, "s n"], u: Float[Array, "s n"]) -> Float[Array, "s n"]:
    """Restrict each row to its subset and subtract its mean there."""
    u = masks * u
    return u - masks * (jnp.sum(u, axis=1, keepdims=True) / jnp.sum(masks, axis=1, keepdims=True))


def _scatter_product(gram: Float[Array, "n n"], masks: Float[Array, "s n"], u: Float[Array, "s n"]) -> Array:
    """Return `H_S u` for every subset, where H_S is its centred Gram matrix and u comes from `_centred`."""
    return _centred(masks, jnp.matmul(u, gram, precision=jax.lax.Precision.HIGHEST))


def _norms(u: Float[Array, "s n"]) -> Float[Array, " s"]:
    return jnp.sqrt(jnp.sum(u * u, axis=1))


def _ratio(numerator: Array, denominator: Array) -> Array:
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)


def _bounds(gram: Array, masks: Array, u: Float[Array, " n"]) -> tuple[Array, Array]:
    """Return `‖H_S u‖/‖u‖`, `[s]`, and `H_S u`, `[s, n]`, with u restricted to each subset."""
    inside = _centred(masks, u[None])
    product = _scatter_product(gram, masks, inside)
    return _ratio(_norms(product), _norms(inside)), product


def _sharpened(gram: Array, masks: Array, u: Array, low: Array, high: Array) -> Float[Array, " s"]:
    """Return lower bounds after Chebyshev iterations, which amplify eigenvalues above `high` only."""
    middle, half = 0.5 * (high + low), jnp.maximum(0.5 * (high - low), 1e-3 * high)
    u = u / jnp.maximum(_norms(u), jnp.finfo(u.dtype).tiny)[:, None]

    def times(v: Array) -> Array:
        return (_scatter_product(gram, masks, v) - middle * v) / jnp.where(half > 0, half, 1.0)

    def step(i: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        before, now = pair
        after = _centred(masks, 2.0 * times(now) - before)  # rounding would grow outside the subset
        size = jnp.maximum(_norms(after), 1.0)[:, None]
        return now / size, after / size

    last = jax.lax.fori_loop(0, CHEBYSHEV_STEPS, step, (u, times(u)))[1]
    return _ratio(_norms(_scatter_product(gram, masks, last)), _norms(last))


def _exact_minimum(gram: Float[Array, "n n"], ok: Array, f: int) -> Float[Array, " n"]:
    """Return the best of all C(n, f) subsets. Those with the least bounds are visited first."""
    n = gram.shape[0]
    start = filtered_subset(gram, ok, f)
    usable_mask = ok.astype(gram.dtype)
    masks = jnp.all(jnp.asarray(_choices(n, f))[:, :, None] != jnp.arange(n, dtype=jnp.int16)[None, None], axis=1)
    masks = masks.astype(gram.dtype)
    count = masks.shape[0]
    with_unusable = masks @ (1.0 - usable_mask) > 0

    values, vectors = jnp.linalg.eigh(_centred_gram(gram, usable_mask))
    least, direction = jnp.linalg.eigh(_centred_gram(gram, start * usable_mask))
    # Every subset's eigenvalues lie above the second least of all points; the least, zero, belongs to the mean.
    low = jnp.where(jnp.all(ok), jnp.maximum(values[min(1, n - 1)], 0.0), 0.0)
    top, kept_top = vectors[:, -1], direction[:, -1]  # the directions of largest spread of all points and of `start`
    bounds = jnp.where(with_unusable, jnp.inf, _bounds(gram, masks, top)[0])
    slack = 1.0 - 64.0 * jnp.finfo(gram.dtype).eps * math.sqrt(n)  # for rounding in the bounds
    at_once = min(SUBSETS_AT_ONCE, count)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        bounds, _, least = carry
        return jnp.min(bounds) * slack < least

    def visit_next(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bounds, best, least = carry
        candidates = jax.lax.top_k(-bounds, at_once)[1]  # many times faster than sorting
        candidate_masks = masks[candidates]
        (bound_1, product_1), (bound_2, product_2) = (_bounds(gram, candidate_masks, u) for u in (top, kept_top))
        better_start = jnp.where((bound_2 > bound_1)[:, None], product_2, product_1)
        sharp = _sharpened(gram, candidate_masks, better_start, low, least)
        sharp = jnp.maximum(sharp, jnp.maximum(bound_1, bound_2))
        sharp = jnp.where(bounds[candidates] * slack < least, sharp, jnp.inf)

        def promising(inner: tuple[Array, Array, Array]) -> Array:
            return jnp.min(inner[0]) * slack < inner[2]

        def diagonalise(inner: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            sharp, best, least = inner
            at = jnp.argmin(sharp)
            mask = candidate_masks[at]
            value = scatter_values(gram, mask[None])[0]
            better = value < least
            return sharp.at[at].set(jnp.inf), jnp.where(better, mask, best), jnp.where(better, value, least)

        _, best, least = jax.lax.while_loop(promising, diagonalise, (sharp, best, least))
        return bounds.at[candidates].set(jnp.inf), best, least

    guess = jnp.where(jnp.sum(start * (1.0 - usable_mask)) > 0, jnp.inf, least[-1])
    high = jnp.where(jnp.isfinite(guess), guess, jnp.finfo(gram.dtype).max)
    return jax.lax.while_loop(unfinished, visit_next, (bounds, start, high))[1]


def _local_minimum(gram: Float[Array, "n n"], ok: Array, f: int) -> Float[Array, " n"]:
    """Return a local minimum: exchange one point for another while that lowers the eigenvalue.

    The start is the filtered subset. Of the f·(n − f) exchanges, those with the least scatter along the current
    direction are tried.
    """
    n = gram.shape[0]
    start = filtered_subset(gram, ok, f)
    pairs = f * (n - f)
    tried = min(EXCHANGES_TRIED, pairs)

    def improve(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        i, mask, value, _ = carry
        order = jnp.argsort(mask)
        outside, inside = order[:f], order[f:]
        direction = jnp.linalg.eigh(_centred_gram(gram, mask))[1][:, -2:] * mask[:, None]
        direction = direction - mask[:, None] * (jnp.sum(direction, axis=0) / jnp.sum(mask))[None]
        into = jax.nn.one_hot(outside, n, dtype=gram.dtype)[:, None, :]
        out = jax.nn.one_hot(inside, n, dtype=gram.dtype)[None, :, :]
        masks = (mask[None, None] + into - out).reshape(pairs, n)
        bounds = scatter_bounds(gram, masks, direction)
        bounds = jnp.where(jnp.repeat(ok[outside], n - f), bounds, jnp.inf)
        candidates = jax.lax.top_k(-bounds, tried)[1]
        values = jnp.where(jnp.isfinite(bounds[candidates]), scatter_values(gram, masks[candidates]), jnp.inf)
        at = jnp.argmin(values)
        better = values[at] < value * (1.0 - 1e-6)
        return i + 1, jnp.where(better, masks[candidates[at]], mask), jnp.where(better, values[at], value), better

    def improving(carry: tuple[Array, Array, Array, Array]) -> Array:
        return (carry[0] < 2 * f) & carry[3]

    first = (jnp.int32(0), start, scatter_values(gram, start[None])[0], jnp.asarray(True))
    return jax.lax.while_loop(improving, improve, first)[1]
