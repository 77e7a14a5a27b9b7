"""Mimic: all Byzantine agents repeat one honest agent, whose data then counts f + 1 times."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.attacks.base import Attack, MessageKind, View, same_row
from jaxbyz.attacks.honest_statistics import honest_deviations


def mimic(*, target: int = 0, on: MessageKind = "both") -> Attack:
    """Every Byzantine agent repeats one honest agent: m = x_i.

    Args:
        target: the position of that agent among the honest ones.

    References:
        Karimireddy et al., Byzantine-robust learning on heterogeneous datasets via bucketing, 2022.
    """

    def row(view: View) -> Array:
        honest = ~view.mask
        position = jnp.minimum(target, jnp.maximum(jnp.sum(honest) - 1, 0))
        chosen = jnp.argmax((jnp.cumsum(honest) - 1 == position) & honest)
        return view.messages[chosen]

    return same_row(row, on)


class SpreadMemory(NamedTuple):
    """What mimic with warm-up remembers.

    Attributes:
        direction: `[D]`, the estimate z of the direction along which honest messages spread most.
        projections: `[K]`, Σ_t ⟨z, x_i − μ⟩.
        iterations: `[]`, the number of gradient messages per agent so far, one per iteration unless a batch is used
            several times.
    """

    direction: Float[Array, " D"]
    projections: Float[Array, " K"]
    iterations: Int[Array, ""]


def mimic_warmup(*, warmup: int = 10, on: MessageKind = "both") -> Attack:
    """Repeat the honest agent that is farthest along the direction of largest honest spread, learnt during training.

    At every gradient message, with d_i = x_i − μ and w = Σ_i d_i ⟨d_i, z⟩ (one step of power iteration):
    z ← t/(t+1)·z + 1/(t+1)·w/‖w‖ and a_i ← a_i + ⟨z, d_i⟩.

    Args:
        warmup: after this many messages per agent all repeat argmax_i |a_i|, until then the first honest agent.

    References:
        Karimireddy et al., Byzantine-robust learning on heterogeneous datasets via bucketing, 2022.
    """

    def init(K: int, D: int) -> SpreadMemory:
        # Alternating signs are unlikely to be orthogonal to the spread of real messages.
        start = jnp.where(jnp.arange(D) % 2 == 0, 1.0, -1.0) / jnp.sqrt(1.0 * D)
        return SpreadMemory(start, jnp.zeros(K), jnp.int32(0))

    def remember(view: View) -> SpreadMemory:
        old: SpreadMemory = view.memory
        deviations = honest_deviations(view.messages, view.mask)
        w = (deviations @ old.direction) @ deviations
        norm = jnp.linalg.norm(w)
        unit_w = jnp.where(norm > 0, w / jnp.where(norm > 0, norm, 1.0), old.direction)
        t = old.iterations.astype(w.dtype)
        direction = jnp.where(old.iterations == 0, unit_w, (t * old.direction + unit_w) / (t + 1.0))
        return SpreadMemory(direction, old.projections + deviations @ direction, old.iterations + 1)

    def row(view: View) -> Array:
        farthest = jnp.argmax(jnp.where(view.mask, -1.0, jnp.abs(view.memory.projections)))
        chosen = jnp.where(view.memory.iterations >= warmup, farthest, jnp.argmin(view.mask))
        return view.messages[chosen]

    return same_row(row, on, init=init, remember=remember)
