"""Inner products of all pairs of messages around a common centre."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.platform import on_cpu

TILE_COORDINATES = 1024  # a block of 50 messages and this many coordinates stays in the second-level cache


@jax.custom_jvp
def pairwise_products(messages: Float[Array, "n D"], centre: Float[Array, " D"]) -> Float[Array, "n n"]:
    """Return `⟨x_i − c, x_j − c⟩` for all pairs, exactly symmetric.

    On a CPU the sum over coordinates is taken in tiles that stay in the cache, and x − c is never stored. A message
    with a non-finite entry spoils its own row and column only. Under differentiation c is held fixed, and messages
    whose products are not finite have no derivative.

    Args:
        messages: `[n, D]`.
        centre: `[D]`, the point c.
    """
    n, D = messages.shape
    tiles = D // TILE_COORDINATES
    if tiles < 2 or not on_cpu():
        return pairwise_products_plain(messages, centre)

    def add_tile(start: int | Array, total: Array, size: int = TILE_COORDINATES) -> Array:
        x = jax.lax.dynamic_slice_in_dim(messages, start, size, axis=1)
        c = jax.lax.dynamic_slice_in_dim(centre, start, size)
        return total + _products(x - c[None])

    total = jnp.zeros((n, n), messages.dtype)
    total = jax.lax.fori_loop(0, tiles, lambda i, total: add_tile(i * TILE_COORDINATES, total), total)
    if rest := D - tiles * TILE_COORDINATES:
        total = add_tile(tiles * TILE_COORDINATES, total, rest)
    return 0.5 * (total + total.T)


def pairwise_products_plain(messages: Float[Array, "n D"], centre: Float[Array, " D"]) -> Float[Array, "n n"]:
    """Plain version of `pairwise_products`."""
    products = _products(messages - centre[None])
    return 0.5 * (products + products.T)


def _products(y: Float[Array, "n d"]) -> Float[Array, "n n"]:
    return jnp.matmul(y, y.T, precision=jax.lax.Precision.HIGHEST)


@pairwise_products.defjvp
def _pairwise_products_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (messages, centre), (d_messages, _) = primals, tangents
    products = pairwise_products(messages, centre)
    finite = jnp.isfinite(jnp.diagonal(products))
    y = jnp.where(finite[:, None], messages - centre[None], 0.0)  # 0·∞ must not enter a gradient
    half = jnp.matmul(d_messages, y.T, precision=jax.lax.Precision.HIGHEST)
    return products, half + half.T
