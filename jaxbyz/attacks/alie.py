"""A little is enough (ALIE): a small shift of the honest mean, hidden within the honest standard deviation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.attacks.base import Attack, MessageKind, View, same_row
from jaxbyz.attacks.honest_statistics import honest_mean, honest_std


def alie_z(view: View) -> Float[Array, ""]:
    """Return z = Φ⁻¹((n − f − k)/(n − f)), where k = ⌊n/2 + 1⌋ − f supporters are needed for a majority.

    The probability is kept within [1/2, 0.999]: below 1/2 the shift would change its sign, at 1 it would be infinite.
    """
    n = view.mask.shape[0]
    f = jnp.sum(view.mask)
    supporters = n // 2 + 1 - f
    probability = (n - f - supporters) / jnp.maximum(n - f, 1)
    return jax.scipy.special.ndtri(jnp.clip(probability, 0.5, 0.999)).astype(view.messages.dtype)


def alie_row(view: View, z: float | Float[Array, ""]) -> Float[Array, " D"]:
    """Return μ + z·s, where μ and s are the honest mean and coordinate-wise standard deviation."""
    return honest_mean(view.messages, view.mask) + z * honest_std(view.messages, view.mask)


def alie(*, z: float | None = None, sign: float = -1.0, on: MessageKind = "both", equivocate: bool = False) -> Attack:
    """A little is enough: every Byzantine agent sends μ + sign·z·s.

    Args:
        z: how many honest standard deviations s; by default `alie_z`, from the number of Byzantine agents in the
            iteration.
        sign: −1 or 1.
        equivocate: half of the honest receivers get μ − z·s, the others μ + z·s.

    References:
        Baruch et al., A little is enough, 2019.
    """

    def row(view: View) -> Array:
        return alie_row(view, sign * (alie_z(view) if z is None else z))

    return same_row(row, on, mirror_for_half=equivocate)
