"""Weighted sums of messages that skip the rows that nobody uses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.platform import plain

FUSED_SUM_ROWS = 128  # LLVM does not vectorise a loop that reads more rows


@jax.custom_jvp
def mix(shares: Float[Array, "m n"], messages: Float[Array, "n D"]) -> Float[Array, "m D"]:
    """Return `shares @ messages` with 0·∞ = 0: a message that no row uses may hold anything.

    Args:
        shares: `[m, n]`, the weights of each result.
        messages: `[n, D]`, one row per sender.
    """
    if len(shares) == 1 and len(messages) <= FUSED_SUM_ROWS and not plain():
        terms = [
            jnp.where(w != 0, w * row, 0.0) for w, row in zip(split_rows(shares[0]), split_rows(messages), strict=True)
        ]
        return sum_rows(terms)[None]  # one loop that reads every message once; a product needs a copy without ∞
    return mix_plain(shares, messages)


def mix_plain(shares: Float[Array, "m n"], messages: Float[Array, "n D"]) -> Float[Array, "m D"]:
    """Plain version of `mix`, also used for several results."""
    return _product(shares, _without_unused(shares, messages))


@mix.defjvp
def _mix_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (shares, messages), (d_shares, d_messages) = primals, tangents
    tangent = _product(d_shares, _without_unused(shares, messages)) + _product(shares, d_messages)
    return mix(shares, messages), tangent


def _without_unused(shares: Array, messages: Array) -> Array:
    return jnp.where(jnp.any(shares != 0, axis=0)[:, None], messages, 0.0)


def _product(shares: Array, messages: Array) -> Array:
    return jnp.matmul(shares, messages, precision=jax.lax.Precision.HIGHEST)


def split_rows(array: Array) -> list[Array]:
    """Return the rows one by one; iterating over more than 100 rows of a traced array fails in JAX."""
    return [jax.lax.index_in_dim(array, i, keepdims=False) for i in range(len(array))]


def sum_rows(rows: list[Float[Array, " D"]]) -> Float[Array, " D"]:
    """Sum rows pairwise in one fused loop. On a CPU, XLA's sum over a leading axis is many times slower."""
    while len(rows) > 1:
        rows = [a + b for a, b in zip(rows[::2], rows[1::2], strict=False)] + rows[len(rows) & ~1 :]
    return rows[0]


def sum_weighted_coordinates(weights: Float[Array, "n D"], messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Return `Σ_i w_ik x_ik` for every coordinate k, with 0·∞ = 0."""
    terms = jnp.where(weights != 0, weights * messages, 0.0)
    if plain() or len(messages) > FUSED_SUM_ROWS:
        return jnp.sum(terms, axis=0)
    return sum_rows(split_rows(terms))
