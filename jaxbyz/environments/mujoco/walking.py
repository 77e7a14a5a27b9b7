"""What Hopper and Walker2d have in common: parameters, observation, and the reward for moving forward upright."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxbyz.environments.mujoco import forward, task
from jaxbyz.environments.mujoco.bodies import Model


@struct.dataclass
class EnvParams(forward.EnvParams):
    """Gymnasium's parameters.

    Points of the body that cannot touch the floor in healthy states are left out of the physics, unless
    `terminate_when_unhealthy` is False.
    """

    reset_noise_scale: Any = 5e-3
    ctrl_cost_weight: Any = 1e-3
    healthy_reward: Any = 1.0
    healthy_z_range: Any = (-jnp.inf, jnp.inf)
    healthy_angle_range: Any = (-jnp.inf, jnp.inf)
    terminate_when_unhealthy: bool = struct.field(pytree_node=False, default=True)


def model_for(model: Model, params: EnvParams) -> Model:
    """Return the model with the contact points that matter."""
    return model if params.terminate_when_unhealthy else model.with_every_point()


def observe(params: EnvParams, state: task.EnvState) -> jax.Array:
    """Return height and angles, and all velocities clipped to ±10; x first if it is not excluded."""
    first = 1 if params.exclude_current_positions_from_observation else 0
    return jnp.concatenate([state.qpos[first:], jnp.clip(state.qvel, -10.0, 10.0)])


def judge(params: EnvParams, outcome: task.StepOutcome, healthy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and whether the episode ends because the body is not healthy."""
    reward = forward.reward(params, outcome) + jnp.where(healthy, params.healthy_reward, 0.0)
    ended = ~healthy if params.terminate_when_unhealthy else task.never(outcome)
    return reward.astype(outcome.after.qpos.dtype), ended


def upright(params: EnvParams, qpos: jax.Array) -> jax.Array:
    """Return whether the height and the angle of the torso are in their healthy ranges."""
    (low, high), (left, right) = params.healthy_z_range, params.healthy_angle_range
    return (low < qpos[1]) & (qpos[1] < high) & (left < qpos[2]) & (qpos[2] < right)
