"""Swimmer-v5: three links in a viscous fluid, seen from above, which swim by bending.

The reward is the forward velocity minus a cost of the action.
"""

import jax
import jax.numpy as jnp

from jaxbyz.environments.mujoco import forward, task
from jaxbyz.environments.mujoco.models import MODELS


def observe(params: forward.EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[8]`: three angles and five velocities; with the position (x, y) before them `[10]`."""
    first = 2 if params.exclude_current_positions_from_observation else 0
    return jnp.concatenate([state.qpos[first:], state.qvel])


TASK = task.MujocoTask(
    params=forward.EnvParams(ctrl_cost_weight=1e-4),
    model=lambda _: MODELS["Swimmer-v5"],
    initial_position=(0.0,) * 5,
    observe=observe,
    judge=forward.judge,
)
