"""Cosine and sine as formulas over many lanes at once; on a CPU, XLA calls the C library for one lane after another."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.environments.apart import apart

# π/2 as a sum of three numbers, of which multiples of the first two by small integers are exact.
_QUARTER = (
    np.float32(1.5703125),
    np.float32(4.8351287841796875e-4),
    np.float32(math.pi / 2 - 1.5703125 - 4.8351287841796875e-4),
)
_SINE = [np.float32((-1) ** i / math.factorial(2 * i + 1)) for i in range(1, 5)]  # of Taylor's series, from x³ on
_COSINE = [np.float32((-1) ** i / math.factorial(2 * i)) for i in range(2, 6)]  # from x⁴ on


@apart
def cos_sin(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin of angles up to a thousand turns, to 1e-7: series within an eighth of a turn, then turned."""
    turns = jnp.round(angle * np.float32(2 / math.pi))
    x = angle
    for part in _QUARTER:
        x = x - turns * part
    square = x * x
    sine = x + x * square * _horner(_SINE, square)
    cosine = 1 - 0.5 * square + square * square * _horner(_COSINE, square)
    quarter = turns.astype(jnp.int32) & 3
    odd = (quarter & 1) == 1
    cos, sin = jnp.where(odd, sine, cosine), jnp.where(odd, cosine, sine)
    return jnp.where((quarter == 1) | (quarter == 2), -cos, cos), jnp.where(quarter >= 2, -sin, sin)


def _horner(coefficients: list[np.float32], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = coefficient + x * value
    return value
