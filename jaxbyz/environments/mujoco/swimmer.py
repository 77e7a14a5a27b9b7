"""Swimmer-v5: three links in a viscous fluid, seen from above, which swim by bending.

The reward is the forward velocity minus a cost of the action.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.environments.mujoco import task
from jaxbyz.environments.mujoco.tables import SWIMMER


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters."""

    reset_noise_scale: Any = 0.1
    forward_reward_weight: Any = 1.0
    ctrl_cost_weight: Any = 1e-4
    exclude_current_positions_from_observation: bool = struct.field(pytree_node=False, default=True)


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[8]`: three angles and five velocities; with the position (x, y) before them `[10]`."""
    first = 2 if params.exclude_current_positions_from_observation else 0
    return jnp.concatenate([state.qpos[first:], state.qvel])


def judge(params: EnvParams, outcome: task.Outcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and that the episode goes on."""
    return task.forward_reward(params, outcome), task.never(outcome)


START = (0.0,) * 5
TASK = task.Task(lambda _: SWIMMER, START, observe, judge, functools.partial(task.uniform_start, START))

initial_state = functools.partial(task.initial_state, TASK)
transition = functools.partial(task.transition, TASK)
default_params = EnvParams()


class Swimmer(task.MujocoEnvironment):
    """The swimmer as a gymnax environment."""

    task = TASK
    params = default_params
