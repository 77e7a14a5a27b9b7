"""A tiny MDP whose J and ∇J are computed exactly, with an environment and a policy to hold estimates against them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments.gymnax_adapter import ActionSpace, Environment, Step
from jaxbyz.policies import Policy

STATES, ACTIONS, HORIZON, GAMMA = 3, 2, 5, 0.9
_rng = np.random.default_rng(3)
# P[s, a, s']; the last column is the absorbing end, reached with some probability: episodes differ in length.
TRANSITION = _rng.dirichlet(np.ones(STATES + 1), size=(STATES, ACTIONS))
REWARD = _rng.uniform(-1, 2, size=(STATES, ACTIONS))
START = np.array([0.5, 0.3, 0.2])


def environment(limit: int | None = None) -> Environment:
    """State: (s, t). Ends by reaching the absorbing state, or after `limit` steps."""
    transition, reward = jnp.asarray(TRANSITION, jnp.float32), jnp.asarray(REWARD, jnp.float32)

    def observe(s: Array) -> Array:
        return jax.nn.one_hot(s, STATES)

    def reset(key: PRNGKeyArray) -> tuple[Array, tuple[Array, Array]]:
        s = jax.random.choice(key, STATES, p=jnp.asarray(START, jnp.float32))
        return observe(s), (s, jnp.int32(0))

    def step(key: PRNGKeyArray, state: tuple[Array, Array], action: Array) -> Step:
        s, t = state
        following = jax.random.choice(key, STATES + 1, p=transition[s, action])
        over = jnp.bool_(False) if limit is None else t + 1 >= limit
        s_next = jnp.minimum(following, STATES - 1)
        return Step(observe(s_next), (s_next, t + 1), reward[s, action], following == STATES, over)

    return Environment("tabular", STATES, ActionSpace(True, ACTIONS), reset, step, limit)


def policy() -> Policy:
    """Softmax of a table θ [ACTIONS, STATES]."""

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


def value(theta: Float[Array, " D"], gamma: float = GAMMA, horizon: int = HORIZON) -> Float[Array, ""]:
    """J(θ) = Σ_h γ^h E[r_h] by forward propagation of the state distribution; differentiable."""
    pi = jax.nn.softmax(theta.reshape(ACTIONS, STATES), axis=0).T
    distribution, total = jnp.asarray(START), jnp.zeros(())
    for h in range(horizon):
        joint = distribution[:, None] * pi
        total += gamma**h * jnp.sum(joint * REWARD)
        distribution = jnp.einsum("sa,sat->t", joint, jnp.asarray(TRANSITION))[:STATES]
    return total


def exact_return(theta: np.ndarray, gamma: float = GAMMA, horizon: int = HORIZON) -> float:
    """J(θ) again, by NumPy in float64."""
    logits = np.asarray(theta, np.float64).reshape(ACTIONS, STATES).T
    pi = np.exp(logits - logits.max(1, keepdims=True))
    pi /= pi.sum(1, keepdims=True)
    distribution, total = START.copy(), 0.0
    for h in range(horizon):
        joint = distribution[:, None] * pi
        total += gamma**h * np.sum(joint * REWARD)
        distribution = np.einsum("sa,sat->t", joint, TRANSITION)[:STATES]
    return total


def exact_gradient(theta: np.ndarray, **options: Any) -> np.ndarray:
    """∇J(θ) by central differences of the exact J in float64."""
    theta, gradient = np.asarray(theta, np.float64), np.zeros(len(theta))
    for i in range(len(theta)):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        gradient[i] = (exact_return(theta + step, **options) - exact_return(theta - step, **options)) / 2e-5
    return gradient
