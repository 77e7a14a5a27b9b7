"""Directions of largest spread, computed in the n×n Gram matrix of the messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.kernels import inner_product, matrix_vector, repeat
from jaxbyz.rules.base import root

# Each is three squarings. In the power 2^15 of a matrix, eigenvalues within a factor 1 − 1e-4 of the largest count as
# equal.
EIGHTH_POWERS = 5


def top_projector(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return u uᵀ for the largest eigenvalue of a positive semi-definite matrix, by repeated squaring.

    It does not depend on the order of rows. If several directions share the largest eigenvalue, it is the mean of their
    projectors; for a zero matrix it is zero. Not differentiated.
    """

    def eighth_power(power: Array) -> Array:
        for _ in range(3):
            power = jnp.matmul(power, power, precision=jax.lax.Precision.HIGHEST)
        return _with_trace_one(power)  # the largest eigenvalue was at least 1/n before, so its 8th power is not lost

    return repeat(EIGHTH_POWERS, eighth_power, _with_trace_one(jax.lax.stop_gradient(matrix)))


def _with_trace_one(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Divide a positive semi-definite matrix by its trace; a zero matrix stays zero."""
    return matrix / jnp.maximum(jnp.trace(matrix), jnp.finfo(matrix.dtype).tiny)


def scaled(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Divide a Gram matrix by its largest entry, so that squares of its entries neither overflow nor vanish."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.diagonal(gram)))
    return gram / jnp.where(largest > 0, largest, 1.0)


def gram_around_mean(gram: Float[Array, "n n"], share: Float[Array, " n"]) -> Float[Array, "n n"]:
    """Return `⟨x_i − μ, x_j − μ⟩` around `μ = Σ_i share_i x_i`, from the Gram matrix around any other point."""
    pull = matrix_vector(gram, share)
    return gram - pull[:, None] - pull[None, :] + inner_product(share, pull)


def projections(gram: Float[Array, "n n"], share: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    """Project messages on the direction v of largest spread.

    Args:
        gram: `[n, n]`, the Gram matrix of the messages around any point.
        share: `[n]`, weights that sum to one.

    Returns:
        The largest eigenvalue λ of `Σ_i share_i (x_i − μ)(x_i − μ)ᵀ`, and `τ_i = ⟨v, x_i − μ⟩²`, `[n]`.
    """
    about = gram_around_mean(gram, share)
    roots = root(share)
    spread = roots[:, None] * about * roots[None, :]
    projector = top_projector(spread)
    value = jnp.sum(projector * spread)
    positive = value > 0
    # Divide before squaring: squares of squared lengths would overflow.
    half = about * roots[None, :] * jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, value, 1.0)), 0.0)
    squares = jnp.sum(jnp.matmul(half, projector, precision=jax.lax.Precision.HIGHEST) * half, axis=1)
    return value, jnp.maximum(squares, 0.0)
