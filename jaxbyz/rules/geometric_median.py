"""RFA: the geometric median by smoothed Weiszfeld iterations (Pillutla et al. 2022; the paper's appendix A.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.registry import UsageError
from jaxbyz.rules.base import Rule, inverse_norm_above, largest_square, mix, squared_norms, weighted
from jaxbyz.rules.distances import centred_gram
from jaxbyz.rules.sorting import computed_once, median_rows


def rfa(*, rounds: int = 8, nu: float = 1e-3, floor: float | None = None, start: str = "median") -> Rule:
    """argmin_z Σ_i ‖z − x_i‖: z ← Σ_i β_i x_i / Σ_i β_i with β_i = 1 / max(ν·s, ‖z − x_i‖).

    The paper's formula has squared norms, which would be the mean: a slip, the geometric median is meant. The start is
    the coordinate-wise median and s the median distance of the messages from it, so that the result moves with its
    inputs (translation, scale) and no far message can spoil the start. `floor` sets ν·s to a number and `start=zero`
    begins at 0, as the published code (8 rounds, floor 0.1) and ByzFL (3 rounds, floor 0.1) do.
    Breakdown point 1/2; cost rounds·n·D, or n²·D for at most 2·rounds messages.
    """
    if start not in ("median", "zero"):
        raise UsageError(f"rfa: start={start!r} is unknown: median or zero")
    if rounds < 1:
        raise UsageError(f"rfa: rounds={rounds}: at least 1")

    def weights(messages: Array) -> Array:
        few = start == "median" and messages.shape[0] <= 2 * rounds
        return by_products(messages) if few else by_passes(messages)

    def by_products(messages: Array) -> Array:
        """A few messages: all rounds in the n×n matrix of products around the start; n²·D instead of rounds·n·D."""
        gram, ok = centred_gram(messages)
        lengths = jnp.diagonal(gram)
        share = reweigh(ok, lengths, messages.dtype)
        w = share(lengths)
        for _ in range(rounds - 1):
            pull = jnp.matmul(gram, w, precision=jax.lax.Precision.HIGHEST)
            w = share(jnp.maximum(lengths - 2.0 * pull + jnp.dot(w, pull), 0.0))
        return w

    def by_passes(messages: Array) -> Array:
        first = median_rows(messages) if start == "median" else jnp.zeros_like(messages[0])
        squares = squared_norms(messages - first[None])
        ok = squares <= largest_square(messages.dtype)  # a comparison with NaN is False
        share = reweigh(ok, jnp.where(ok, squares, 0.0), messages.dtype)
        w = share(squares)
        for _ in range(rounds - 1):
            z = computed_once(lambda part, w=w: mix(w[None], part)[0], messages)
            w = share(squared_norms(messages - z[None]))
        return w

    def reweigh(ok: Array, squares: Array, dtype: Any) -> Callable[[Array], Array]:
        """Squared distances [n] -> weights [n], with the floor set by the squared distances from the start."""
        if floor is None:
            typical = median_rows(jnp.where(ok, squares, jnp.inf)[:, None])[0]
            least = nu * jnp.sqrt(typical)
            least = jnp.maximum(least, jnp.sqrt(jnp.finfo(dtype).tiny) * 1e3)
        else:
            least = jnp.asarray(floor, dtype)

        def share(squares: Array) -> Array:
            squares = jnp.where(ok, squares, 0.0)
            beta = jnp.where(ok, inverse_norm_above(squares, least) * least, 0.0)  # in (0, 1]: no overflow
            beta = beta / jax.lax.stop_gradient(jnp.maximum(jnp.max(beta), jnp.finfo(beta.dtype).tiny))
            return beta / jnp.maximum(jnp.sum(beta), 1.0)

        return share

    return weighted(weights)
