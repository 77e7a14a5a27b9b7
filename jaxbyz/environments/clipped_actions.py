"""Actions that are clipped to their bounds."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.environments.base import Environment, Step
from jaxbyz.errors import UsageError


def clip_actions(environment: Environment, clip: bool = True) -> Environment:
    """Return the environment with every action clipped to its bounds, so that rewards charge the clipped action.

    Policies still see the action as it was drawn, whose log-probability they compute.

    Args:
        environment: the task.
        clip: False returns the environment unchanged.

    Raises:
        UsageError: if `clip` is not a truth value, or actions are discrete.
    """
    if not isinstance(clip, bool):
        raise UsageError(f"env {environment.name}: clip={clip}: must be true or false")
    if not clip:
        return environment
    if environment.actions.discrete:
        raise UsageError(f"env {environment.name}: clip=true: must be false with discrete actions")
    shape, low, high = environment.actions.shape, environment.actions.low, environment.actions.high

    def step(key: PRNGKeyArray, state: Any, action: Array, *own: Any) -> Step:
        return environment.step(key, state, jnp.clip(action.reshape(shape), low, high), *own)

    return environment._replace(step=step)
