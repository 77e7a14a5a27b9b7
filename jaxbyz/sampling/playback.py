"""Play one episode and keep every state, for drawing it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments import Environment, check_episodes, end_episodes
from jaxbyz.policies import Policy, initial_carry, respond


class Playback(NamedTuple):
    """One episode of T steps as NumPy arrays.

    Attributes:
        states: leaves `[T, …]`, the state after each action.
        actions: `[T, …]`.
        rewards: `[T]`.
        observations: `[T, O]`, what the policy sees after each action.
    """

    states: Any
    actions: np.ndarray
    rewards: np.ndarray
    observations: np.ndarray


def play(
    environment: Environment, policy: Policy, parameters: Float[Array, " D"], key: PRNGKeyArray, horizon: int
) -> Playback:
    """Run one episode of a policy, for at most `horizon` steps."""
    tree = policy.unravel(parameters)
    discrete = environment.actions.discrete

    def step(now: tuple[Array, Any, Any, Array], key: PRNGKeyArray) -> tuple[Any, Any]:
        observation, state, carry, alive = now
        key_act, key_step = jax.random.split(key)
        carry, distribution = respond(policy, tree, carry, observation[:, None])
        action = policy.sample(distribution, policy.noise(key_act, 1, 1)[0])
        action = action[0] if discrete else action[:, 0]
        after = environment.step(key_step, state, action)
        record = (after.state, action, after.reward, after.observation, alive)
        return (after.observation, after.state, carry, alive & ~(after.terminated | after.truncated)), record

    @jax.jit
    def run(key: PRNGKeyArray) -> tuple[Any, ...]:
        key_reset, key_steps = jax.random.split(key)
        observation, state = environment.reset(key_reset)
        start = (observation, state, initial_carry(policy, 1), jnp.bool_(True))
        (_, state, _, _), record = jax.lax.scan(step, start, jax.random.split(key_steps, horizon))
        end_episodes(environment, jax.tree.map(lambda leaf: leaf[None, ..., None], state))
        return record

    *record, alive = jax.tree.map(np.asarray, run(key))
    check_episodes(environment)
    length = int(alive.sum())
    return Playback(*jax.tree.map(lambda leaf: leaf[:length], record))
