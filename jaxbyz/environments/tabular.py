"""A small MDP with three states and two actions, whose return `jaxbyz.sampling.tabular_mdp` computes exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.environments.base import ActionSpace, Environment, OwnParams, Step
from jaxbyz.environments.catalogue import environments

STATES, ACTIONS, HORIZON, GAMMA = 3, 2, 5, 0.9
_rng = np.random.default_rng(3)
# P[s, a, s']. The last entry is the absorbing end, so that episodes have different lengths.
TRANSITION = _rng.dirichlet(np.ones(STATES + 1), size=(STATES, ACTIONS))
REWARD = _rng.uniform(-1, 2, size=(STATES, ACTIONS))
START = np.array([0.5, 0.3, 0.2])


@dataclass(frozen=True)
class Tables:
    """The parameters of the MDP: P(s' | s, a), `[S, A, S + 1]`, and r(s, a), `[S, A]`."""

    transition: Any
    reward: Any


def tabular_mdp(limit: int | None = None) -> Environment:
    """Return the MDP as an environment with states (s, t) and an optional time limit."""
    nominal = Tables(jnp.asarray(TRANSITION, jnp.float32), jnp.asarray(REWARD, jnp.float32))

    def observe(s: Array) -> Array:
        return jax.nn.one_hot(s, STATES)

    def reset(key: PRNGKeyArray, own: OwnParams | None = None) -> tuple[Array, tuple[Array, Array]]:
        s = jax.random.choice(key, STATES, p=jnp.asarray(START, jnp.float32))
        return observe(s), (s, jnp.int32(0))

    def step(key: PRNGKeyArray, state: tuple[Array, Array], action: Array, own: OwnParams | None = None) -> Step:
        s, t = state
        tables = replace(nominal, **(own or {}))
        following = jax.random.choice(key, STATES + 1, p=tables.transition[s, action])
        over = jnp.bool_(False) if limit is None else t + 1 >= limit
        s_next = jnp.minimum(following, STATES - 1)
        return Step(observe(s_next), (s_next, t + 1), tables.reward[s, action], following == STATES, over)

    return Environment("TabularMDP", STATES, ActionSpace(True, ACTIONS), reset, step, limit, params=nominal)


environments.add(
    "TabularMDP", tabular_mdp, "three states, two actions, five steps; return and gradient are known exactly"
)
