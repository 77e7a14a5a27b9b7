"""Policies: a flat parameter vector [D] and observations to distributions over actions. Only this file unravels.

Arrays are feature-first: observations [O, L] and distributions [P, L] have their lanes (episodes, time steps) last, so
that every layer is one matrix product [out, in] x [in, L] and every activation runs along contiguous lanes. On a CPU
that is more than twice as fast as lanes-first with the paper's narrow networks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.accelerate.platform import on_cpu
from jaxbyz.environments import ActionSpace, Environment
from jaxbyz.errors import UsageError

FEW_INPUTS, FEW_LANES = 16, 32  # of a product that is written out on a CPU
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "identity": lambda x: x,
}


class Policy(NamedTuple):
    """Pure functions of one agent over L lanes.

    size:     D
    init:     key -> parameters [D]
    unravel:  parameters [D] -> tree the other functions take (do it once, outside a loop)
    apply:    (tree, observations [O, L]) -> distribution [P, L]: log-probabilities, or means and log-deviations
    noise:    (key, steps, lanes) -> [steps, n, lanes], what `sample` turns into actions
    sample:   (distribution [P, L], noise [n, L]) -> actions [L] (discrete) or [n, L]
    log_prob: (distribution [P, L], actions) -> [L]
    """

    size: int
    init: Callable[[PRNGKeyArray], Float[Array, " D"]]
    unravel: Callable[[Float[Array, " D"]], Any]
    apply: Callable[[Any, Float[Array, "O L"]], Float[Array, "P L"]]
    noise: Callable[[PRNGKeyArray, int, int], Float[Array, "steps n lanes"]]
    sample: Callable[[Float[Array, "P L"], Float[Array, "n L"]], Array]
    log_prob: Callable[[Float[Array, "P L"], Array], Float[Array, " L"]]


def torch_bias_init(key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """U(−1/√n, 1/√n) with n the bias's own length, as the published code draws it."""
    bound = 1.0 / math.sqrt(shape[-1])
    return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)


INITIALISERS: dict[str, tuple[Any, Any]] = {  # kernels are [out, in]
    "lecun": (nn.initializers.lecun_normal(in_axis=1, out_axis=0), nn.initializers.zeros),
    "orthogonal": (nn.initializers.orthogonal(math.sqrt(2.0), column_axis=0), nn.initializers.zeros),
    # PyTorch's linear layer: weights U(±1/√fan_in), i.e. variance 1/(3·fan_in); biases as the published code has them.
    "published": (nn.initializers.variance_scaling(1.0 / 3.0, "fan_in", "uniform", 1, 0), torch_bias_init),
}


class Layer(nn.Module):
    """kernel x + bias for columns x: [in, L] -> [out, L]. The kernel is [out, in]: XLA's CPU product of a transposed
    left side takes four times as long at these sizes."""

    width: int
    initialiser: str

    @nn.compact
    def __call__(self, x: Float[Array, "in L"]) -> Float[Array, "out L"]:
        kernel_init, bias_init = INITIALISERS[self.initialiser]
        kernel = self.param("kernel", kernel_init, (self.width, x.shape[0]))
        bias = self.param("bias", bias_init, (self.width,))
        return _product(kernel, x) + bias[:, None]


def _product(a: Float[Array, "out in"], x: Float[Array, "in L"]) -> Float[Array, "out L"]:
    """a @ x. For few lanes and inputs on a CPU as a sum of columns times rows: XLA's product takes longer to begin."""
    if not (on_cpu() and x.shape[0] <= FEW_INPUTS and x.shape[1] <= FEW_LANES):
        return a @ x
    return _columns_times_rows(a, x)


@functools.partial(jax.jit, inline=True)  # traced once for all calls
def _columns_times_rows(a: Array, x: Array) -> Array:
    return functools.reduce(jnp.add, (a[:, i : i + 1] * x[i : i + 1] for i in range(x.shape[0])))


class MLP(nn.Module):
    """Layers with an activation after each hidden one and another after the last: [O, L] -> [outputs, L]."""

    hidden: Sequence[int]
    outputs: int
    activation: str
    output_activation: str
    initialiser: str

    @nn.compact
    def __call__(self, x: Float[Array, "O L"]) -> Float[Array, "P L"]:
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](Layer(width, self.initialiser)(x))
        return ACTIVATIONS[self.output_activation](Layer(self.outputs, self.initialiser)(x))


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


def _flattening(start: Callable[[PRNGKeyArray], Any]) -> tuple[int, Callable[[Array], Any]]:
    """D and the way from [D] back to what `start` makes; only shapes are computed."""
    shapes = jax.eval_shape(start, jax.random.key(0))
    flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))
    return flat.size, unravel


def categorical(
    network: MLP, observation_size: int, actions: ActionSpace, output_scale: float = 1.0, _: float = 0.0
) -> Policy:
    """Softmax over the network's outputs; one uniform number draws an action through the cumulative distribution."""

    def start(key: PRNGKeyArray) -> Any:
        return network.init(key, jnp.zeros((observation_size, 1)))

    size, unravel = _flattening(start)

    def apply(tree: Any, observations: Array) -> Array:
        logits = jnp.asarray(network.apply(tree, observations))
        return jax.nn.log_softmax(output_scale * logits, axis=0)

    def noise(key: PRNGKeyArray, steps: int, lanes: int) -> Array:
        return jax.random.uniform(key, (steps, 1, lanes))

    def sample(log_probs: Array, u: Array) -> Array:
        action = jnp.zeros(u.shape[1:], jnp.int32)
        below = jnp.zeros(u.shape[1:])
        for a in range(actions.n - 1):
            below = below + jnp.exp(log_probs[a])
            action = action + (u[0] >= below)
        return action

    def log_prob(log_probs: Array, action: Array) -> Array:
        chosen = action[None, :] == jnp.arange(actions.n, dtype=action.dtype)[:, None]
        return jnp.sum(jnp.where(chosen, log_probs, 0.0), axis=0)

    return Policy(size, lambda key: ravel_pytree(start(key))[0], unravel, apply, noise, sample, log_prob)


def gaussian(
    network: MLP, observation_size: int, actions: ActionSpace, output_scale: float = 1.0, initial_std: float = 0.5
) -> Policy:
    """Independent normals with the network's outputs as means and learnt, state-independent deviations."""
    n = actions.n
    low, high = jnp.ravel(jnp.asarray(actions.low)), jnp.ravel(jnp.asarray(actions.high))
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    centre = jnp.where(bounded, 0.5 * (low + high), 0.0)[:, None]
    half = jnp.where(bounded, 0.5 * (high - low), 1.0)

    def start(key: PRNGKeyArray) -> dict[str, Any]:
        return {"net": network.init(key, jnp.zeros((observation_size, 1))), "log_std": jnp.log(initial_std * half)}

    size, unravel = _flattening(start)

    def apply(tree: Any, observations: Array) -> Array:
        mean = centre + half[:, None] * output_scale * jnp.asarray(network.apply(tree["net"], observations))
        return jnp.concatenate([mean, jnp.broadcast_to(tree["log_std"][:, None], mean.shape)], axis=0)

    def noise(key: PRNGKeyArray, steps: int, lanes: int) -> Array:
        return jax.random.normal(key, (steps, n, lanes))

    def sample(distribution: Array, z: Array) -> Array:
        return distribution[:n] + jnp.exp(distribution[n:]) * z

    def log_prob(distribution: Array, action: Array) -> Array:
        mean, log_std = distribution[:n], distribution[n:]
        z = (action - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * z * z + log_std + 0.5 * math.log(2 * math.pi), axis=0)

    return Policy(size, lambda key: ravel_pytree(start(key))[0], unravel, apply, noise, sample, log_prob)
