"""The only optimiser of attacks: climbers that follow proposals through a rule and accept only improvements.

The gradient-found attack and the certifier both use it. Rules that select messages (Krum, MDA) have a gradient only on
the selected rows and jump where the selection changes. Plain gradient ascent fails there; accepting only improvements,
with a step length that adapts, searches up to the edge of the jump.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Climber(NamedTuple):
    """The state of one climber.

    Attributes:
        point: the best point so far, of any shape.
        value: `[]`, its value.
        slope: the gradient there, zero where it is not finite.
        step: `[]`, the length of the next step.
    """

    point: Array
    value: Float[Array, ""]
    slope: Array
    step: Float[Array, ""]


class StepLength(NamedTuple):
    """How the step length adapts: it starts at `first`, and starts again there once it is below `least`."""

    first: float = 1.0
    grow: float = 1.5
    shrink: float = 0.7
    least: float = 1e-3
    most: float = math.inf


DEFAULT_STEP = StepLength()
Objective = Callable[[Array, Any], Array]  # (point, context) -> value []
Propose = Callable[[Int[Array, ""], Climber, Any], Array]  # (step number, climber, random draws) -> point


def ascend(
    objective: Objective,
    propose: Propose,
    starts: Array,
    draws: Any,
    contexts: Any = (),
    length: StepLength = DEFAULT_STEP,
) -> Climber:
    """Let one climber per start look for larger values of the objective.

    The first step only evaluates the start, so that the objective is compiled once.

    Args:
        objective: what to maximise; a value that is NaN counts as −∞.
        propose: the point to try next.
        starts: `[C, ...]`, one point per climber.
        draws: tree of arrays `[C, steps, ...]`; `propose` gets those of its climber and step.
        contexts: tree of arrays `[C, ...]`, what the objective needs to know besides the point.
        length: how the step length adapts.

    Returns:
        The climbers, with a leading dimension C; none is below the value of its start.
    """
    steps = jax.tree.leaves(draws)[0].shape[1]

    def climb(start: Array, draws: Any, context: Any) -> Climber:
        def step(i: Array, now: Climber) -> Climber:
            draw = jax.tree.map(lambda leaf: leaf[i], draws)
            proposal = jnp.where(i > 0, propose(i, now, draw), now.point)
            value, slope = jax.value_and_grad(objective)(proposal, context)
            value = jnp.where(jnp.isnan(value), -jnp.inf, value)
            slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
            better = (value > now.value) | (i == 0)
            following = jnp.minimum(now.step * jnp.where(better, length.grow, length.shrink), length.most)
            following = jnp.where((following < length.least) | (i == 0), length.first, following)
            point, value, slope = jax.tree.map(
                lambda new, old: jnp.where(better, new, old), (proposal, value, slope), now[:3]
            )
            return Climber(point, value, slope, following)

        one = jnp.ones((), start.dtype)
        return jax.lax.fori_loop(0, steps, step, Climber(start, -jnp.inf * one, jnp.zeros_like(start), one))

    return jax.vmap(climb)(starts, draws, contexts)
