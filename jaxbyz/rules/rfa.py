"""RFA: the geometric median by smoothed Weiszfeld iterations (Pillutla et al. 2022; the paper's appendix A.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.branches import shortcut
from jaxbyz.accelerate.sorting_networks import computed_once, median_rows
from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Rule, inverse_norm_above, largest_square, mix, squared_norms, weighted
from jaxbyz.rules.distances import centred_gram


def rfa(*, rounds: int = 8, nu: float = 1e-3, floor: float | None = None, start: str = "median") -> Rule:
    """argmin_z Σ_i ‖z − x_i‖: z ← Σ_i β_i x_i / Σ_i β_i with β_i = 1 / max(ν·s, ‖z − x_i‖).

    The paper's formula has squared norms, which would be the mean: a slip, the geometric median is meant. The start is
    the coordinate-wise median and s the median distance of the messages from it, so that the result moves with its
    inputs (translation, scale) and no far message can spoil the start. `floor` sets ν·s to a number and `start=zero`
    begins at 0, as the published code (8 rounds, floor 0.1) and ByzFL (3 rounds, floor 0.1) do.
    The start and s are held fixed under differentiation.
    Breakdown point 1/2; cost rounds·n·D, or n²·D for at most 2·rounds messages.
    """
    if start not in ("median", "zero"):
        raise UsageError(f"rfa: start={start!r} is unknown: median or zero")
    if rounds < 1:
        raise UsageError(f"rfa: rounds={rounds}: at least 1")
    exact = jax.lax.Precision.HIGHEST

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
            pull = jnp.matmul(gram, w, precision=exact)
            w = share(jnp.maximum(lengths - 2.0 * pull + jnp.dot(w, pull), 0.0))
        return w

    @jax.custom_jvp
    def by_passes(messages: Array) -> Array:
        """Two products with the messages a round, and again by differences if digits were lost to the first."""

        def from_point(w: Array) -> tuple[Array, Array]:
            z = jnp.matmul(w, messages, precision=exact)
            squares = lengths - 2.0 * jnp.matmul(messages, z, precision=exact) + jnp.dot(z, z, precision=exact)
            return squares, jnp.all(squares >= lengths / 64.0)

        lengths = squared_norms(messages)
        w, kept = iterate(messages, from_point)
        sound = kept & jnp.all(lengths <= largest_square(messages.dtype))
        return shortcut(sound, lambda w, _: w, lambda _, x: by_differences(x), w, messages)

    @by_passes.defjvp
    def _by_passes_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        return jax.jvp(by_differences, primals, tangents)

    def by_differences(messages: Array) -> Array:
        def from_point(w: Array) -> tuple[Array, Array]:
            return squared_norms(messages - _mean_once(w, messages)[None]), jnp.asarray(True)

        return iterate(messages, from_point)[0]

    def iterate(messages: Array, from_point: Callable[[Array], tuple[Array, Array]]) -> tuple[Array, Array]:
        """Weights after all rounds; from_point: weights -> squared distances from that point, and whether they hold."""
        first = median_rows(messages) if start == "median" else jnp.zeros_like(messages[0])
        squares = squared_norms(messages - first[None])
        ok = squares <= largest_square(messages.dtype)  # a comparison with NaN is False
        share = reweigh(ok, jnp.where(ok, squares, 0.0), messages.dtype)
        w, all_hold = share(squares), jnp.asarray(True)
        for _ in range(rounds - 1):
            squares, hold = from_point(w)
            w, all_hold = share(squares), all_hold & hold
        return w, all_hold

    def reweigh(ok: Array, squares: Array, dtype: Any) -> Callable[[Array], Array]:
        """Squared distances [n] -> weights [n], with the floor set by the squared distances from the start."""
        if floor is None:
            distances = jnp.sqrt(jax.lax.stop_gradient(jnp.where(ok, squares, jnp.inf)))
            least = nu * median_rows(distances[:, None])[0]
            least = jnp.maximum(least, jnp.sqrt(jnp.finfo(dtype).tiny) * 1e3)
        else:
            least = jnp.asarray(floor, dtype)

        def share(squares: Array) -> Array:
            relative = jnp.where(ok, squares, 0.0) / least / least  # or the gradient of small messages would overflow
            beta = jnp.where(ok, inverse_norm_above(relative, 1.0), 0.0)
            beta = beta / jax.lax.stop_gradient(jnp.maximum(jnp.max(beta), jnp.finfo(beta.dtype).tiny))
            return beta / jnp.maximum(jnp.sum(beta), 1.0)

        return share

    return weighted(weights)


@jax.custom_jvp
def _mean_once(w: Float[Array, " n"], messages: Float[Array, "n D"]) -> Float[Array, " D"]:
    """Σ_i w_i x_i, not computed again for each message it is subtracted from."""
    return computed_once(lambda x: mix(w[None], x)[0], messages)


@_mean_once.defjvp
def _mean_once_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _mean_once(*primals), jax.jvp(lambda w, x: mix(w[None], x)[0], primals, tangents)[1]
