"""What the tasks that reward moving forward have in common: parameters, and the reward minus the cost of the action."""

from typing import Any

import jax
from flax import struct

from jaxbyz.environments.mujoco import task


@struct.dataclass
class EnvParams(task.EnvParams):
    """Gymnasium's parameters."""

    reset_noise_scale: Any = 0.1
    forward_reward_weight: Any = 1.0
    ctrl_cost_weight: Any = 0.1
    exclude_current_positions_from_observation: bool = struct.field(pytree_node=False, default=True)


def reward(params: EnvParams, outcome: task.StepOutcome) -> jax.Array:
    """Return the weighted forward velocity minus the cost of the action."""
    effort = (outcome.action * outcome.action).sum(axis=0)
    total = params.forward_reward_weight * outcome.forward - params.ctrl_cost_weight * effort
    return total.astype(outcome.forward.dtype)


def judge(params: EnvParams, outcome: task.StepOutcome) -> tuple[jax.Array, jax.Array]:
    """Return the reward, and that the episode goes on."""
    return reward(params, outcome), task.never(outcome)
