"""Reacher-v5: an arm with two joints, seen from above, whose fingertip shall reach a target.

The reward is minus the distance between fingertip and target, minus a cost of the action. MuJoCo measures the distance
at the last evaluation of the integrator, a little before the end of the step. The last two entries of qpos and qvel are
the target's, which keeps its velocity (0).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.mujoco import task
from jaxbyz.environments.mujoco.bodies import Joints, Model
from jaxbyz.environments.mujoco.kinematics import Scales, directions
from jaxbyz.environments.mujoco.models import MODELS

UPPER_ARM, FOREARM = 0.1, 0.11
FARTHEST_TARGET = 0.2


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters; it has no parameter for the noise of the joint angles, 0.1, and velocities, 0.005."""

    max_steps_in_episode: Any = 50
    reset_noise_scale: Any = 0.1
    reward_dist_weight: Any = 1.0
    reward_control_weight: Any = 1.0


def measure(model: Model, scales: Scales, qpos: jax.Array, last: tuple[Joints, Joints, Joints | None]) -> jax.Array:
    """Return the vector from the target to the fingertip, `[2, L]`."""
    (cos, sin), (cos2, sin2) = directions(model, last[0])
    fingertip = jnp.concatenate([UPPER_ARM * cos + FOREARM * cos2, UPPER_ARM * sin + FOREARM * sin2])
    return fingertip - qpos[2:]


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[10]`.

    It consists of the cosines of both angles, their sines, the target, the arm's velocities, and the vector from the
    target to the fingertip.
    """
    cos, sin = cos_sin(state.qpos[:2])
    return jnp.concatenate([cos, sin, state.qpos[2:], state.qvel[:2], state.measured])


def judge(params: EnvParams, outcome: task.StepOutcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and that the episode goes on."""
    x, y = outcome.after.measured
    effort = (outcome.action * outcome.action).sum(axis=0)
    reward = -params.reward_dist_weight * jnp.sqrt(x * x + y * y) - params.reward_control_weight * effort
    return reward.astype(x.dtype), task.never(outcome)


def draw(_: tuple[float, ...], params: EnvParams, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return an initial state whose target is uniform on a disc."""
    keys = jax.random.split(key, 3)
    u = jax.random.uniform(keys[1], (2,), float)
    cos, sin = cos_sin(2 * jnp.pi * u[1:])
    target = FARTHEST_TARGET * jnp.sqrt(u[:1]) * jnp.concatenate([cos, sin])
    arm, speed = task.uniform(keys[0], 2, params.reset_noise_scale), task.uniform(keys[2], 2, 0.005)
    return jnp.concatenate([arm, target]), jnp.concatenate([speed, jnp.zeros(2, float)])


TASK = task.MujocoTask(
    params=EnvParams(),
    model=lambda _: MODELS["Reacher-v5"],
    initial_position=(0.0, 0.0, 0.1, -0.1),
    observe=observe,
    judge=judge,
    draw=draw,
    measure=measure,
)
