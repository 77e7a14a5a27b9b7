"""HalfCheetah-v5: a torso with a hind leg and a front leg, seen from the side, which runs.

The reward is the forward velocity minus a cost of the action.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.environments.mujoco import task
from jaxbyz.environments.mujoco.tables import HALF_CHEETAH


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters."""

    reset_noise_scale: Any = 0.1
    forward_reward_weight: Any = 1.0
    ctrl_cost_weight: Any = 0.1
    exclude_current_positions_from_observation: bool = struct.field(pytree_node=False, default=True)


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return the observation `[17]`: height, eight angles and nine velocities; with x before them `[18]`."""
    first = 1 if params.exclude_current_positions_from_observation else 0
    return jnp.concatenate([state.qpos[first:], state.qvel])


def judge(params: EnvParams, outcome: task.Outcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and that the episode goes on."""
    return task.forward_reward(params, outcome), task.never(outcome)


START = (0.0,) * 9
TASK = task.Task(lambda _: HALF_CHEETAH, START, observe, judge, functools.partial(task.normal_start, START))

initial_state = functools.partial(task.initial_state, TASK)
transition = functools.partial(task.transition, TASK)
default_params = EnvParams()


class HalfCheetah(task.MujocoEnvironment):
    """The half cheetah as a gymnax environment."""

    task = TASK
    params = default_params
