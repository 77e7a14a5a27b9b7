"""Cosine and sine as formulas over many lanes: XLA, on a CPU, calls the C library for one lane after another."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.kernels import equations as replay
from jaxbyz.accelerate.no_inline import apart
from jaxbyz.accelerate.platform import on_cpu

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
    if not on_cpu():
        return jnp.cos(angle), jnp.sin(angle)
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


def by_lanes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of trees of arrays, its cosines and sines by `cos_sin` where it is traced for a CPU.

    Loops and branches stay as they are, and so does a function with batching rules of its own.
    """

    @functools.cache
    def trace(structure: Any, *leaves: Any) -> Any:
        """Its equations and what its results make up, or None where there is nothing to replace."""
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, leaves))
        names = {equation.primitive.name for equation in replay.written_out(traced.jaxpr)}
        if names.isdisjoint(("cos", "sin")) or "custom_vmap_call" in names:
            return None
        return traced, jax.tree.structure(shapes)

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        found = trace(structure, *(jax.typeof(leaf) for leaf in leaves)) if on_cpu() else None
        if found is None:
            return function(*args)
        known: dict[int, tuple[jax.Array, ...]] = {}  # by the angle's id, and the angle itself to keep it

        def turned(angle: jax.Array, which: int) -> jax.Array:
            if angle.dtype != jnp.float32:
                return (jnp.cos, jnp.sin)[which](angle)
            if id(angle) not in known:
                known[id(angle)] = (*cos_sin(angle), angle)
            return known[id(angle)][which]

        instead = {"cos": functools.partial(turned, which=0), "sin": functools.partial(turned, which=1)}
        traced, results = found
        return jax.tree.unflatten(results, replay.called(traced, leaves, instead))

    return called
