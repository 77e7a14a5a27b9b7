"""Scales of observations that follow the policy, and that no agent can influence.

Before an agent samples in iteration t, it plays episodes of the nominal environment with its parameters θ_t and random
keys that everybody knows, and moves the scales among its parameters towards the moments of their observations. Nothing
is sent for this. Honest agents that hold equal parameters find equal scales, and Byzantine agents act on them only
through θ_t, on which agents agree. Aggregates do not move the scales.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.algorithms.agents import Agents
from jaxbyz.algorithms.base import State
from jaxbyz.environments import Environment
from jaxbyz.environments.observation_scaling import COMMON_KEY
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.sampling.page import Drawn
from jaxbyz.sampling.rollout import collect

EPISODES = 2  # per iteration


def with_followed_scales(agents: Agents, environment: Environment, policy: Policy, horizon: int) -> Agents:
    """Let agents follow the observations of their policy, if it has scales among its parameters."""
    if policy.follow is None:
        return agents
    follow = jax.vmap(policy.follow)

    def sample(now: Iteration, state: State) -> tuple[Drawn, State]:
        theta = state.parameters
        key = jax.random.fold_in(jax.random.key(COMMON_KEY), now.step)
        keys = jnp.broadcast_to(key, theta.shape[:1])
        episodes = collect(environment, policy, theta, keys, EPISODES, horizon)
        alive = episodes.alive[:, :, None]  # [n, A, 1, C, M]
        count = jnp.maximum(jnp.sum(alive, axis=(0, 3, 4)), 1)
        mean = jnp.sum(episodes.observations, axis=(0, 3, 4)) / count
        centred = jnp.where(alive, episodes.observations - mean[None, :, :, None, None], 0.0)
        variance = jnp.sum(centred * centred, axis=(0, 3, 4)) / count
        return agents.sample(now, state._replace(parameters=follow(theta, mean, variance)))

    def optimise(now: Iteration, state: State, v: Array, own: Array) -> State:
        trained = jnp.arange(policy.size) < policy.size - policy.untrained
        return agents.optimise(now, state, jnp.where(trained[None], v, 0.0), own)

    return agents._replace(sample=sample, optimise=optimise)


def refuse_followed_scales(policy: Policy) -> None:
    """Refuse scales that follow the policy where a server holds the parameters.

    Raises:
        UsageError: if the policy has them.
    """
    if policy.follow is not None:
        raise UsageError("policy=followed: a server holds the parameters; use an algorithm in which agents hold them")
