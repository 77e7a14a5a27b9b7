"""Distributions over actions: each function turns a network into a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments import ActionSpace
from jaxbyz.errors import check_choice
from jaxbyz.policies.policy import Network, Policy

DEVIATIONS = ("common", "state")


def outputs_of(actions: ActionSpace, deviation: str = "common") -> int:
    """Return how many outputs the network of a policy has."""
    check_choice("deviation", deviation, DEVIATIONS)
    return 2 * actions.n if deviation == "state" and not actions.discrete else actions.n


def policy_of(
    network: Network,
    actions: ActionSpace,
    output_scale: float = 1.0,
    initial_std: float = 0.5,
    deviation: str = "common",
) -> Policy:
    """Build the policy that suits the actions: `categorical` for discrete ones, `gaussian` for continuous ones."""
    if actions.discrete:
        return categorical(network, actions, output_scale)
    return gaussian(network, actions, output_scale, initial_std, deviation)


def categorical(network: Network, actions: ActionSpace, output_scale: float = 1.0) -> Policy:
    """Build a softmax policy: the network's outputs times `output_scale` are the logits.

    One uniform number per step selects the action by inverting the cumulative distribution.
    """

    def apply(tree: Any, observations: Array) -> Array:
        return jax.nn.log_softmax(output_scale * network.apply(tree, observations), axis=0)

    def noise(key: PRNGKeyArray, steps: int, lanes: int) -> Array:
        return jax.random.uniform(key, (steps, 1, lanes))

    def sample(log_probs: Array, u: Array) -> Array:
        action = jnp.zeros(u.shape[1:], jnp.int32)
        cumulative = jnp.zeros(u.shape[1:])
        for a in range(actions.n - 1):
            cumulative = cumulative + jnp.exp(log_probs[a])
            action = action + (u[0] >= cumulative)
        return action

    def log_prob(log_probs: Array, action: Array) -> Array:
        chosen = action[None, :] == jnp.arange(actions.n, dtype=action.dtype)[:, None]
        return jnp.sum(jnp.where(chosen, log_probs, 0.0), axis=0)

    def entropy(log_probs: Array) -> Array:
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=0)

    size, unravel = flat_form(network.init)
    return Policy(
        size, lambda key: ravel_pytree(network.init(key))[0], unravel, apply, noise, sample, log_prob, entropy
    )


def gaussian(
    network: Network,
    actions: ActionSpace,
    output_scale: float = 1.0,
    initial_std: float = 0.5,
    deviation: str = "common",
) -> Policy:
    """Build a policy of independent normal distributions with learnt standard deviations.

    In a bounded action space, means are centre + half-width · output_scale · output, so that they are bounded if the
    outputs are. An unbounded dimension has centre 0 and half-width 1. The standard deviations start at `initial_std`
    times the half-width. With `deviation="common"` they ignore the state; with `"state"`, n further outputs of the
    network are added to their logarithms.
    """
    n = actions.n
    centre, half_width = range_of(actions)
    centre = centre[:, None]
    start = jnp.log(initial_std * half_width)

    def init(key: PRNGKeyArray) -> dict[str, Any]:
        return {"net": network.init(key), **({} if deviation == "state" else {"log_std": start})}

    def apply(tree: Any, observations: Array) -> Array:
        outputs = network.apply(tree["net"], observations)
        mean = centre + half_width[:, None] * output_scale * outputs[:n]
        if deviation == "state":
            return jnp.concatenate([mean, start[:, None] + outputs[n:]], axis=0)
        return jnp.concatenate([mean, jnp.broadcast_to(tree["log_std"][:, None], mean.shape)], axis=0)

    def noise(key: PRNGKeyArray, steps: int, lanes: int) -> Array:
        return jax.random.normal(key, (steps, n, lanes))

    def sample(distribution: Array, z: Array) -> Array:
        return distribution[:n] + jnp.exp(distribution[n:]) * z

    def log_prob(distribution: Array, action: Array) -> Array:
        mean, log_std = distribution[:n], distribution[n:]
        z = (action - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * z * z + log_std + 0.5 * math.log(2 * math.pi), axis=0)

    def entropy(distribution: Array) -> Array:
        return jnp.sum(distribution[n:] + 0.5 * math.log(2 * math.pi * math.e), axis=0)

    size, unravel = flat_form(init)
    return Policy(size, lambda key: ravel_pytree(init(key))[0], unravel, apply, noise, sample, log_prob, entropy)


def range_of(actions: ActionSpace) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return the centre and half the width of every continuous dimension; 0 and 1 where it is unbounded."""
    low, high = jnp.ravel(jnp.asarray(actions.low)), jnp.ravel(jnp.asarray(actions.high))
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    return jnp.where(bounded, 0.5 * (low + high), 0.0), jnp.where(bounded, 0.5 * (high - low), 1.0)


def flat_form(init: Callable[[PRNGKeyArray], Any]) -> tuple[int, Callable[[Array], Any]]:
    """Return the number of parameters, and the function from `[D]` to the tree that `init` returns."""
    found: list[Callable[[Array], Any]] = []

    def flatten() -> Array:
        flat, unravel = ravel_pytree(init(jax.random.key(0)))
        found.append(unravel)  # it knows shapes and types only, so it may leave the trace
        return flat

    return jax.eval_shape(flatten).size, found[0]
