"""Actions that are held for several steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.environments.base import Environment, Step
from jaxbyz.errors import UsageError


def hold_actions(environment: Environment, steps: int) -> Environment:
    """Return the environment in which every action is taken `steps` times, or until the episode ends.

    The reward of a held action is the sum of the rewards, so that returns stay the same; a policy with independent
    noise in every step explores further. The time limit counts actions: ⌈limit/steps⌉.

    Args:
        environment: the task.
        steps: for how many steps every action is held.

    Raises:
        UsageError: if `steps` is not a whole number of at least 1.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"env {environment.name}: hold={steps}: must be a whole number of at least 1")
    if steps == 1:
        return environment

    def step(key: PRNGKeyArray, state: Any, action: Array, *own: Any) -> Step:
        def once_more(i: Array, now: Step) -> Step:
            after = environment.step(jax.random.fold_in(key, i), now.state, action, *own)
            over = now.terminated | now.truncated
            after = after._replace(reward=now.reward + after.reward)
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), now, after)

        # The loop starts before the first step, with zeros that it replaces, so that the step is compiled once.
        shapes = jax.eval_shape(environment.step, key, state, action, *own)
        before = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)._replace(state=state)
        return jax.lax.fori_loop(0, steps, once_more, before)

    limit = None if environment.limit is None else -(-environment.limit // steps)
    return environment._replace(step=step, limit=limit)
