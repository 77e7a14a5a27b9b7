"""RFA: the geometric median by smoothed Weiszfeld iterations (Pillutla et al. 2022; the paper's appendix A.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.rules.base import Rule, mix, usable, weighted
from jaxbyz.rules.sorting import median_rows


def rfa(*, rounds: int = 8, nu: float = 1e-3) -> Rule:
    """argmin_z Σ_i ‖z − x_i‖: z ← Σ_i β_i x_i / Σ_i β_i with β_i = 1 / max(ν·s, ‖z − x_i‖).

    The paper's formula has squared norms, which would be the mean: a slip, the geometric median is meant. The start is
    the coordinate-wise median and s the median distance of the messages from it, so that the result moves with its
    inputs (translation, scale) and no far message can spoil the start; the published code starts at 0 with ν·s = 0.1.
    Breakdown point 1/2; cost rounds·n·D.
    """

    def weights(messages: Array) -> Array:
        ok = usable(messages)
        safe = jnp.where(ok[:, None], messages, 0.0)
        start = median_rows(jnp.where(ok[:, None], messages, jnp.inf))
        start = jnp.where(jnp.isfinite(start), start, 0.0)
        distance = jnp.linalg.norm(safe - start, axis=1)
        scale = jnp.median(jnp.where(ok, distance, jnp.inf))
        floor = jnp.maximum(
            nu * jnp.where(jnp.isfinite(scale), scale, 0.0), jnp.finfo(messages.dtype).tiny * 1e8
        )

        def share(distance: Array) -> Array:
            least = jnp.maximum(jnp.min(jnp.where(ok, distance, jnp.inf)), floor)
            beta = jnp.where(ok, least / jnp.maximum(distance, floor), 0.0)  # in (0, 1]: no overflow
            return beta / jnp.maximum(jnp.sum(beta), 1.0)

        def refine(_: int, w: Array) -> Array:
            return share(jnp.linalg.norm(safe - mix(w[None], safe), axis=1))

        return jax.lax.fori_loop(0, rounds - 1, refine, share(distance))

    return weighted(weights)
