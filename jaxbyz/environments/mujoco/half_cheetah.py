"""HalfCheetah-v5: a torso with a hind leg and a front leg, seen from the side, which runs.

The reward is the forward velocity minus a cost of the action.
"""

import jax
import jax.numpy as jnp

from jaxbyz.environments.mujoco import forward, task
from jaxbyz.environments.mujoco.models import MODELS


def observe(params: forward.EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[17]`: height, eight angles and nine velocities; with x before them `[18]`."""
    first = 1 if params.exclude_current_positions_from_observation else 0
    return jnp.concatenate([state.qpos[first:], state.qvel])


TASK = task.MujocoTask(
    params=forward.EnvParams(),
    model=lambda _: MODELS["HalfCheetah-v5"],
    initial_position=(0.0,) * 9,
    observe=observe,
    judge=forward.judge,
    draw=task.normal_start,
)
