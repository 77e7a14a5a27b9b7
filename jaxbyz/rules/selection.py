"""Select the lowest of a few scores so that the result does not depend on the order of the senders."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.accelerate.kernels import computed_once
from jaxbyz.accelerate.sorting_networks import sum_of_ranks


def comparable(scores: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return scores that can be compared with each other, not differentiated.

    On a GPU, XLA may compute a score again for each use and round it differently: it would not equal itself.
    """
    return computed_once(jax.lax.stop_gradient(scores))


def lowest(scores: Float[Array, "*batch n"], count: int | Int[Array, ""]) -> Float[Array, "*batch n"]:
    """Return weights, 1 for the `count` lowest scores and 0 for the others; scores tied for the last places share them.

    `w_i = clip((count − #{j: s_j < s_i}) / #{j: s_j = s_i}, 0, 1)`. Not differentiated.
    """
    scores = comparable(scores)
    less = jnp.sum(scores[..., None, :] < scores[..., :, None], axis=-1, dtype=scores.dtype)
    equal = jnp.sum(scores[..., None, :] == scores[..., :, None], axis=-1, dtype=scores.dtype)
    return jnp.clip((count - less) / equal, 0.0, 1.0)


def ranks(scores: Float[Array, " n"]) -> Int[Array, " n"]:
    """Return the place of each score in ascending order; of equal scores, the one with the lower index comes first."""
    scores = comparable(scores)
    i = jnp.arange(scores.shape[0])
    before = (scores[None, :] < scores[:, None]) | ((scores[None, :] == scores[:, None]) & (i[None, :] < i[:, None]))
    return jnp.sum(before, axis=1)


def nearest(squares: Float[Array, "n n"], count: int) -> Float[Array, "n n"]:
    """Return weights: row i has 1 for the `count` points nearest to point i; points tied for the last places share.

    Args:
        squares: squared distances; a point is nearest to itself.
        count: the number of points.
    """
    squares = comparable(squares)
    radius = kth_smallest(squares, count)[:, None]
    inside, at_radius = squares < radius, squares == radius
    places = count - jnp.sum(inside, axis=1, keepdims=True, dtype=squares.dtype)
    return inside + at_radius * (places / jnp.sum(at_radius, axis=1, keepdims=True, dtype=squares.dtype))


def neighbour_sums(squares: Float[Array, "n n"], count: int) -> Float[Array, " n"]:
    """Return the sum of the `count` least entries of each row of a symmetric matrix. Not differentiated."""
    return sum_of_ranks(comparable(squares), range(count))


def kth_smallest(scores: Float[Array, "n m"], k: int) -> Float[Array, " n"]:
    """Return the k-th least entry of each row. Not differentiated."""
    return sum_of_ranks(comparable(scores).T, range(k - 1, k))
