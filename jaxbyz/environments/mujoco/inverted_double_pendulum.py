"""InvertedDoublePendulum-v5: balance two poles, one on top of the other, on a cart.

The reward is 10 for every step in which the tip is higher than 1, minus 0.01 x² + (w − 2)² of the tip and
0.001 v₁² + 0.005 v₂² of the joints. MuJoCo measures the tip and the force of the cart's limit at the last evaluation of
the integrator, a little before the end of the step.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.mujoco import task
from jaxbyz.environments.mujoco.bodies import Joints, Model
from jaxbyz.environments.mujoco.constraints import limit_force, limit_rows
from jaxbyz.environments.mujoco.kinematics import Scales, directions
from jaxbyz.environments.mujoco.models import MODELS

POLE = 0.6  # the length of each pole
LOWEST_TIP = 1.0


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters."""

    reset_noise_scale: Any = 0.1
    healthy_reward: Any = 10.0


def measure(model: Model, scales: Scales, qpos: jax.Array, last: tuple[Joints, Joints, Joints | None]) -> jax.Array:
    """Return x and w of the tip, and the force of the cart's limit, `[3, L]`."""
    q, v, a = last
    _, (cos, sin), (cos2, sin2) = directions(model, q)
    x, w = q.slides - POLE * (sin + sin2), POLE * (cos + cos2)
    row = limit_rows(model, scales, q, v).slides
    force = jnp.zeros_like(x) if a is None else scales.mass * limit_force(row, a.slides)
    return jnp.concatenate([x, w, force])


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[9]`.

    It consists of the cart's position, the sines of both angles, their cosines, the three velocities and the force of
    the cart's limit. Velocities and force are clipped to ±10.
    """
    cos, sin = cos_sin(state.qpos[1:])
    clipped = jnp.clip(jnp.concatenate([state.qvel, state.measured[2:]]), -10.0, 10.0)
    return jnp.concatenate([state.qpos[:1], sin, cos, clipped])


def judge(params: EnvParams, outcome: task.StepOutcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward and whether the tip is too low."""
    (x, w, _), (_, v1, v2) = outcome.after.measured, outcome.after.qvel
    fallen = ~(w > LOWEST_TIP)
    alive = jnp.where(fallen, 0.0, params.healthy_reward)
    reward = alive - 0.01 * x * x - (w - 2) * (w - 2) - 1e-3 * v1 * v1 - 5e-3 * v2 * v2
    return reward.astype(x.dtype), fallen


TASK = task.MujocoTask(
    params=EnvParams(),
    model=lambda _: MODELS["InvertedDoublePendulum-v5"],
    initial_position=(0.0, 0.0, 0.0),
    observe=observe,
    judge=judge,
    draw=task.normal_start,
    measure=measure,
)
