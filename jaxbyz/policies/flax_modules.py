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
from jaxbyz.policies.recurrent import Core, with_memory


def flax_policy(
    module: nn.Module, environment: Environment, *, output_scale: float = 1.0, initial_std: float = 0.5
) -> Policy:
    """Build a policy from a flax module that is written batch-first, as flax's own layers are.

    A module with a memory is an `nn.RNNCellBase`, as flax's own cells: it takes `(carry, observations)`, returns
    `(carry, outputs)`, and its method `initialize_carry` gives the carry at the start of episodes.

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
    recurrent = isinstance(module, nn.RNNCellBase)

    def start(episodes: int) -> Any:
        return module.initialize_carry(jax.random.key(0), (episodes, *shape)) if recurrent else ()

    def respond(tree: Any, carry: Any, rows: Array) -> tuple[Any, Array]:
        found: Any = module.apply(tree, carry, rows) if recurrent else (carry, module.apply(tree, rows))
        return found

    def init(key: PRNGKeyArray) -> Any:
        return module.init(key, *((start(1),) if recurrent else ()), jnp.zeros((1, *shape)))

    def apply(tree: Any, observations: Float[Array, "O L"]) -> Float[Array, "n L"]:
        images = observations.T.reshape(observations.shape[1], *shape)
        return jnp.asarray(respond(tree, (), images)[1]).T

    def unroll(tree: Any, carry: Any, observations: Float[Array, "O C L"]) -> tuple[Any, Float[Array, "n C L"]]:
        rows = jnp.moveaxis(observations, 0, -1).reshape(*observations.shape[1:], *shape)
        carry, outputs = jax.lax.scan(lambda carry, x: respond(tree, carry, x), carry, rows)
        return carry, jnp.moveaxis(outputs, -1, 0)

    _check_module(module, environment, init, start, respond)
    if not recurrent:
        return policy_of(Network(init, apply), actions, output_scale, initial_std)
    outputs_alone = Network(lambda key: {}, lambda tree, outputs: outputs)
    return with_memory(Core(init, start, unroll), policy_of(outputs_alone, actions, output_scale, initial_std))


def _check_module(module: nn.Module, environment: Environment, init: Any, start: Any, respond: Any) -> None:
    """Refuse a module that cannot be a policy's network, before anything is compiled."""
    name, batch = type(module).__name__, 3
    observations = jax.ShapeDtypeStruct((batch, *environment.observation_shape), jnp.float32)
    try:
        tree = jax.eval_shape(init, jax.random.key(0))
        carry = jax.eval_shape(lambda: start(batch))
        _, outputs = jax.eval_shape(respond, tree, carry, observations)
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
