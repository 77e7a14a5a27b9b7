"""A learnt policy that plays: it remembers what it has seen in the running episodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.policies import initial_carry
from jaxbyz.trained.acting import TrainedTask


class Player:
    """Acts in one episode, or in several side by side.

    Call it with one observation per step, or with many along leading axes, one per episode. Policies without a memory
    can be used in the same way.

    Args:
        task: environment and policy.
        theta: `[D]`, the parameters.
    """

    def __init__(self, task: TrainedTask, theta: Float[np.ndarray, " D"]) -> None:
        self._task, self._theta = task, jnp.asarray(theta)
        self.reset()

    def reset(self, over: np.ndarray | None = None) -> None:
        """Forget what was seen: call it when an episode ends.

        Args:
            over: which of several episodes have ended; by default all of them.
        """
        if over is None:
            self._carry: Any = None
        elif self._carry is not None:
            ended = jnp.ravel(jnp.asarray(over))
            first = initial_carry(self._task.policy, ended.size)
            self._carry = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(ended, a, b), first, self._carry)

    def __call__(self, observation: Any, key: PRNGKeyArray | None = None) -> Any:
        """Return the next action, or one per episode, as `run.act` does for a policy without a memory.

        Args:
            observation: in the environment's shape or flat, or many of them along leading axes.
            key: draws the action; without it, the action is the most likely one.
        """
        seen = np.asarray(observation, np.float32)
        episodes = seen.size // self._task.environment.observation_size
        carry = initial_carry(self._task.policy, episodes) if self._carry is None else self._carry
        if any(len(leaf) != episodes for leaf in jax.tree.leaves(carry)):
            before = len(jax.tree.leaves(carry)[0])
            raise UsageError(
                f"observation of shape {list(seen.shape)}: the player is in {before} episode(s) side by side; call "
                "reset() before it starts others"
            )
        self._carry, action = self._task.act_with_memory(self._theta, carry, seen, key)
        return as_gymnasium(self._task, action)


def as_gymnasium(task: TrainedTask, action: Array) -> Any:
    """Return an int for one discrete action, otherwise a NumPy array."""
    plain = np.asarray(action)
    return int(plain) if plain.ndim == 0 and task.environment.actions.discrete else plain
