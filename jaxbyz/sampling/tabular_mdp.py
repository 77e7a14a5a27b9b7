"""A small MDP whose return J and gradient ∇J are computed exactly, to compare estimates with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbyz.environments import OwnParams
from jaxbyz.environments.tabular import ACTIONS, GAMMA, HORIZON, REWARD, START, STATES, TRANSITION, Tables
from jaxbyz.environments.tabular import tabular_mdp as environment
from jaxbyz.policies import Policy

__all__ = [
    "ACTIONS", "GAMMA", "HORIZON", "REWARD", "START", "STATES", "TRANSITION", "Tables", "environment",
    "exact_gradient", "exact_return", "policy", "value",
]  # fmt: skip


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
