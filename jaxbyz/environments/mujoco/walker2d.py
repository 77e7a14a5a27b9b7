"""Walker2d-v5: a torso on two legs, seen from the side, which walks.

The reward is the forward velocity plus 1 per healthy step minus a cost of the action. The episode ends when the body is
not healthy.
"""

import functools
from typing import Any

import jax
from flax import struct

from jaxbyz.environments.mujoco import task, walking
from jaxbyz.environments.mujoco.models import MODELS


@struct.dataclass
class EnvParams(walking.EnvParams):
    """Gymnasium's parameters."""

    healthy_z_range: Any = (0.8, 2.0)
    healthy_angle_range: Any = (-1.0, 1.0)


def judge(params: EnvParams, outcome: task.StepOutcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and whether the walker is not healthy."""
    return walking.judge(params, outcome, walking.upright(params, outcome.after.qpos))


TASK = task.MujocoTask(
    params=EnvParams(),
    model=functools.partial(walking.model_for, MODELS["Walker2d-v5"]),
    initial_position=(0.0, 1.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    observe=walking.observe,
    judge=judge,
)
