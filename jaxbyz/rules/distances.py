"""Pairwise squared distances that are fast, exact for close points, and survive non-finite messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.rules.base import largest_square
from jaxbyz.rules.sorting import NETWORK_LIMIT, add_rows, computed_once, median_rows, ranked_rows

TILE = 512  # coordinates of a [n, TILE] block in the second-level cache


def centred_gram(messages: Float[Array, "n D"]) -> tuple[Float[Array, "n n"], Array]:
    """⟨x_i − c, x_j − c⟩ as [n, n] around the coordinate-wise median c, and which rows are usable, [n].

    Rows and columns of unusable messages are zero. A non-finite entry spoils only its own row and column of the
    product, so one product serves to find and to exclude such rows. c is near the honest rows whatever the others sent.
    """
    gram = _products(messages, median_rows(messages))
    ok = jnp.diagonal(gram) <= largest_square(messages.dtype)  # a comparison with NaN is False
    return jnp.where(ok[:, None] & ok[None, :], gram, 0.0), ok


@jax.custom_jvp
def _products(messages: Float[Array, "n D"], centre: Float[Array, " D"]) -> Float[Array, "n n"]:
    """⟨x_i − c, x_j − c⟩, exactly symmetric; in tiles of D that stay in the cache: x − c is never written out."""
    n, D = messages.shape

    def part(x: Array, c: Array) -> Array:
        y = x - c[None]
        return jnp.matmul(y, y.T, precision=jax.lax.Precision.HIGHEST)

    tiles = D // TILE if D >= 4 * TILE else 0

    def add(i: Array, total: Array) -> Array:
        x = jax.lax.dynamic_slice_in_dim(messages, i * TILE, TILE, axis=1)
        return total + part(x, jax.lax.dynamic_slice_in_dim(centre, i * TILE, TILE))

    gram = jnp.zeros((n, n), messages.dtype)
    if tiles:
        gram = jax.lax.fori_loop(0, tiles, add, gram)
    if tiles * TILE < D:
        gram = gram + part(messages[:, tiles * TILE :], centre[tiles * TILE :])
    return 0.5 * (gram + gram.T)


@_products.defjvp
def _products_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """As the product's own derivative, with c fixed and unusable rows as zero: 0·∞ must not enter a gradient."""
    (messages, centre), (d_messages, _) = primals, tangents
    gram = _products(messages, centre)
    ok = jnp.diagonal(gram) <= largest_square(messages.dtype)
    y = jnp.where(ok[:, None], messages - centre[None], 0.0)
    half = jnp.matmul(d_messages, y.T, precision=jax.lax.Precision.HIGHEST)
    return gram, half + half.T


def squared_distances(messages: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """‖x_i − x_j‖² as [n, n]; infinite where either row is unusable, zero on the diagonal of usable rows.

    One matrix product: ‖x_i − x_j‖² = ‖y_i‖² + ‖y_j‖² − 2⟨y_i, y_j⟩ with y = x − c. The identity cancels for points
    close to each other and far from c, so c is the coordinate-wise median: near the honest rows whatever the others
    sent. What rounding is left falls on pairs of far rows, which an adversary could move at will anyway.
    """
    gram, ok = centred_gram(messages)
    norms = jnp.diagonal(gram)
    squares = jnp.maximum(norms[:, None] + norms[None, :] - 2.0 * gram, 0.0)
    squares = jnp.where(jnp.eye(len(ok), dtype=bool), 0.0, squares)
    return jnp.where(ok[:, None] & ok[None, :], squares, jnp.inf)


def lowest(scores: Float[Array, "*batch n"], count: int | Array) -> Float[Array, "*batch n"]:
    """Weights, 1 for the `count` lowest scores and 0 for the rest; those tied for the last places share them equally.

    By counting, without a sort: w_i = clip((count − #{j: s_j < s_i}) / #{j: s_j = s_i}, 0, 1), so that the result does
    not depend on the order of the senders. Not differentiated. Cost n².
    """
    scores = jax.lax.stop_gradient(scores)
    dtype = scores.dtype
    less = jnp.sum(scores[..., None, :] < scores[..., :, None], axis=-1, dtype=dtype)
    equal = jnp.sum(scores[..., None, :] == scores[..., :, None], axis=-1, dtype=dtype)
    return jnp.clip((count - less) / equal, 0.0, 1.0)


def ranks(scores: Float[Array, " n"]) -> Array:
    """[n] place of each score in ascending order, by counting; ties to the lower index."""
    i = jnp.arange(scores.shape[0])
    before = (scores[None, :] < scores[:, None]) | ((scores[None, :] == scores[:, None]) & (i[None, :] < i[:, None]))
    return jnp.sum(before, axis=1)


def nearest(squares: Float[Array, "n n"], count: int) -> Float[Array, "n n"]:
    """[n, n] weights: row i gives 1 to the `count` points nearest to i, itself included; ties for the last share.

    Cost n²·log²n: a sorting network finds each row's `count`-th distance.
    """
    squares = jax.lax.stop_gradient(squares)
    if squares.shape[0] <= NETWORK_LIMIT:
        last = computed_once(lambda part: ranked_rows(part, range(count - 1, count))[0], squares.T)[:, None]
    else:
        last = jnp.sort(squares, axis=1)[:, count - 1 : count]
    inside, at = squares < last, squares == last
    places = count - jnp.sum(inside, axis=1, keepdims=True, dtype=squares.dtype)
    return inside + at * (places / jnp.sum(at, axis=1, keepdims=True, dtype=squares.dtype))


def neighbour_sums(squares: Float[Array, "n n"], count: int) -> Float[Array, " n"]:
    """Sum of the `count` least entries of each row of a symmetric matrix (the zero distance to itself is one)."""
    squares = jax.lax.stop_gradient(squares)
    if squares.shape[0] <= NETWORK_LIMIT:
        return computed_once(lambda part: add_rows(ranked_rows(part, range(count))), squares)
    return jnp.sum(jnp.sort(squares, axis=1)[:, :count], axis=1)
