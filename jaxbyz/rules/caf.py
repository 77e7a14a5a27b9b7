"""CAF: reweigh messages against the direction of largest spread."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.kernels import one_matrix_kernel
from jaxbyz.rules.base import Rule, check_byzantine, normalised, weighted
from jaxbyz.rules.covariance import projections, scaled
from jaxbyz.rules.distances import gram_matrix


def caf(byzantine: int = 0) -> Rule:
    """Return the mean of the covariance-bound-agnostic filter.

    Start with c = 1. While Σc > n − 2f, find the top eigenpair (λ, v) of the c-weighted covariance and set
    `c_i ← c_i (1 − τ_i/τ_max)` with `τ_i = ⟨v, x_i − μ_c⟩²`. The result is the μ_c of least λ. Breakdown point 1/2.
    Every pass sets one c to zero, so that at most 2f are needed: the cost is at most n²·D + 2f·n³.

    The eigenpair is exact and deterministic, where ByzFL takes one step of power iteration from a random vector. τ_max
    is the maximum over messages with c > 0; over all messages, as in ByzFL, one far message stalls the filter forever.
    An unusable message starts with c = 0. Under differentiation v is held fixed.

    Args:
        byzantine: the number of messages f that it defends against.

    References:
        Allouah et al., Towards trustworthy federated learning with untrusted participants, 2025.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        check_byzantine("caf", byzantine, n, (n - 1) // 2)
        gram, ok = gram_matrix(messages)
        filtered = partial(filtered_shares, n=n, byzantine=byzantine)
        return normalised(one_matrix_kernel(filtered, scaled(gram), ok.astype(gram.dtype)), ok)

    return weighted(weights, rotates=True, translates=True)


def filtered_shares(
    gram: Float[Array, "n n"], start: Float[Array, " n"], *, n: int, byzantine: int
) -> Float[Array, " n"]:
    """Return the shares of the messages in the μ_c of least λ.

    Args:
        gram: `[n, n]`, the scaled Gram matrix, with zero rows and columns for unusable messages.
        start: `[n]`, c at first: 1 for usable messages and 0 for others.
        n: the number of messages. The arrays may have further entries, which are zero.
        byzantine: f.
    """

    def filter_once(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        c, best, least = carry
        share = c / jnp.maximum(jnp.sum(c), jnp.finfo(c.dtype).tiny)
        value, tau = projections(gram, share)
        better = value < least
        tau = jnp.where(c > 0, tau, 0.0)
        most = jnp.max(tau)
        ratio = tau / jnp.where(most > 0, most, 1.0)
        removed = (ratio > 1.0 - 1e-6) | (most <= 0)  # the farthest, whatever the rounding; all, if all are equal
        after = jnp.where(removed, 0.0, c * (1.0 - ratio))
        return after, jnp.where(better, share, best), jnp.where(better, value, least)

    def step(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return jax.lax.cond(jnp.sum(carry[0]) > n - 2 * byzantine, filter_once, lambda same: same, carry)

    first = (start, start / jnp.maximum(jnp.sum(start), 1.0), jnp.asarray(jnp.inf, gram.dtype))
    return jax.lax.fori_loop(0, 2 * byzantine, step, first)[1]
