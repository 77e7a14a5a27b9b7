"""Directions of largest spread, computed in the n×n Gram matrix of the messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

SQUARINGS = 15  # the matrix to the power 2^15: eigenvalues within a factor 1 − 1e-4 of the largest count as equal


def top_projector(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """u uᵀ of the largest eigenvalue of a positive semi-definite matrix, by repeated squaring; zero for a zero matrix.

    Deterministic, whatever the order of rows, and without LAPACK. Where the largest eigenvalue is shared, the mean of
    the projectors on its directions. Not differentiated: the direction is held fixed.
    """
    tiny = jnp.finfo(matrix.dtype).tiny
    pure = 1.0 - 32.0 * jnp.finfo(matrix.dtype).eps  # tr(m²) = 1 for a projector of trace one on a single direction

    def normalised(m: Array) -> Array:
        return m / jnp.maximum(jnp.trace(m), tiny)

    def mixed(carry: tuple[Array, Array, Array]) -> Array:
        i, _, purity = carry
        return (i < SQUARINGS) & (purity < pure)

    def square(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, m, _ = carry
        m = jnp.matmul(m, m, precision=jax.lax.Precision.HIGHEST)
        return i + 1, normalised(m), jnp.trace(m)

    start = normalised(jax.lax.stop_gradient(matrix))
    return jax.lax.while_loop(mixed, square, (jnp.int32(0), start, jnp.zeros((), matrix.dtype)))[1]


def scaled(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A Gram matrix divided by its largest entry, for results that do not depend on the scale: squares of squared
    lengths neither overflow nor vanish."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.diagonal(gram)))
    return gram / jnp.where(largest > 0, largest, 1.0)


def weighted_gram(gram: Float[Array, "n n"], share: Float[Array, " n"]) -> Float[Array, "n n"]:
    """⟨x_i − μ, x_j − μ⟩ around μ = Σ_i share_i x_i, from the Gram matrix around any other point."""
    pull = jnp.matmul(gram, share, precision=jax.lax.Precision.HIGHEST)
    return gram - pull[:, None] - pull[None, :] + jnp.dot(share, pull)


def projections(gram: Float[Array, "n n"], share: Float[Array, " n"]) -> tuple[Array, Array]:
    """(λ, τ): the largest eigenvalue of the covariance Σ_i share_i (x_i − μ)(x_i − μ)ᵀ, and τ_i = ⟨v, x_i − μ⟩² [n]
    along its direction v."""
    about = weighted_gram(gram, share)
    counted = share > 0
    root = jnp.where(counted, jnp.sqrt(jnp.where(counted, share, 1.0)), 0.0)
    spread = root[:, None] * about * root[None, :]
    projector = top_projector(spread)
    value = jnp.sum(projector * spread)
    positive = value > 0
    # Divided before it is squared: squares of squared lengths would overflow.
    half = about * root[None, :] * jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, value, 1.0)), 0.0)
    squares = jnp.sum(jnp.matmul(half, projector, precision=jax.lax.Precision.HIGHEST) * half, axis=1)
    return value, jnp.maximum(squares, 0.0)
