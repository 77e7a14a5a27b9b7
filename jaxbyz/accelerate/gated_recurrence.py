"""The steps of a gated recurrent unit, with a derivative that has one small matrix product per step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.platform import plain


def gated_steps(
    recurrent: Float[Array, "H 3H"], bias: Float[Array, "1 H"], h: Float[Array, "L H"], inputs: Float[Array, "C L 3H"]
) -> Float[Array, "C L H"]:
    """Compute the features h' of C steps, each of which starts from those of the step before.

        r = σ(x_r + h U_r),  z = σ(x_z + h U_z),  n = tanh(x_n + r ⊙ (h U_n + c)),  h' = n + z ⊙ (h − n)

    Lanes come first, because the vectors of a CPU are filled by features and not by a few episodes.

    Args:
        recurrent: U, the kernels of r, z and n beside each other.
        bias: c.
        h: the features before the first step.
        inputs: x of all steps, which does not depend on h.
    """
    return _plain_steps(recurrent, bias, h, inputs) if plain() else _steps(recurrent, bias, h, inputs)


def _plain_steps(recurrent: Array, bias: Array, h: Array, inputs: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        _, z, n, _ = _gates(h, x, h @ recurrent, bias)
        h = n + z * (h - n)
        return h, h

    if len(inputs) == 1:
        return step(h, inputs[0])[1][None]
    return jax.lax.scan(step, h, inputs)[1]


def _gates(h: Array, x: Array, before: Array, bias: Array) -> tuple[Array, Array, Array, Array]:
    """Return r, z, n and h U_n + c, given x and h U."""
    H = h.shape[-1]
    opened = jax.nn.sigmoid(x[..., : 2 * H] + before[..., : 2 * H])
    shifted = before[..., 2 * H :] + bias
    r, z = opened[..., :H], opened[..., H:]
    return r, z, jnp.tanh(x[..., 2 * H :] + r * shifted), shifted


_steps = jax.custom_jvp(_plain_steps)


@_steps.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    """Differentiate: dh' = z ⊙ dh + Σ_gates K ⊙ (dh U) + q, where q and K are computed for all steps at once.

    JAX would add h dU, and backwards the outer product that becomes the gradient of U, step by step.
    """
    recurrent, bias, h, inputs = primals
    d_recurrent, d_bias, d_h, d_inputs = tangents
    features = _steps(recurrent, bias, h, inputs)
    C, L, H = features.shape
    earlier = jnp.concatenate([h[None], features[:-1]])
    rows = earlier.reshape(C * L, H)
    bias = bias[None]
    r, z, n, shifted = _gates(earlier, inputs, (rows @ recurrent).reshape(inputs.shape), bias)
    of_n = (1 - z) * (1 - n * n)
    of_gates = (of_n * shifted * r * (1 - r), (earlier - n) * z * (1 - z), of_n * r)  # with respect to h U
    moved = _in_gates(d_inputs)
    changed = _in_gates((rows @ d_recurrent).reshape(inputs.shape))
    q = of_gates[0] * (moved[0] + changed[0]) + of_gates[1] * (moved[1] + changed[1])
    q = q + of_n * moved[2] + of_gates[2] * (changed[2] + d_bias[None])
    factors = jnp.concatenate(of_gates, axis=-1)

    def step(d_h: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        z, factors, q = now
        d_h = z * d_h + sum(_in_gates(factors * (d_h @ recurrent))) + q
        return d_h, d_h

    return features, jax.lax.scan(step, d_h, (z, factors, q))[1]


def _in_gates(x: Float[Array, "... 3H"]) -> list[Float[Array, "... H"]]:
    return jnp.split(x, 3, axis=-1)
