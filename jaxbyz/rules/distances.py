"""Squared distances between messages that are exact for close points and tolerate non-finite messages."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.accelerate.gram import pairwise_products
from jaxbyz.rules.base import usable_squares
from jaxbyz.rules.coordinatewise import finite_median


def gram_matrix(messages: Float[Array, "n D"]) -> tuple[Float[Array, "n n"], Bool[Array, " n"]]:
    """Return `⟨x_i − c, x_j − c⟩` around the coordinate-wise median c, and which messages are usable, measured from c.

    c is near the honest messages whatever the others sent, so that distances between honest messages keep their digits.

    Returns:
        The products, `[n, n]`, with zero rows and columns for unusable messages, and the usable messages, `[n]`.
    """
    products = pairwise_products(messages, finite_median(messages))
    ok = usable_squares(jnp.diagonal(products))
    return jnp.where(ok[:, None] & ok[None, :], products, 0.0), ok


def squared_distances(messages: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """Return `‖x_i − x_j‖²`, infinite if either message is unusable, zero on the diagonal of usable messages.

    One matrix product suffices: `‖x_i − x_j‖² = ‖y_i‖² + ‖y_j‖² − 2⟨y_i, y_j⟩` with y = x − c. This cancels for points
    close to each other and far from c, so c is the coordinate-wise median (see `gram_matrix`). The rounding that
    remains concerns pairs of far messages, which an adversary could move anyway.
    """
    products, ok = gram_matrix(messages)
    norms = jnp.diagonal(products)
    squares = jnp.maximum(norms[:, None] + norms[None, :] - 2.0 * products, 0.0)
    squares = jnp.where(jnp.eye(len(ok), dtype=bool), 0.0, squares)
    return jnp.where(ok[:, None] & ok[None, :], squares, jnp.inf)
