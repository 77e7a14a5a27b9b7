"""Pairwise squared distances that are fast, exact for close points, and survive non-finite messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.rules.base import usable
from jaxbyz.rules.sorting import median_rows


def squared_distances(messages: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """‖x_i − x_j‖² as [n, n]; infinite where either row is unusable, zero on the diagonal of usable rows.

    One matrix product: ‖x_i − x_j‖² = ‖y_i‖² + ‖y_j‖² − 2⟨y_i, y_j⟩ with y = x − c. The identity cancels for points
    close to each other and far from c, so c is the coordinate-wise median: near the honest rows whatever the others
    sent. What rounding is left falls on pairs of far rows, which an adversary could move at will anyway.
    """
    ok = usable(messages)
    centre = median_rows(jnp.where(ok[:, None], messages, jnp.inf))
    centre = jnp.where(jnp.isfinite(centre), centre, 0.0)
    y = jnp.where(ok[:, None], messages - centre, 0.0)
    gram = jnp.matmul(y, y.T, precision=jax.lax.Precision.HIGHEST)
    norms = jnp.diagonal(gram)
    squares = jnp.maximum(norms[:, None] + norms[None, :] - 2.0 * gram, 0.0)
    squares = jnp.where(jnp.eye(len(ok), dtype=bool), 0.0, squares)
    return jnp.where(ok[:, None] & ok[None, :], squares, jnp.inf)


def nearest(squares: Float[Array, "n n"], count: int) -> Array:
    """[n, n] bool: row i marks the `count` points nearest to i, itself included, ties to the lower index."""
    n = squares.shape[0]
    order = jnp.argsort(squares, axis=1, stable=True)
    rank = jnp.zeros((n, n), jnp.int32).at[jnp.arange(n)[:, None], order].set(jnp.arange(n, dtype=jnp.int32))
    return rank < count
