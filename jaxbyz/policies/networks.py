"""Multilayer perceptrons, and the policies that use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.accelerate.matrix_products import small_product
from jaxbyz.environments import Environment, check_environment
from jaxbyz.errors import check_choice
from jaxbyz.policies.distributions import outputs_of, policy_of
from jaxbyz.policies.policy import Network, Policy

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "identity": lambda x: x,
}


def published_bias_init(key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Draw biases from U(−1/√n, 1/√n) with n their number, as the published code does."""
    bound = 1.0 / math.sqrt(shape[-1])
    return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)


INITIALISERS: dict[str, tuple[Any, Any]] = {  # of kernels `[out, in]` and of biases
    "lecun": (nn.initializers.lecun_normal(in_axis=1, out_axis=0), nn.initializers.zeros),
    "orthogonal": (nn.initializers.orthogonal(math.sqrt(2.0), column_axis=0), nn.initializers.zeros),
    # Weights as in PyTorch's linear layer: U(±1/√fan_in), whose variance is 1/(3·fan_in).
    "published": (nn.initializers.variance_scaling(1.0 / 3.0, "fan_in", "uniform", 1, 0), published_bias_init),
    # As "lecun", and the kernel of the last layer 100 times smaller: all first actions are nearly the centre.
    "small-outputs": (nn.initializers.lecun_normal(in_axis=1, out_axis=0), nn.initializers.zeros),
}
OF_LAST_LAYER = {  # of those whose last layer begins differently
    "small-outputs": (nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal", 1, 0), nn.initializers.zeros)
}


class Layer(nn.Module):
    """Return kernel x + bias for columns x: `[in, L] -> [out, L]`.

    The kernel is stored as `[out, in]`, because XLA on a CPU multiplies more slowly by a transposed kernel.
    """

    width: int
    initialiser: str
    last: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "in L"]) -> Float[Array, "out L"]:
        of_layer = {**INITIALISERS, **OF_LAST_LAYER} if self.last else INITIALISERS
        kernel_init, bias_init = of_layer[self.initialiser]
        kernel = self.param("kernel", kernel_init, (self.width, x.shape[0]))
        bias = self.param("bias", bias_init, (self.width,))
        return small_product(kernel, x) + bias[:, None]


class MLP(nn.Module):
    """A perceptron with an activation after hidden layers and another after the last: `[O, L] -> [outputs, L]`."""

    hidden: Sequence[int]
    outputs: int
    activation: str
    output_activation: str
    initialiser: str

    @nn.compact
    def __call__(self, x: Float[Array, "O L"]) -> Float[Array, "P L"]:
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](Layer(width, self.initialiser)(x))
        return ACTIVATIONS[self.output_activation](Layer(self.outputs, self.initialiser, last=True)(x))


def mlp_policy(
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
    """Build a multilayer perceptron policy: categorical for discrete actions, Gaussian for continuous ones.

    Args:
        environment: the task, which determines the number of inputs and outputs.
        hidden: the widths of the hidden layers.
        activation: the name of the activation of hidden layers, a key of `ACTIVATIONS`.
        output_activation: the name of the activation of the outputs.
        output_scale: a factor of the activated outputs. With tanh outputs and two actions, the better action has at
            most the probability σ(2·output_scale), which is 0.881 for 1.
        initialiser: how parameters are drawn, a key of `INITIALISERS`.
        initial_std: the initial standard deviation of continuous actions, in units of half the width of their range.
        deviation: `"common"` if their standard deviations are the same in every state, `"state"` if the network
            computes them.

    Raises:
        UsageError: if a name is unknown.
    """
    check_environment(environment)
    check_choice("activation", activation, ACTIVATIONS)
    check_choice("output_activation", output_activation, ACTIVATIONS)
    check_choice("initialiser", initialiser, INITIALISERS)
    actions = environment.actions
    mlp = MLP(tuple(hidden), outputs_of(actions, deviation), activation, output_activation, initialiser)
    network = Network(
        init=lambda key: mlp.init(key, jnp.zeros((environment.observation_size, 1))),
        apply=lambda tree, observations: jnp.asarray(mlp.apply(tree, observations)),
    )
    return policy_of(network, actions, output_scale, initial_std, deviation)
