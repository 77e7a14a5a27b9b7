"""Small matrix products on a CPU."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.platform import on_cpu

# Largest inner dimension and number of columns for which the product is written out.
MAX_INNER, MAX_COLUMNS = 16, 32


def small_product(a: Float[Array, "out in"], x: Float[Array, "in L"]) -> Float[Array, "out L"]:
    """Return `a @ x`.

    On a CPU, a small product is written out as a sum of outer products, because XLA calls a matrix multiplication
    whose fixed cost exceeds that of the arithmetic. CartPole rollouts of 20 episodes per agent are 1.8× faster.
    """
    if on_cpu() and x.shape[0] <= MAX_INNER and x.shape[1] <= MAX_COLUMNS:
        return _sum_of_outer_products(a, x)
    return a @ x


@functools.partial(jax.jit, inline=True)  # so that all layers of one shape are traced once
def _sum_of_outer_products(a: Array, x: Array) -> Array:
    return functools.reduce(jnp.add, (a[:, i : i + 1] * x[i : i + 1] for i in range(x.shape[0])))
