"""Policies: a flat parameter vector [D] and an observation to a distribution over actions. Only this file unravels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments import ActionSpace, Environment
from jaxbyz.registry import UsageError

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "identity": lambda x: x,
}


class Policy(NamedTuple):
    """Pure functions of one agent; leading axes of observations are free.

    size:     D
    init:     key -> parameters [D]
    unravel:  parameters [D] -> tree the other functions take (do it once, outside a loop)
    apply:    (tree, observations [..., O]) -> distribution [..., P]: logits, or mean and log-deviation
    noise:    (key, shape) -> noise [*shape, n] that `sample` turns into actions
    sample:   (distribution [..., P], noise [..., n]) -> actions [...] or [..., n]
    log_prob: (distribution [..., P], actions) -> [...]
    """

    size: int
    init: Callable[[PRNGKeyArray], Float[Array, " D"]]
    unravel: Callable[[Float[Array, " D"]], Any]
    apply: Callable[[Any, Float[Array, "... O"]], Float[Array, "... P"]]
    noise: Callable[[PRNGKeyArray, tuple[int, ...]], Array]
    sample: Callable[[Array, Array], Array]
    log_prob: Callable[[Array, Array], Array]


def torch_bias_init(key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """U(−1/√n, 1/√n) with n the bias's own length, as the published code draws it."""
    bound = 1.0 / math.sqrt(shape[-1])
    return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)


INITIALISERS: dict[str, tuple[Any, Any]] = {
    "lecun": (nn.initializers.lecun_normal(), nn.initializers.zeros),
    "orthogonal": (nn.initializers.orthogonal(math.sqrt(2.0)), nn.initializers.zeros),
    # PyTorch's linear layer: weights U(±1/√fan_in), i.e. variance 1/(3·fan_in); biases as the published code has them.
    "published": (nn.initializers.variance_scaling(1.0 / 3.0, "fan_in", "uniform"), torch_bias_init),
}


class MLP(nn.Module):
    """Dense layers with an activation after each hidden one and another after the last."""

    hidden: Sequence[int]
    outputs: int
    activation: str
    output_activation: str
    initialiser: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel, bias = INITIALISERS[self.initialiser]
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](nn.Dense(width, kernel_init=kernel, bias_init=bias)(x))
        return ACTIVATIONS[self.output_activation](nn.Dense(self.outputs, kernel_init=kernel, bias_init=bias)(x))


def mlp_policy(
    environment: Environment,
    hidden: Sequence[int] = (16, 16),
    activation: str = "tanh",
    output_activation: str = "tanh",
    *,
    output_scale: float = 1.0,
    initialiser: str = "lecun",
    initial_std: float = 0.5,
) -> Policy:
    """A multilayer perceptron as the paper's table has it: categorical, or Gaussian for continuous actions.

    output_scale multiplies the activated outputs: with tanh logits the better of two actions is chosen with
    probability at most σ(2·output_scale), 0.881 at 1. Gaussian means of a bounded action space are stretched to its
    half-width; the deviation starts at initial_std times that half-width and is learnt, one number a dimension.
    """
    for option, value, known in (
        ("activation", activation, ACTIVATIONS),
        ("output_activation", output_activation, ACTIVATIONS),
        ("initialiser", initialiser, INITIALISERS),
    ):
        if value not in known:
            raise UsageError(f"{option}={value!r} is unknown: one of {', '.join(known)}")
    actions = environment.actions
    network = MLP(tuple(hidden), actions.n, activation, output_activation, initialiser)
    build = categorical if actions.discrete else gaussian
    return build(network, environment.observation_size, actions, output_scale, initial_std)


def categorical(
    network: nn.Module, observation_size: int, actions: ActionSpace, output_scale: float = 1.0, _: float = 0.0
) -> Policy:
    """Softmax over the network's outputs; one uniform number draws an action through the cumulative distribution."""
    example, unravel = ravel_pytree(network.init(jax.random.key(0), jnp.zeros((observation_size,))))

    def apply(tree: Any, observations: Array) -> Array:
        return jax.nn.log_softmax(output_scale * network.apply(tree, observations))

    def noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jax.random.uniform(key, (*shape, 1))

    def sample(log_probs: Array, u: Array) -> Array:
        below = jnp.cumsum(jnp.exp(log_probs[..., :-1]), axis=-1)
        return jnp.sum((u >= below).astype(jnp.int32), axis=-1)

    def log_prob(log_probs: Array, action: Array) -> Array:
        return jnp.sum(jnp.where(jax.nn.one_hot(action, actions.n, dtype=jnp.bool_), log_probs, 0.0), axis=-1)

    def init(key: PRNGKeyArray) -> Array:
        return ravel_pytree(network.init(key, jnp.zeros((observation_size,))))[0]

    return Policy(example.size, init, unravel, apply, noise, sample, log_prob)


def gaussian(
    network: nn.Module, observation_size: int, actions: ActionSpace, output_scale: float = 1.0, initial_std: float = 0.5
) -> Policy:
    """Independent normals with the network's outputs as means and learnt, state-independent deviations."""
    n = actions.n
    low, high = jnp.ravel(jnp.asarray(actions.low)), jnp.ravel(jnp.asarray(actions.high))
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    centre = jnp.where(bounded, 0.5 * (low + high), 0.0)
    half = jnp.where(bounded, 0.5 * (high - low), 1.0)

    def start(key: PRNGKeyArray) -> dict[str, Any]:
        return {"net": network.init(key, jnp.zeros((observation_size,))), "log_std": jnp.log(initial_std * half)}

    example, unravel = ravel_pytree(start(jax.random.key(0)))

    def apply(tree: Any, observations: Array) -> Array:
        mean = centre + half * output_scale * network.apply(tree["net"], observations)
        return jnp.concatenate([mean, jnp.broadcast_to(tree["log_std"], mean.shape)], axis=-1)

    def noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, (*shape, n))

    def sample(distribution: Array, z: Array) -> Array:
        return distribution[..., :n] + jnp.exp(distribution[..., n:]) * z

    def log_prob(distribution: Array, action: Array) -> Array:
        mean, log_std = distribution[..., :n], distribution[..., n:]
        z = (action - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * z * z + log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    return Policy(example.size, lambda key: ravel_pytree(start(key))[0], unravel, apply, noise, sample, log_prob)
