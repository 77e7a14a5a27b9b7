"""RFA: the geometric median by smoothed Weiszfeld iterations (the paper's appendix A.2)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.errors import check_choice, check_value
from jaxbyz.rules.base import Rule, squared_norms, usable_squares, weighted
from jaxbyz.rules.coordinatewise import finite_median
from jaxbyz.rules.distances import gram_matrix

EXACT = jax.lax.Precision.HIGHEST


def rfa(*, rounds: int = 8, nu: float = 1e-3, floor: float | None = None, start: str = "median") -> Rule:
    """Return an approximate geometric median `argmin_z Σ_i ‖z − x_i‖`.

    Each round sets `z ← Σ_i β_i x_i / Σ_i β_i` with `β_i = 1 / max(ν·s, ‖z − x_i‖)`. The paper's formula has squared
    norms, which would give the mean; this is a slip, the geometric median is meant. The start is the coordinate-wise
    median and s is the median distance of the messages from it, so that the result is equivariant under translation and
    scaling and no far message can spoil the start. Under differentiation the start and s are held fixed. Breakdown
    point 1/2. Cost n²·D, or rounds·n·D from zero.

    Args:
        rounds: the number of iterations.
        nu: the smoothing ν, relative to the median distance s.
        floor: if given, replaces ν·s. The published code has 8 rounds from zero with floor 0.1, ByzFL has 3.
        start: `"median"` or `"zero"`.

    References:
        Pillutla, Kakade & Harchaoui, Robust aggregation for federated learning, 2022.
    """
    check_choice("rfa: start", start, ("median", "zero"))
    check_value("rfa: rounds", rounds, rounds >= 1, "at least 1")

    def weights(messages: Array) -> Array:
        measure = distances_by_products if start == "median" else distances_by_differences
        squares, ok, squares_from = measure(messages)
        smallest = smallest_distance(squares, ok)
        w = weiszfeld_weights(squares, ok, smallest)
        for _ in range(rounds - 1):
            w = weiszfeld_weights(squares_from(w), ok, smallest)
        return w

    def smallest_distance(squares: Array, ok: Array) -> Array:
        if floor is not None:
            return jnp.asarray(floor, squares.dtype)
        distances = jnp.sqrt(jax.lax.stop_gradient(jnp.where(ok, squares, jnp.inf)))
        return jnp.maximum(nu * finite_median(distances[:, None])[0], jnp.sqrt(jnp.finfo(squares.dtype).tiny) * 1e3)

    return weighted(weights, translates=start == "median")


def weiszfeld_weights(
    squares: Float[Array, " n"], ok: Bool[Array, " n"], smallest: Float[Array, ""]
) -> Float[Array, " n"]:
    """Turn squared distances into weights proportional to `1 / max(smallest, distance)`, zero for unusable messages."""
    relative = jnp.where(ok, squares, 0.0) / smallest / smallest  # avoids overflow in the derivative of small messages
    far = relative > 1.0
    beta = jnp.where(far, jax.lax.rsqrt(jnp.where(far, relative, 1.0)), 1.0)
    beta = jnp.where(ok, beta, 0.0)
    beta = beta / jax.lax.stop_gradient(jnp.maximum(jnp.max(beta), jnp.finfo(beta.dtype).tiny))
    return beta / jnp.maximum(jnp.sum(beta), 1.0)


# Squared distances from a first point, the usable messages, and a function: weights w -> squared distances from Σ w x
Distances = tuple[Float[Array, " n"], Bool[Array, " n"], Callable[[Array], Array]]


def distances_by_products(messages: Float[Array, "n D"]) -> Distances:
    """Measure distances from the coordinate-wise median and from mixtures in the Gram matrix: n²·D in all."""
    gram, ok = gram_matrix(messages)
    lengths = jnp.diagonal(gram)

    def squares_from(w: Array) -> Array:
        pull = jnp.matmul(gram, w, precision=EXACT)
        return jnp.maximum(lengths - 2.0 * pull + jnp.dot(w, pull), 0.0)

    return lengths, ok, squares_from


def distances_by_differences(messages: Float[Array, "n D"]) -> Distances:
    """Measure distances from zero and from mixtures directly: n·D for each."""
    squares = squared_norms(messages)
    ok = usable_squares(squares)
    safe = jnp.where(ok[:, None], messages, 0.0)

    def squares_from(w: Array) -> Array:
        return squared_norms(safe - jnp.matmul(w, safe, precision=EXACT)[None])

    return jnp.where(ok, squares, 0.0), ok, squares_from
