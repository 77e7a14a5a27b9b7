"""Hopper-v5: a torso on one leg, seen from the side, which hops.

The reward is the forward velocity plus 1 per healthy step minus a cost of the action. The episode ends when the body is
not healthy.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.environments.mujoco import task, walking
from jaxbyz.environments.mujoco.models import MODELS


@struct.dataclass
class EnvParams(walking.EnvParams):
    """Gymnasium's parameters."""

    healthy_z_range: Any = (0.7, float("inf"))
    healthy_angle_range: Any = (-0.2, 0.2)
    healthy_state_range: Any = (-100.0, 100.0)


def judge(params: EnvParams, outcome: task.StepOutcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and whether the hopper is not healthy."""
    low, high = params.healthy_state_range
    rest = jnp.concatenate([outcome.after.qpos[2:], outcome.after.qvel])
    bounded = ((low < rest) & (rest < high)).all(axis=0)
    return walking.judge(params, outcome, walking.upright(params, outcome.after.qpos) & bounded)


TASK = task.MujocoTask(
    params=EnvParams(),
    model=functools.partial(walking.model_for, MODELS["Hopper-v5"]),
    initial_position=(0.0, 1.25, 0.0, 0.0, 0.0, 0.0),
    observe=walking.observe,
    judge=judge,
)
