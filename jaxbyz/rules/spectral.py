"""Rules that look at the direction of largest spread: CAF and DnC. Everything happens in the n×n Gram matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, chosen, mix, usable, weighted
from jaxbyz.rules.distances import gram_matrix, lowest

SQUARINGS = 15  # the matrix to the power 2^15: eigenvalues within a factor 1 − 1e-4 of the largest count as equal


def top_projector(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """u uᵀ of the largest eigenvalue of a positive semi-definite matrix, by repeated squaring; zero for a zero matrix.

    Deterministic, whatever the order of rows, and without LAPACK. Where the largest eigenvalue is shared, the mean of
    the projectors on its directions. Not differentiated: the direction is held fixed.
    """
    tiny = jnp.finfo(matrix.dtype).tiny
    pure = 1.0 - 32.0 * jnp.finfo(matrix.dtype).eps  # tr(m²) = 1 for a projector of trace one on a single direction

    def normalised(m: Array) -> Array:
        return m / jnp.maximum(jnp.trace(m), tiny)

    def mixed(carry: tuple[Array, Array, Array]) -> Array:
        i, _, purity = carry
        return (i < SQUARINGS) & (purity < pure)

    def square(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, m, _ = carry
        m = jnp.matmul(m, m, precision=jax.lax.Precision.HIGHEST)
        return i + 1, normalised(m), jnp.trace(m)

    start = normalised(jax.lax.stop_gradient(matrix))
    return jax.lax.while_loop(mixed, square, (jnp.int32(0), start, jnp.zeros((), matrix.dtype)))[1]


def scaled(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A Gram matrix divided by its largest entry, for results that do not depend on the scale: squares of squared
    lengths neither overflow nor vanish."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.diagonal(gram)))
    return gram / jnp.where(largest > 0, largest, 1.0)


def weighted_gram(gram: Float[Array, "n n"], share: Float[Array, " n"]) -> Float[Array, "n n"]:
    """⟨x_i − μ, x_j − μ⟩ around μ = Σ_i share_i x_i, from the Gram matrix around any other point."""
    pull = jnp.matmul(gram, share, precision=jax.lax.Precision.HIGHEST)
    return gram - pull[:, None] - pull[None, :] + jnp.dot(share, pull)


def projections(gram: Float[Array, "n n"], share: Float[Array, " n"]) -> tuple[Array, Array]:
    """(λ, τ): the largest eigenvalue of the covariance Σ_i share_i (x_i − μ)(x_i − μ)ᵀ, and τ_i = ⟨v, x_i − μ⟩² [n]
    along its direction v."""
    about = weighted_gram(gram, share)
    counted = share > 0
    root = jnp.where(counted, jnp.sqrt(jnp.where(counted, share, 1.0)), 0.0)
    spread = root[:, None] * about * root[None, :]
    projector = top_projector(spread)
    value = jnp.sum(projector * spread)
    positive = value > 0
    # Divided before it is squared: squares of squared lengths would overflow.
    half = about * root[None, :] * jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, value, 1.0)), 0.0)
    squares = jnp.sum(jnp.matmul(half, projector, precision=jax.lax.Precision.HIGHEST) * half, axis=1)
    return value, jnp.maximum(squares, 0.0)


def caf(byzantine: int = 0) -> Rule:
    """Covariance-bound-agnostic filter: c = 1; while Σc > n − 2f, find the top eigenpair (λ, v) of the c-weighted
    covariance, then c_i ← c_i(1 − τ_i/τ_max), τ_i = ⟨v, x_i − μ_c⟩². The μ_c of least λ is the result.

    Allouah et al. 2025. Breakdown point 1/2. Cost n²·D + n⁴ at most: every pass sets one c to zero. The
    eigenpair is exact and deterministic (ByzFL: one step of power iteration from a random vector). τ_max is taken
    over those still counted; over all, as ByzFL has it, one far message stalls the filter for ever. An unusable message
    begins with c = 0. Under differentiation v is held fixed.
    """

    def weights(messages: Array) -> Array:
        n = messages.shape[0]
        if 2 * byzantine >= n:
            raise UsageError(f"caf: byzantine={byzantine} of {n} messages: at most {(n - 1) // 2}")
        gram, ok = gram_matrix(messages)
        gram = scaled(gram)

        def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            c, best, least = carry
            share = c / jnp.maximum(jnp.sum(c), jnp.finfo(c.dtype).tiny)
            value, tau = projections(gram, share)
            better = value < least
            tau = jnp.where(c > 0, tau, 0.0)
            most = jnp.max(tau)
            ratio = tau / jnp.where(most > 0, most, 1.0)
            gone = (ratio > 1.0 - 1e-6) | (most <= 0)  # the farthest, whatever the rounding; all, when all are equal
            after = jnp.where(gone, 0.0, c * (1.0 - ratio))
            return after, jnp.where(better, share, best), jnp.where(better, value, least)

        def filtered(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            return jax.lax.cond(jnp.sum(carry[0]) > n - 2 * byzantine, step, lambda same: same, carry)

        c = ok.astype(gram.dtype)
        first = (c, c / jnp.maximum(jnp.sum(c), 1.0), jnp.asarray(jnp.inf, gram.dtype))
        return chosen(jax.lax.fori_loop(0, n if byzantine else 0, filtered, first)[1], ok)

    return weighted(weights)


def sampled_coordinates(key: PRNGKeyArray, D: int, count: int) -> Array | None:
    """`count` coordinates drawn with replacement, or None, meaning all, when there are no more than that."""
    return None if count >= D else jax.random.randint(key, (count,), 0, D)


def dnc(byzantine: int = 0, *, rounds: int = 5, coordinates: int = 10_000, factor: float = 1.0) -> Rule:
    """Divide and conquer: on random coordinates, drop the c·f messages with the largest squared projections on the top
    singular vector of the centred messages; the mean of those never dropped in `rounds` draws.

    Shejwalkar & Houmansadr 2021 (c = `factor`). No worst-case bound is known, and none holds: f messages can be far in
    different directions, while one round looks at one. Limit 1/2. Cost rounds·(n²·min(D, coordinates) + n³). With
    no more than `coordinates` of them all are used, and once is enough. An unusable message is always dropped; were
    nothing left, those dropped least often stay.
    """
    if rounds < 1 or coordinates < 1:
        raise UsageError(f"dnc: rounds={rounds}, coordinates={coordinates}: both at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n, D = messages.shape
        drop = min(n - 1, int(factor * byzantine))
        ok = usable(messages)
        votes = jax.lax.stop_gradient(jnp.where(ok[:, None], messages, 0.0))

        def kept(key: PRNGKeyArray) -> Array:
            picked = sampled_coordinates(key, D, coordinates)
            gram, _ = gram_matrix(votes if picked is None else votes[:, picked])
            share = ok / jnp.maximum(jnp.sum(ok), 1).astype(gram.dtype)
            _, tau = projections(gram, share)
            return lowest(jnp.where(ok, tau, jnp.inf), n - drop) > 0

        draws = 1 if coordinates >= D else rounds
        times = jnp.sum(jax.lax.map(kept, jax.random.split(key, draws)), axis=0)
        times = jnp.where(ok, times, -1)
        weights = chosen((times == jnp.max(times)).astype(messages.dtype), ok)
        return Outcome(mix(weights[None], messages), weights[None], state)

    return Rule(apply, random=True)
