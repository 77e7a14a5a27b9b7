"""Pairwise squared distances that are fast, exact for close points, and survive non-finite messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.accelerate.branches import shortcut
from jaxbyz.accelerate.platform import on_cpu
from jaxbyz.accelerate.sorting_networks import (
    add_rows,
    computed_once,
    from_bits,
    median_rows,
    ranked_rows,
    to_bits,
    written_out,
)
from jaxbyz.rules.base import largest_square

TILE = 1024  # coordinates of a [n, TILE] block in the second-level cache
LANES = 16  # matrix products take rows by so many at a time; those left over cost as much as a whole group
MANY = 64  # products of more rows are spread over the cores, and best left alone


def gram_matrix(messages: Float[Array, "n D"]) -> tuple[Float[Array, "n n"], Array]:
    """⟨x_i − c, x_j − c⟩ as [n, n] around a point c such that distances keep their digits, and the usable rows, [n].

    Rows and columns of unusable messages are zero. c is the origin where that will do, and else the coordinate-wise
    median, as in `centred_gram`. For results that do not depend on c.
    """
    return _usable_products(_around_some_point(messages))


def centred_gram(messages: Float[Array, "n D"]) -> tuple[Float[Array, "n n"], Array]:
    """⟨x_i − c, x_j − c⟩ as [n, n] around the coordinate-wise median c, and which rows are usable, [n].

    Rows and columns of unusable messages are zero. A non-finite entry spoils only its own row and column of the
    product, so one product serves to find and to exclude such rows. c is near the honest rows whatever the others sent.
    """
    return _usable_products(_products(messages, median_rows(messages)))


def _usable_products(products: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Array]:
    ok = jnp.diagonal(products) <= largest_square(products.dtype)  # a comparison with NaN is False
    return jnp.where(ok[:, None] & ok[None, :], products, 0.0), ok


@jax.custom_jvp
def _around_some_point(messages: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """Products around the origin, and again around the median if distances would have lost digits to the first."""
    raw = _products(messages, None)
    return shortcut(_resolved(raw), lambda raw, _: raw, lambda _, x: _products(x, median_rows(x)), raw, messages)


@_around_some_point.defjvp
def _around_some_point_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (messages,) = primals
    centre = median_rows(messages)
    return jax.jvp(lambda x: _products(x, centre), primals, tangents)


def _resolved(products: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether every row is usable and ‖x_i − x_j‖² ≥ (‖x_i‖² + ‖x_j‖²)/16 for more than half of the others j.

    One of those j is honest, so ‖x_i‖² is at most 16 times the square of the honest diameter for honest i, and rounding
    in an honest distance small beside that diameter. Colluders who send the same need not be told apart.
    """
    n = products.shape[0]
    lengths = jnp.diagonal(products)
    apart = products <= (15.0 / 32.0) * (lengths[:, None] + lengths[None, :])
    apart = apart & ~jnp.eye(n, dtype=bool)
    return jnp.all((lengths <= largest_square(products.dtype)) & (2 * jnp.sum(apart, axis=1) > n - 1))


@jax.custom_jvp
def _products(messages: Float[Array, "n D"], centre: Float[Array, " D"] | None) -> Float[Array, "n n"]:
    """⟨x_i − c, x_j − c⟩, exactly symmetric; in tiles of D that stay in the cache, unless rows are MANY and c = 0:
    x − c is never written out."""
    n, D = messages.shape
    tiles = D // TILE if D >= 2 * TILE and (n <= MANY or centre is not None) else 0

    def tile(start: int | Array, size: int) -> Array:
        x = jax.lax.dynamic_slice_in_dim(messages, start, size, axis=1)
        return x if centre is None else x - jax.lax.dynamic_slice_in_dim(centre, start, size)[None]

    def add(i: Array, total: Array) -> Array:
        return total + _tile_products(tile(i * TILE, TILE))

    total = jnp.zeros((n, n), messages.dtype)
    if tiles:
        total = jax.lax.fori_loop(0, tiles, add, total)
    if tiles * TILE < D:
        total = total + _tile_products(tile(tiles * TILE, D - tiles * TILE))
    return 0.5 * (total + total.T)


def _tile_products(y: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """y yᵀ: everyone with the rows that make whole groups of LANES, then the few that are left with each other, where
    these few would matter."""
    exact = jax.lax.Precision.HIGHEST
    whole = len(y) - len(y) % LANES
    if whole in (0, len(y)) or len(y) > MANY:
        return jnp.matmul(y, y.T, precision=exact)
    most = jnp.matmul(y, y[:whole].T, precision=exact)  # [n, whole]
    corner = jnp.matmul(y[whole:], y[whole:].T, precision=exact)
    rest = jnp.concatenate([most[whole:].T, corner])  # [n, n − whole], by symmetry
    return jnp.concatenate([most, rest], axis=1)


@_products.defjvp
def _products_jvp(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    """As the product's own derivative, with c fixed and unusable rows as zero: 0·∞ must not enter a gradient."""
    (messages, centre), (d_messages, _) = primals, tangents
    products = _products(messages, centre)
    ok = jnp.diagonal(products) <= largest_square(messages.dtype)
    y = jnp.where(ok[:, None], messages if centre is None else messages - centre[None], 0.0)
    half = jnp.matmul(d_messages, y.T, precision=jax.lax.Precision.HIGHEST)
    return products, half + half.T


def squared_distances(messages: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """‖x_i − x_j‖² as [n, n]; infinite where either row is unusable, zero on the diagonal of usable rows.

    One matrix product: ‖x_i − x_j‖² = ‖y_i‖² + ‖y_j‖² − 2⟨y_i, y_j⟩ with y = x − c. The identity cancels for points
    close to each other and far from c, so unless c = 0 will do it is the coordinate-wise median: near the honest rows
    whatever the others sent. What rounding is left falls on pairs of far rows, which an adversary could move anyway.
    """
    products, ok = gram_matrix(messages)
    norms = jnp.diagonal(products)
    squares = jnp.maximum(norms[:, None] + norms[None, :] - 2.0 * products, 0.0)
    squares = jnp.where(jnp.eye(len(ok), dtype=bool), 0.0, squares)
    return jnp.where(ok[:, None] & ok[None, :], squares, jnp.inf)


def settled(scores: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Scores to be compared with each other, each computed once, not differentiated.

    On a GPU XLA may compute them again for each use and round differently: a score would not equal itself.
    """
    return jax.lax.optimization_barrier(jax.lax.stop_gradient(scores))


def lowest(scores: Float[Array, "*batch n"], count: int | Array) -> Float[Array, "*batch n"]:
    """Weights, 1 for the `count` lowest scores and 0 for the rest; those tied for the last places share them equally.

    By counting, without a sort: w_i = clip((count − #{j: s_j < s_i}) / #{j: s_j = s_i}, 0, 1), so that the result does
    not depend on the order of the senders. Not differentiated. Cost n²; by selection where n is large.
    """
    scores = settled(scores)
    dtype = scores.dtype
    if isinstance(count, int) and count > 0 and not written_out(scores.shape[-1]):
        return _up_to(scores, _selected(scores, count), count)
    less = jnp.sum(scores[..., None, :] < scores[..., :, None], axis=-1, dtype=dtype)
    equal = jnp.sum(scores[..., None, :] == scores[..., :, None], axis=-1, dtype=dtype)
    return jnp.clip((count - less) / equal, 0.0, 1.0)


def ranks(scores: Float[Array, " n"]) -> Array:
    """[n] place of each score in ascending order, by counting; ties to the lower index."""
    scores = settled(scores)
    i = jnp.arange(scores.shape[0])
    before = (scores[None, :] < scores[:, None]) | ((scores[None, :] == scores[:, None]) & (i[None, :] < i[:, None]))
    return jnp.sum(before, axis=1)


def nearest(squares: Float[Array, "n n"], count: int) -> Float[Array, "n n"]:
    """[n, n] weights: row i gives 1 to the `count` points nearest to i, itself included; ties for the last share."""
    squares = settled(squares)
    return _up_to(squares, last_kept(squares, count), count)


def _up_to(scores: Float[Array, "*batch n"], last: Float[Array, "*batch"], count: int) -> Float[Array, "*batch n"]:
    """1 below the count-th least score, and what is left of `count` shared among those equal to it."""
    inside, at = scores < last[..., None], scores == last[..., None]
    places = count - jnp.sum(inside, axis=-1, keepdims=True, dtype=scores.dtype)
    return inside + at * (places / jnp.sum(at, axis=-1, keepdims=True, dtype=scores.dtype))


def neighbour_sums(squares: Float[Array, "n n"], count: int) -> Float[Array, " n"]:
    """Sum of the `count` least entries of each row of a symmetric matrix (the zero distance to itself is one)."""
    squares = settled(squares)
    if written_out(squares.shape[0]):
        return computed_once(lambda part: add_rows(ranked_rows(part, range(count))), squares)
    last = last_kept(squares, count)
    inside = squares < last[:, None]
    places = count - jnp.sum(inside, axis=1, dtype=squares.dtype)  # at least one
    return jnp.sum(jnp.where(inside, squares, 0.0), axis=1) + places * last


def last_kept(squares: Float[Array, "n n"], count: int) -> Float[Array, " n"]:
    """The `count`-th least entry of each row: by a sorting network, or by selection where that would be too large."""
    n = squares.shape[0]
    if written_out(n):
        return computed_once(lambda part: ranked_rows(part, range(count - 1, count))[0], squares.T)
    return _selected(squares, count)


def _selected(scores: Float[Array, "*batch n"], count: int) -> Float[Array, "*batch"]:
    """The `count`-th least score."""
    if on_cpu():
        return _bisected(scores, count)
    n = scores.shape[-1]
    # The extreme of what is selected, not its last column: for a slice XLA would sort whole rows.
    if count > n // 2:
        return jnp.min(jax.lax.top_k(scores, n - count + 1)[0], axis=-1)
    return -jnp.min(jax.lax.top_k(-scores, count)[0], axis=-1)


def _bisected(scores: Float[Array, "*batch n"], count: int) -> Float[Array, "*batch"]:
    """The `count`-th least score, found bit by bit with a pass of comparisons each.

    `top_k` of 200 rows of 200 takes five times as long on a CPU.
    """
    order = to_bits(jnp.moveaxis(scores, -1, 0))  # sums over rows are vector instructions

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low & high) + ((low ^ high) >> 1)  # rounded down, without overflow
        enough = jnp.sum(order <= middle[None], axis=0, dtype=jnp.int32) >= count
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    ends = jnp.min(order, axis=0), jnp.max(order, axis=0)
    return from_bits(jax.lax.fori_loop(0, jnp.iinfo(order).bits, halve, ends)[1], scores.dtype)
