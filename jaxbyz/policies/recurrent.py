"""Policies with a memory: a recurrent network whose features are what an ordinary policy sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.accelerate.gated_recurrence import gated_steps
from jaxbyz.environments import Environment, check_environment
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.policies.distributions import flat_form
from jaxbyz.policies.networks import ACTIVATIONS, INITIALISERS, Layer, mlp_policy
from jaxbyz.policies.policy import Policy, Recurrence


class Core(NamedTuple):
    """A recurrent network.

    Attributes:
        init: `key -> tree`, initial parameters.
        start: `lanes -> carry`, a tree of arrays `[L, …]`, at the start of episodes.
        unroll: `(tree, carry, observations [O, C, L]) -> (carry, features [H, C, L])` for C consecutive steps.
    """

    init: Callable[[PRNGKeyArray], Any]
    start: Callable[[int], Any]
    unroll: Callable[[Any, Any, Float[Array, "O C L"]], tuple[Any, Float[Array, "H C L"]]]


def with_memory(core: Core, readout: Policy) -> Policy:
    """Return the policy whose actions are those of `readout` for the features of `core`.

    The parameters of the core come first.
    """
    size, unravel_core = flat_form(core.init)

    def unravel(theta: Float[Array, " D"]) -> dict[str, Any]:
        return {"core": unravel_core(theta[:size]), "readout": readout.unravel(theta[size:])}

    def init(key: PRNGKeyArray) -> Float[Array, " D"]:
        core_key, readout_key = jax.random.split(key)
        return jnp.concatenate([ravel_pytree(core.init(core_key))[0], readout.init(readout_key)])

    def unroll(tree: Any, carry: Any, observations: Float[Array, "O C L"]) -> tuple[Any, Float[Array, "P C L"]]:
        carry, features = core.unroll(tree["core"], carry, observations)
        steps = observations.shape[1:]
        distributions = readout.apply(tree["readout"], features.reshape(features.shape[0], -1))
        return carry, distributions.reshape(-1, *steps)

    def apply(tree: Any, observations: Array) -> Array:
        raise UsageError(
            "the actions of a policy with a memory depend on earlier observations: use policy.recurrence.unroll"
        )

    return readout._replace(
        size=size + readout.size,
        init=init,
        unravel=unravel,
        apply=apply,
        recurrence=Recurrence(core.start, unroll),
    )


class GRU(nn.Module):
    """A gated recurrent unit, as flax's `GRUCell`, over C steps: `(h [L, H], x [in, C, L]) -> (h, features [H, C, L])`.

    The products with x do not depend on h and are computed for all steps at once; the rest is `gated_steps`.
    """

    width: int
    initialiser: str

    @nn.compact
    def __call__(self, h: Float[Array, "L H"], x: Float[Array, "in C L"]) -> tuple[Array, Array]:
        H, (C, L) = self.width, x.shape[1:]
        recurrent = self.param("recurrent", _orthogonal_gates, (H, 3 * H))
        bias = self.param("bias", nn.initializers.zeros, (H,))[None]
        inputs = Layer(3 * H, self.initialiser)(x.reshape(-1, C * L)).T.reshape(C, L, 3 * H)
        features = gated_steps(recurrent, bias, h, inputs)
        return features[-1], features.reshape(C * L, H).T.reshape(H, C, L)


def _orthogonal_gates(key: PRNGKeyArray, shape: tuple[int, int]) -> Float[Array, "H 3H"]:
    """Draw one orthogonal matrix per gate."""
    H = shape[0]
    gates = [nn.initializers.orthogonal()(key, (H, H)) for key in jax.random.split(key, 3)]
    return jnp.concatenate(gates, axis=1)


class RecurrentNetwork(nn.Module):
    """Layers with an activation, then a GRU: `(h [L, H], observations [O, C, L]) -> (h, features [H, C, L])`."""

    hidden: Sequence[int]
    activation: str
    initialiser: str

    @nn.compact
    def __call__(self, h: Float[Array, "L H"], x: Float[Array, "O C L"]) -> tuple[Array, Array]:
        steps = x.shape[1:]
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden[:-1]:
            x = ACTIVATIONS[self.activation](Layer(width, self.initialiser)(x))
        return GRU(self.hidden[-1], self.initialiser)(h, x.reshape(-1, *steps))


def gru_policy(
    environment: Environment,
    hidden: tuple[int, ...] = (32,),
    activation: str = "tanh",
    output_activation: str = "tanh",
    *,
    output_scale: float = 1.0,
    initialiser: str = "lecun",
    initial_std: float = 0.5,
    deviation: str = "common",
) -> Policy:
    """Build a policy with a memory: a gated recurrent unit between observations and outputs.

    Args:
        environment: the task, which determines the number of inputs and outputs.
        hidden: the width of the recurrent unit, after the widths of the layers between observations and unit.
        activation: the name of the activation of these layers, a key of `ACTIVATIONS`.
        output_activation: as in `mlp_policy`.
        output_scale: as in `mlp_policy`.
        initialiser: how the parameters are drawn, a key of `INITIALISERS`, except for the recurrent kernels, which are
            orthogonal.
        initial_std: as in `mlp_policy`.
        deviation: as in `mlp_policy`.

    Raises:
        UsageError: if a name is unknown or there is no width.

    References:
        Cho et al., Learning phrase representations using RNN encoder-decoder for statistical machine translation, 2014.
    """
    check_environment(environment)
    check_choice("activation", activation, ACTIVATIONS)
    check_choice("initialiser", initialiser, INITIALISERS)
    if not hidden or min(hidden) < 1:
        raise UsageError(f"hidden={hidden}: must be one or more layer sizes of at least 1, the last that of the GRU")
    H, network = hidden[-1], RecurrentNetwork(tuple(hidden), activation, initialiser)
    one_step = jnp.zeros((environment.observation_size, 1, 1))

    def unroll(tree: Any, carry: Any, observations: Float[Array, "O C L"]) -> tuple[Any, Array]:
        carry, features = network.apply(tree, carry, observations)
        return carry, jnp.asarray(features)

    core = Core(
        init=lambda key: network.init(key, jnp.zeros((1, H)), one_step),
        start=lambda lanes: jnp.zeros((lanes, H)),
        unroll=unroll,
    )
    features = environment._replace(observation_size=H, shape=())
    readout = mlp_policy(
        features, (), output_activation=output_activation, output_scale=output_scale, initialiser=initialiser,
        initial_std=initial_std, deviation=deviation,
    )  # fmt: skip
    return with_memory(core, readout)
