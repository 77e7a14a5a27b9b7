"""Mean, spread and distances of some messages, mostly the honest ones, on which most attacks are built."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def mean_over(messages: Float[Array, "K D"], members: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Return the mean of the rows in `members`; zero if there are none."""
    total = jnp.sum(jnp.where(members[:, None], messages, 0.0), axis=0)
    return total / jnp.maximum(jnp.sum(members.astype(messages.dtype)), 1.0)


def deviations_of(messages: Float[Array, "K D"], members: Bool[Array, " K"]) -> Float[Array, "K D"]:
    """Return the difference of each row in `members` from their mean, zero for other rows."""
    return jnp.where(members[:, None], messages - mean_over(messages, members)[None], 0.0)


def squared_distances_among(messages: Float[Array, "K D"], members: Bool[Array, " K"]) -> Float[Array, "K K"]:
    """Return ‖x_i − x_j‖² for pairs of rows in `members`, zero for other pairs."""
    deviations = deviations_of(messages, members)
    gram = jnp.matmul(deviations, deviations.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.diagonal(gram)
    both = members[:, None] & members[None]
    return jnp.where(both, jnp.maximum(squares[:, None] + squares[None] - 2.0 * gram, 0.0), 0.0)


def honest_mean(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Return the mean μ of the rows that are not Byzantine."""
    return mean_over(messages, ~mask)


def honest_deviations(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, "K D"]:
    """Return x_i − μ for rows that are not Byzantine, zero for the others."""
    return deviations_of(messages, ~mask)


def honest_std(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Return the coordinate-wise standard deviation s of the rows that are not Byzantine."""
    deviations = honest_deviations(messages, mask)
    return jnp.sqrt(jnp.sum(deviations * deviations, axis=0) / jnp.maximum(jnp.sum(~mask), 1))


def honest_squared_distances(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, "K K"]:
    """Return ‖x_i − x_j‖² for pairs of rows that are not Byzantine, zero for other pairs."""
    return squared_distances_among(messages, ~mask)


def overflow_safe_norm(vector: Float[Array, " D"]) -> Float[Array, ""]:
    """Return ‖v‖ without overflow; infinite if an entry is not finite. Its gradient is finite everywhere."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vector)))
    regular = jnp.isfinite(largest) & (largest > 0)
    scaled = jnp.where(regular, vector / jnp.where(regular, largest, 1.0), 0.0)
    norm = jnp.where(regular, largest, 1.0) * jnp.sqrt(jnp.where(regular, jnp.sum(scaled * scaled), 1.0))
    return jnp.where(regular, norm, jnp.where(largest == 0, 0.0, jnp.inf))


def unit(vector: Float[Array, " D"]) -> Float[Array, " D"]:
    """Return v/‖v‖, or zero for the zero vector."""
    return vector / jnp.maximum(overflow_safe_norm(vector), jnp.finfo(vector.dtype).tiny)


def angle(first: Float[Array, " D"], second: Float[Array, " D"]) -> Float[Array, ""]:
    """Return the angle between two vectors in radians; π/2 if one of them is zero, π if one of them is not finite.

    With unit vectors u and v it is 2·atan2(‖u − v‖, ‖u + v‖), which is accurate for small angles and for angles near π.
    """
    u, v = unit(first), unit(second)
    value = 2.0 * jnp.arctan2(overflow_safe_norm(u - v), overflow_safe_norm(u + v))
    return jnp.where(jnp.isfinite(overflow_safe_norm(first) + overflow_safe_norm(second)), value, jnp.pi)
