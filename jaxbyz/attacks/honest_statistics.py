"""Mean, spread and distances of the honest messages, on which most attacks are built."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def honest_mean(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Return the mean μ of the rows that are not Byzantine."""
    honest = (~mask).astype(messages.dtype)
    total = jnp.sum(jnp.where(mask[:, None], 0.0, messages), axis=0)
    return total / jnp.maximum(jnp.sum(honest), 1.0)


def honest_deviations(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, "K D"]:
    """Return x_i − μ for rows that are not Byzantine, zero for the others."""
    return jnp.where(mask[:, None], 0.0, messages - honest_mean(messages, mask)[None])


def honest_std(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Return the coordinate-wise standard deviation s of the rows that are not Byzantine."""
    deviations = honest_deviations(messages, mask)
    return jnp.sqrt(jnp.sum(deviations * deviations, axis=0) / jnp.maximum(jnp.sum(~mask), 1))


def honest_squared_distances(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, "K K"]:
    """Return ‖x_i − x_j‖² for pairs of rows that are not Byzantine, zero for other pairs."""
    deviations = honest_deviations(messages, mask)
    gram = jnp.matmul(deviations, deviations.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.diagonal(gram)
    both_honest = ~mask[:, None] & ~mask[None]
    return jnp.where(both_honest, jnp.maximum(squares[:, None] + squares[None] - 2.0 * gram, 0.0), 0.0)


def overflow_safe_norm(vector: Float[Array, " D"]) -> Float[Array, ""]:
    """Return ‖v‖ without overflow; infinite if an entry is not finite. Its gradient is finite everywhere."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vector)))
    usable = jnp.isfinite(largest) & (largest > 0)
    scaled = jnp.where(usable, vector / jnp.where(usable, largest, 1.0), 0.0)
    norm = jnp.where(usable, largest, 1.0) * jnp.sqrt(jnp.where(usable, jnp.sum(scaled * scaled), 1.0))
    return jnp.where(usable, norm, jnp.where(largest == 0, 0.0, jnp.inf))


def unit(vector: Float[Array, " D"]) -> Float[Array, " D"]:
    """Return v/‖v‖, or zero for the zero vector."""
    return vector / jnp.maximum(overflow_safe_norm(vector), jnp.finfo(vector.dtype).tiny)
