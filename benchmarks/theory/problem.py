"""A small MDP whose J and ∇J are known exactly, and the constants of the theorems for it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbyz.policies import Policy
from jaxbyz.sampling import tabular_mdp
from jaxbyz.sampling.estimators import Estimator, estimate, importance_weights
from jaxbyz.sampling.rollout import collect

# The preference for the second action is FEATURES θ + OFFSETS. Three states share two parameters and pull them in
# different directions, so the optimum is finite; there gradients stay noisy and J is curved. With separate parameters
# per state, a softmax policy would become deterministic and its noise would vanish.
FEATURES = np.array([[-3.0, 2.0], [3.0, 1.0], [-1.0, 0.0]], np.float32)
OFFSETS = np.array([1.0, 0.0, 1.0], np.float32)
MDP = {"gamma": tabular_mdp.GAMMA, "horizon": tabular_mdp.HORIZON}
ESTIMATOR = Estimator(**MDP)


def preferences(theta: Float[Array, " 2"]) -> Float[Array, "A S"]:
    """Return the logits of the two actions in the three states."""
    return jnp.stack([jnp.zeros(tabular_mdp.STATES), FEATURES @ theta + OFFSETS])


def exact_return(theta: Float[Array, " 2"]) -> Float[Array, ""]:
    """Return J(θ), exactly."""
    return tabular_mdp.value(preferences(theta).ravel())


exact_gradient = jax.grad(exact_return)


def shared_policy() -> Policy:
    """Return the softmax of `preferences` as a policy with θ_0 = 0."""
    table = tabular_mdp.policy()
    return table._replace(
        size=2,
        init=lambda key: jnp.zeros(2),
        unravel=lambda vector: vector,
        apply=lambda theta, observations: table.apply(preferences(theta), observations),
    )


class Constants(NamedTuple):
    """The constants of the theorems for this MDP, as maxima over points of the exact ascent from θ_0.

    Attributes:
        sigma2: σ², the variance of the gradient estimate of one trajectory.
        C_p: E‖error of the small-batch correction‖² / ‖θ_t − θ_{t−1}‖² of one trajectory.
        L: the largest curvature of J.
        gap: J* − J(θ_0).
    """

    sigma2: float
    C_p: float
    L: float
    gap: float


def measure_constants(samples: int = 20_000, distance: float = 0.05) -> Constants:
    """Estimate σ² and C_p from samples; compute L and the gap exactly."""

    def ascend(theta: Array, _: None) -> tuple[Array, Array]:
        return theta + 0.1 * exact_gradient(theta), theta

    last, path = jax.lax.scan(ascend, jnp.zeros(2), None, length=2000)
    policy, environment = shared_policy(), tabular_mdp.environment()

    def variances(theta: Array) -> tuple[Array, Array]:
        rows, keys = jnp.tile(theta, (samples, 1)), jax.random.split(jax.random.key(0), samples)
        episodes = collect(environment, policy, rows, keys, 1, tabular_mdp.HORIZON)
        estimates = estimate(ESTIMATOR, policy, rows, episodes)
        gradient = exact_gradient(theta)
        previous = rows - distance * gradient / jnp.linalg.norm(gradient)
        omega = importance_weights(ESTIMATOR, policy, previous, episodes).values
        difference = estimates - estimate(ESTIMATOR, policy, previous, episodes, omega)
        error = difference - (gradient - exact_gradient(previous[0]))
        variance = jnp.mean(jnp.sum((estimates - gradient) ** 2, axis=1))
        return variance, jnp.mean(jnp.sum(error**2, axis=1)) / distance**2

    points = path[jnp.array([0, 10, 40, 160])]
    sigma2, C_p = jax.jit(lambda: jax.lax.map(variances, points))()
    curvature = jax.vmap(lambda x: jnp.max(jnp.abs(jnp.linalg.eigvalsh(jax.hessian(exact_return)(x)))))(path)
    gap = exact_return(last) - exact_return(path[0])
    return Constants(*(float(x) for x in (sigma2.max(), C_p.max(), curvature.max(), gap)))
