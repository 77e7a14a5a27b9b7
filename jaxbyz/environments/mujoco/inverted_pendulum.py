"""InvertedPendulum-v5: balance a pole on a cart.

The reward is 1 per step until the pole has tilted by more than 0.2 rad.
"""

import functools

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.environments.mujoco import task
from jaxbyz.environments.mujoco.tables import INVERTED_PENDULUM

LARGEST_TILT = 0.2


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters."""

    reset_noise_scale: float = 0.01


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[4]`: position of the cart, angle of the pole, and their velocities."""
    return jnp.concatenate([state.qpos, state.qvel])


def judge(params: EnvParams, outcome: task.Outcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward and whether the pole has fallen."""
    fallen = ~(jnp.abs(outcome.after.qpos[1]) <= LARGEST_TILT)
    return jnp.where(fallen, 0.0, 1.0).astype(outcome.after.qpos.dtype), fallen


START = (0.0, 0.0)
TASK = task.Task(lambda _: INVERTED_PENDULUM, START, observe, judge, functools.partial(task.uniform_start, START))

initial_state = functools.partial(task.initial_state, TASK)
transition = functools.partial(task.transition, TASK)
default_params = EnvParams()


class InvertedPendulum(task.MujocoEnvironment):
    """A pole on a cart as a gymnax environment."""

    task = TASK
    params = default_params
