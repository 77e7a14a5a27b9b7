"""Observations with mean 0 and deviation 1, with scales that no agent can influence.

The scales come from a sample that all agents have in common: episodes with random actions in the nominal environment,
from a key that everybody knows. Every agent computes them by itself before training and nothing is sent, so that a
Byzantine agent cannot shift them. They never change, so a policy means the same in every iteration, in an evaluation
and in an exported file, which contains them. On another kind of processor they are computed again, and where random
episodes are chaotic, as in HalfCheetah, other rounding changes them by about a percent.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.environments.base import Environment, Step, check_episodes, end_episodes
from jaxbyz.errors import UsageError

COMMON_KEY = 0
EPISODES, STEPS = 64, 500  # of the common sample
LARGEST = 10.0  # scaled observations are clipped to ± this
SMALLEST_DEVIATION = 1e-3  # relative to the largest observation of a coordinate; smaller ones count as constant


def scale_observations(environment: Environment, scale: bool = True) -> Environment:
    """Return the environment with observations (o − mean)/deviation of the common sample, clipped to ±10.

    A coordinate that does not vary in the sample is only shifted.

    Args:
        environment: the task.
        scale: False returns the environment unchanged.

    Raises:
        UsageError: if `scale` is not a truth value.
    """
    if not isinstance(scale, bool):
        raise UsageError(f"env {environment.name}: scale={scale}: must be true or false")
    if not scale:
        return environment
    if environment.scales is not None:
        raise UsageError(f"env {environment.name}: scale=true: its observations are scaled already")
    return scale_with(environment, common_scales(environment))


def scale_with(environment: Environment, scales: tuple[Any, Any]) -> Environment:
    """Return the environment with observations (o − mean)/deviation of these scales, clipped to ±10."""

    def scaled(observation: Float[Array, " O"]) -> Float[Array, " O"]:
        return scale_by(scales, observation)

    def reset(key: PRNGKeyArray, *own: Any) -> tuple[Array, Any]:
        observation, state = environment.reset(key, *own)
        return scaled(observation), state

    def step(key: PRNGKeyArray, state: Any, action: Array, *own: Any) -> Step:
        after = environment.step(key, state, action, *own)
        return after._replace(observation=scaled(after.observation))

    return environment._replace(reset=reset, step=step, scales=scales)


def scale_by(scales: tuple[Any, Any], observation: Float[Array, "... O"]) -> Float[Array, "... O"]:
    """Return (observation − mean)/deviation, clipped to ±10."""
    shape = (1,) * (observation.ndim - 1) + (-1,)
    mean, deviation = (jnp.reshape(jnp.asarray(scale), shape) for scale in scales)
    return jnp.clip((observation - mean) / deviation, -LARGEST, LARGEST)


def common_scales(environment: Environment) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the deviation of every coordinate over the common sample, `[O]` each."""
    with jax.numpy_rank_promotion("allow"):  # gymnax's own code
        observations, alive = (np.asarray(x) for x in _common_sample(environment))
    check_episodes(environment)
    seen = observations[alive].astype(np.float64)
    mean, deviation = seen.mean(axis=0), seen.std(axis=0)
    constant = deviation <= SMALLEST_DEVIATION * np.abs(seen).max(axis=0)
    return mean.astype(np.float32), np.where(constant, 1.0, deviation).astype(np.float32)


def _common_sample(environment: Environment) -> tuple[Float[Array, "E T O"], Bool[Array, "E T"]]:
    """Return the observations of episodes with random actions, and which of them belong to running episodes."""
    actions, steps = environment.actions, min(STEPS, environment.limit or STEPS)

    def one_step(carry: tuple[Any, Array, Array], key: PRNGKeyArray) -> tuple[Any, tuple[Array, Array]]:
        state, observation, alive = carry
        key_action, key_step = jax.random.split(key)
        template = jnp.int32(0) if actions.discrete else jnp.zeros(actions.shape)
        action = actions.uniform_action(jax.random.uniform(key_action, (actions.draws,)), template)
        after = environment.step(key_step, state, action)
        following = (after.state, after.observation, alive & ~(after.terminated | after.truncated))
        return following, (observation, alive)

    @jax.jit
    def sample(keys: PRNGKeyArray) -> tuple[Array, Array]:
        def episode(key: PRNGKeyArray) -> tuple[Any, tuple[Array, Array]]:
            key_reset, key_steps = jax.random.split(key)
            observation, state = environment.reset(key_reset)
            start = (state, observation, jnp.bool_(True))
            (state, _, _), sampled = jax.lax.scan(one_step, start, jax.random.split(key_steps, steps))
            return jax.tree.map(lambda leaf: leaf[None], state), sampled

        states, sampled = jax.vmap(episode, out_axes=(-1, 0))(keys)
        end_episodes(environment, states)
        return sampled

    return sample(jax.random.split(jax.random.key(COMMON_KEY), EPISODES))
