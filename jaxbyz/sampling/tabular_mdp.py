"""A small MDP whose return J and gradient ∇J are computed exactly, to compare estimates with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments import ActionSpace, Environment, OwnParams, Step
from jaxbyz.policies import Policy

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


def environment(limit: int | None = None) -> Environment:
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

    return Environment("tabular", STATES, ActionSpace(True, ACTIONS), reset, step, limit, params=nominal)


def policy() -> Policy:
    """Return the softmax policy of a table θ `[ACTIONS, STATES]`."""

    def apply(table: Array, observations: Array) -> Array:
        return jax.nn.log_softmax(table @ observations, axis=0)

    def sample(log_probs: Array, u: Array) -> Array:
        return (u[0] >= jnp.exp(log_probs[0])).astype(jnp.int32)

    def log_prob(log_probs: Array, action: Array) -> Array:
        return jnp.where(action == 0, log_probs[0], log_probs[1])

    return Policy(
        ACTIONS * STATES,
        lambda key: 0.5 * jax.random.normal(key, (ACTIONS * STATES,)),
        lambda vector: vector.reshape(ACTIONS, STATES),
        apply,
        lambda key, steps, lanes: jax.random.uniform(key, (steps, 1, lanes)),
        sample,
        log_prob,
    )


def value(
    theta: Float[Array, " D"], gamma: float = GAMMA, horizon: int = HORIZON, own: OwnParams | None = None
) -> Float[Array, ""]:
    """Return J(θ) in JAX, to be differentiated; `own` replaces tables of the MDP, as in `Environment.step`."""
    return _expected_return(jax.nn.softmax(theta.reshape(ACTIONS, STATES), axis=0).T, gamma, horizon, own)


def exact_return(theta: np.ndarray, gamma: float = GAMMA, horizon: int = HORIZON) -> float:
    """Return J(θ) in NumPy, with float64 precision."""
    logits = np.asarray(theta, np.float64).reshape(ACTIONS, STATES).T
    pi = np.exp(logits - logits.max(1, keepdims=True))
    return float(_expected_return(pi / pi.sum(1, keepdims=True), gamma, horizon))


def exact_gradient(theta: np.ndarray, gamma: float = GAMMA, horizon: int = HORIZON) -> np.ndarray:
    """Return ∇J(θ) by central differences of `exact_return`."""
    theta, gradient = np.asarray(theta, np.float64), np.zeros(len(theta))
    for i in range(len(theta)):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        difference = exact_return(theta + step, gamma, horizon) - exact_return(theta - step, gamma, horizon)
        gradient[i] = difference / 2e-5
    return gradient


def _expected_return(pi: Any, gamma: float, horizon: int, own: OwnParams | None = None) -> Any:
    """Return Σ_h γ^h E[r_h] for action probabilities π `[STATES, ACTIONS]`, propagating the state distribution.

    Works on NumPy and on JAX arrays.
    """
    tables = replace(Tables(TRANSITION, REWARD), **(own or {}))
    distribution, total = START, 0.0
    for h in range(horizon):
        joint = distribution[:, None] * pi
        total += gamma**h * (joint * tables.reward).sum()
        distribution = (joint.reshape(-1) @ tables.transition.reshape(-1, STATES + 1))[:STATES]
    return total
