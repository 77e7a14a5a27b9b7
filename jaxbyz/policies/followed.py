"""A perceptron that scales its observations by their mean and deviation, which are among its parameters.

`jaxbyz.algorithms.followed_scales` lets them follow the policy. They have no gradient.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxbyz.environments import Environment
from jaxbyz.environments.observation_scaling import LARGEST
from jaxbyz.policies.networks import mlp_policy
from jaxbyz.policies.policy import Policy

NEWEST = 0.1  # the weight of new observations in the running mean and variance
SMALLEST_DEVIATION = 0.01


def followed_policy(
    environment: Environment,
    hidden: tuple[int, ...] = (16, 16),
    activation: str = "tanh",
    output_activation: str = "tanh",
    *,
    output_scale: float = 1.0,
    initialiser: str = "lecun",
    initial_std: float = 0.5,
    deviation: str = "common",
) -> Policy:
    """Build the policy of `mlp_policy` for observations (o − mean)/deviation, clipped to ±10.

    At first the mean is 0 and the deviation 1. The last 2·O parameters are the mean and the deviation.
    """
    inner = mlp_policy(
        environment, hidden, activation, output_activation, output_scale=output_scale, initialiser=initialiser,
        initial_std=initial_std, deviation=deviation,
    )  # fmt: skip
    size = environment.observation_size

    def parts(theta: Float[Array, " D"]) -> tuple[Array, Array, Array]:
        return theta[: inner.size], theta[inner.size : -size], theta[-size:]

    def unravel(theta: Float[Array, " D"]) -> dict[str, Any]:
        network, mean, spread = parts(theta)
        return {"policy": inner.unravel(network), "scale_mean": mean, "scale_spread": spread}

    def apply(tree: Any, observations: Float[Array, "O L"]) -> Array:
        mean, spread = jax.lax.stop_gradient((tree["scale_mean"][:, None], tree["scale_spread"][:, None]))
        spread = jnp.maximum(spread, SMALLEST_DEVIATION)
        return inner.apply(tree["policy"], jnp.clip((observations - mean) / spread, -LARGEST, LARGEST))

    def follow(theta: Float[Array, " D"], mean: Float[Array, " O"], variance: Float[Array, " O"]) -> Array:
        """Move the scales towards a mean and a variance, and change the first layer so that no action changes.

        Only actions for observations that are clipped change.
        """
        network, old_mean, old = parts(theta)
        old = jnp.maximum(old, SMALLEST_DEVIATION)
        new_mean = old_mean + NEWEST * (mean - old_mean)
        around = (1 - NEWEST) * (old**2 + NEWEST * (mean - old_mean) ** 2) + NEWEST * variance
        new = jnp.maximum(jnp.sqrt(around), SMALLEST_DEVIATION)
        tree = inner.unravel(network)
        first = tree.get("net", tree)["params"]["Layer_0"]
        kernel = first["kernel"]
        first["bias"] = first["bias"] + kernel @ ((new_mean - old_mean) / old)
        first["kernel"] = kernel * (new / old)[None, :]
        return jnp.concatenate([ravel_pytree(tree)[0], new_mean, new])

    return inner._replace(
        size=inner.size + 2 * size,
        init=lambda key: jnp.concatenate([inner.init(key), jnp.zeros(size), jnp.ones(size)]),
        unravel=unravel,
        apply=apply,
        follow=follow,
        untrained=2 * size,
    )
