"""Policies whose network is a flax module of the user."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments import Environment, check_environment
from jaxbyz.errors import UsageError, first_line
from jaxbyz.policies.distributions import policy_of
from jaxbyz.policies.policy import Network, Policy


def flax_policy(
    module: nn.Module, environment: Environment, *, output_scale: float = 1.0, initial_std: float = 0.5
) -> Policy:
    """Build a policy from a flax module that is written batch-first, as flax's own layers are.

    Args:
        module: takes observations `[B, *environment.observation_shape]` and returns `[B, n]`: one logit per discrete
            action, or the mean of every continuous dimension in units of half the width of its range. It may have
            parameters only: no dropout and no batch statistics.
        environment: the task.
        output_scale: a factor of the outputs.
        initial_std: the initial standard deviation of continuous actions, in units of half the width of their range.

    Raises:
        UsageError: if the module does not take such observations or does not return such outputs.
    """
    check_environment(environment)
    shape, actions = environment.observation_shape, environment.actions

    def init(key: PRNGKeyArray) -> Any:
        return module.init(key, jnp.zeros((1, *shape)))

    def apply(tree: Any, observations: Float[Array, "O L"]) -> Float[Array, "n L"]:
        images = observations.T.reshape(observations.shape[1], *shape)
        return jnp.asarray(module.apply(tree, images)).T

    _check_module(module, environment, init)
    return policy_of(Network(init, apply), actions, output_scale, initial_std)


def _check_module(module: nn.Module, environment: Environment, init: Any) -> None:
    """Refuse a module that cannot be a policy's network, before anything is compiled."""
    name, batch = type(module).__name__, 3
    observations = jax.ShapeDtypeStruct((batch, *environment.observation_shape), jnp.float32)
    try:
        tree = jax.eval_shape(init, jax.random.key(0))
        outputs = jax.eval_shape(module.apply, tree, observations)
    except UsageError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise UsageError(
            f"module {name} fails on observations {list(observations.shape)} of {environment.name}: {first_line(error)}"
        ) from error
    if others := sorted(set(tree) - {"params"}):
        raise UsageError(f"module {name} has variables {', '.join(others)}: a policy may have parameters only")
    if not tree:
        raise UsageError(f"module {name} has no parameters")
    expected = (batch, environment.actions.n)
    if getattr(outputs, "shape", None) != expected:
        found = list(outputs.shape) if hasattr(outputs, "shape") else type(outputs).__name__
        raise UsageError(
            f"module {name} returns {found} for {batch} observations; it must return {list(expected)}, one output per "
            "action or continuous dimension"
        )
    if other := {leaf.dtype.name for leaf in jax.tree.leaves(tree)} - {"float32"}:
        raise UsageError(f"module {name} has parameters of type {', '.join(sorted(other))}; they must be float32")
