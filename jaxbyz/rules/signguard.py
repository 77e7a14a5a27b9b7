"""SignGuard: filter messages by length and by the statistics of their signs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.errors import check_value
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, normalised, shortening, squared_norms, usable
from jaxbyz.rules.coordinatewise import finite_median
from jaxbyz.rules.dnc import sampled_coordinates
from jaxbyz.rules.selection import kth_smallest

SHIFTS = 16  # steps of mean shift; a few reach a fixed point


def largest_cluster(features: Float[Array, "n k"], ok: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Return weights, 1 for the points of the largest cluster found by mean shift with a flat kernel.

    The bandwidth is the mean over points of the distance to the ⌊n/2⌋-th nearest point, as scikit-learn estimates it at
    the quantile 0.5 that SignGuard uses. Of clusters of equal size, the one with the least spread is taken; if that is
    equal too, as often for a few coordinates, they share the weight.

    Args:
        features: `[n, k]`, the points.
        ok: `[n]`, the points that count.
    """
    n = features.shape[0]
    near = max(1, n // 2)

    def squares(a: Array, b: Array) -> Array:
        gaps = jnp.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=2)
        return jnp.where(ok[None, :], gaps, jnp.inf)

    farthest = kth_smallest(jnp.where(ok[:, None], squares(features, features), jnp.inf), near)
    usable_rows = ok & jnp.isfinite(farthest)
    width = jnp.sum(jnp.where(usable_rows, jnp.sqrt(jnp.maximum(farthest, 0.0)), 0.0))
    width = width / jnp.maximum(jnp.sum(usable_rows), 1)
    reach = width * width * (1.0 + 1e-5) + jnp.finfo(features.dtype).tiny

    def shift(_: int, modes: Array) -> Array:
        inside = (squares(modes, features) <= reach).astype(features.dtype)
        total = jnp.sum(inside, axis=1, keepdims=True)
        means = jnp.matmul(inside, features, precision=jax.lax.Precision.HIGHEST) / jnp.maximum(total, 1.0)
        return jnp.where(total > 0, means, modes)

    modes = jax.lax.fori_loop(0, SHIFTS, shift, features)
    gaps = squares(modes, features)
    members = gaps <= reach  # [mode, point]
    size = jnp.where(ok, jnp.sum(members, axis=1), -1)
    spread = jnp.sum(jnp.where(members, gaps, 0.0), axis=1)
    spread = jnp.where(size == jnp.max(size), spread, jnp.inf)
    best = (spread <= jnp.min(spread) + 1e-4 * reach).astype(features.dtype)
    return jnp.matmul(best, members.astype(features.dtype)) / jnp.sum(best)


def signguard(*, lower: float = 0.1, upper: float = 3.0, fraction: float = 0.1) -> Rule:
    """Return the mean of the messages that pass two filters, each clipped to the median length M.

    Length: lower ≤ ‖x_i‖/M ≤ upper. Signs: the fractions of positive, zero and negative entries on random coordinates
    are clustered by mean shift, and the largest cluster passes. If no message passes both, those that pass the first
    are taken. The only bound on the result is its length, at most M, which is within the honest lengths; it is not
    translation equivariant. Under differentiation M is held fixed. Breakdown point 1/2. Cost n·D.

    Args:
        lower: the least length, relative to M.
        upper: the largest length, relative to M.
        fraction: the fraction of coordinates whose signs are counted.

    References:
        Xu et al., Byzantine-robust federated learning through collaborative malicious gradient filtering, 2022 (the
        plain variant).
    """
    check_value("signguard: fraction", fraction, 0 < fraction <= 1, "above 0 and at most 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        D = messages.shape[1]
        ok = usable(messages)
        safe = jnp.where(ok[:, None], messages, 0.0)
        squares = squared_norms(safe)
        lengths = jnp.sqrt(jax.lax.stop_gradient(squares))
        typical = finite_median(jnp.where(ok, lengths, jnp.inf)[:, None])[0]
        passes = ok & (lengths >= lower * typical) & (lengths <= upper * typical)
        picked = sampled_coordinates(key, D, max(1, round(fraction * D)))
        seen = jax.lax.stop_gradient(safe if picked is None else safe[:, picked])
        signs = jnp.stack([jnp.mean(test, axis=1, dtype=seen.dtype) for test in (seen > 0, seen == 0, seen < 0)], 1)
        both = passes * largest_cluster(signs, ok)
        kept = jnp.where(jnp.any(both > 0), both, passes)
        factors = jnp.where(typical > 0, shortening(squares, typical * typical), 1.0)
        share = normalised(kept.astype(messages.dtype), ok)
        return Outcome(mix((share * factors)[None], safe), share[None], state)

    return Rule(apply, random=fraction < 1)
