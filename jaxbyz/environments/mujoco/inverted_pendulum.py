"""InvertedPendulum-v5: balance a pole on a cart.

The reward is 1 per step until the pole has tilted by more than 0.2 rad.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.environments.mujoco import task
from jaxbyz.environments.mujoco.models import MODELS

LARGEST_TILT = 0.2


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters."""

    reset_noise_scale: float = 0.01


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[4]`: position of the cart, angle of the pole, and their velocities."""
    return jnp.concatenate([state.qpos, state.qvel])


def judge(params: EnvParams, outcome: task.StepOutcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward and whether the pole has fallen."""
    fallen = ~(jnp.abs(outcome.after.qpos[1]) <= LARGEST_TILT)
    return jnp.where(fallen, 0.0, 1.0).astype(outcome.after.qpos.dtype), fallen


TASK = task.MujocoTask(
    params=EnvParams(),
    model=lambda _: MODELS["InvertedPendulum-v5"],
    initial_position=(0.0, 0.0),
    observe=observe,
    judge=judge,
)
