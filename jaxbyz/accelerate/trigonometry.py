"""Cosine and sine as vectorised formulas, because XLA on a CPU calls the C library for one number after another."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.jaxprs import evaluate_jaxpr, flat_equations
from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.accelerate.platform import on_cpu

# π/2 as a sum of three numbers. The products of the first two with small integers are exact.
_HALF_PI = (
    np.float32(1.5703125),
    np.float32(4.8351287841796875e-4),
    np.float32(math.pi / 2 - 1.5703125 - 4.8351287841796875e-4),
)
_SINE = [np.float32((-1) ** i / math.factorial(2 * i + 1)) for i in range(1, 5)]  # Taylor coefficients from x³ on
_COSINE = [np.float32((-1) ** i / math.factorial(2 * i)) for i in range(2, 6)]  # Taylor coefficients from x⁴ on


@not_inlined
def cos_sin(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cosine and the sine of angles.

    On a CPU, the angle is reduced to [−π/4, π/4] by subtracting a multiple of π/2, and Taylor series are evaluated
    there. The error is at most 1.2e-7 for angles up to 1000.
    """
    if not on_cpu() or angle.dtype != jnp.float32:
        return jnp.cos(angle), jnp.sin(angle)
    quarter_turns = jnp.round(angle * np.float32(2 / math.pi))
    x = angle
    for part in _HALF_PI:
        x = x - quarter_turns * part
    square = x * x
    sine = x + x * square * _polynomial(_SINE, square)
    cosine = 1 - 0.5 * square + square * square * _polynomial(_COSINE, square)
    quadrant = quarter_turns.astype(jnp.int32) & 3
    odd = (quadrant & 1) == 1
    cos, sin = jnp.where(odd, sine, cosine), jnp.where(odd, cosine, sine)
    return jnp.where((quadrant == 1) | (quadrant == 2), -cos, cos), jnp.where(quadrant >= 2, -sin, sin)


def _polynomial(coefficients: list[np.float32], x: jax.Array) -> jax.Array:
    """Evaluate a polynomial by Horner's rule, lowest coefficient first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = coefficient + x * value
    return value


def with_fast_trigonometry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function with its cosines and sines computed by `cos_sin` on a CPU.

    The function is traced to a jaxpr, JAX's internal list of equations, which is then evaluated with `cos` and `sin`
    replaced. Equations inside loops and branches are not changed, nor is a function that contains a `custom_vmap`.

    Args:
        function: takes and returns trees of arrays.
    """

    @functools.cache
    def trace(structure: Any, *leaves: Any) -> Any:
        """Return the jaxpr and the structure of the results, or None if there is nothing to replace."""
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, leaves))
        names = {equation.primitive.name for equation in flat_equations(jaxpr.jaxpr)}
        if names.isdisjoint(("cos", "sin")) or "custom_vmap_call" in names:
            return None
        return jaxpr, jax.tree.structure(shapes)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        traced = trace(structure, *(jax.typeof(leaf) for leaf in leaves)) if on_cpu() else None
        if traced is None:
            return function(*args)
        jaxpr, result_structure = traced
        return jax.tree.unflatten(result_structure, evaluate_jaxpr(jaxpr, leaves, _replacements()))

    return call


def _replacements() -> dict[str, Callable[[jax.Array], jax.Array]]:
    """Return replacements of `cos` and `sin` that compute both once per angle."""
    known: dict[
        int, tuple[jax.Array, ...]
    ] = {}  # id of the angle -> cos, sin, and the angle, so that its id stays taken

    def entry(angle: jax.Array, index: int) -> jax.Array:
        if angle.dtype != jnp.float32:
            return (jnp.cos, jnp.sin)[index](angle)
        if id(angle) not in known:
            known[id(angle)] = (*cos_sin(angle), angle)
        return known[id(angle)][index]

    return {"cos": functools.partial(entry, index=0), "sin": functools.partial(entry, index=1)}
