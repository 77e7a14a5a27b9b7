"""Convolutional networks for images, and the policies that use them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxbyz.accelerate.convolutions import convolve
from jaxbyz.environments import Environment, check_environment
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.policies.distributions import outputs_of, policy_of
from jaxbyz.policies.networks import ACTIVATIONS, INITIALISERS, MLP
from jaxbyz.policies.policy import Network, Policy


class Convolution(nn.Module):
    """A convolution without padding: `[channels, height, width, L] -> [out, height', width', L]`.

    The kernel is stored as `[out, size·size·channels]`, so that its initialisation is that of a `Layer` with as many
    inputs per output.
    """

    out: int
    size: int
    stride: int
    initialiser: str

    @nn.compact
    def __call__(self, x: Float[Array, "C H W L"]) -> Float[Array, "out h w L"]:
        kernel_init, bias_init = INITIALISERS[self.initialiser]
        kernel = self.param("kernel", kernel_init, (self.out, self.size * self.size * x.shape[0]))
        bias = self.param("bias", bias_init, (self.out,))
        return convolve(kernel, x, self.size, self.stride) + bias[:, None, None, None]


class CNN(nn.Module):
    """Convolutions, each followed by the activation, then a perceptron: `[O, L] -> [outputs, L]`.

    An observation is an image `[height, width, channels]` that was flattened.
    """

    shape: tuple[int, int, int]
    channels: Sequence[int]
    size: int
    stride: int
    perceptron: MLP
    initialiser: str

    @nn.compact
    def __call__(self, x: Float[Array, "O L"]) -> Float[Array, "P L"]:
        lanes = x.shape[1]
        x = jnp.moveaxis(x.reshape(*self.shape, lanes), 2, 0)
        for out in self.channels:
            x = ACTIVATIONS[self.perceptron.activation](Convolution(out, self.size, self.stride, self.initialiser)(x))
        return jnp.asarray(self.perceptron(x.reshape(-1, lanes)))


def cnn_policy(
    environment: Environment,
    channels: tuple[int, ...] = (16,),
    kernel: int = 3,
    stride: int = 1,
    hidden: tuple[int, ...] = (128,),
    activation: str = "relu",
    output_activation: str = "identity",
    *,
    output_scale: float = 1.0,
    initialiser: str = "lecun",
    initial_std: float = 0.5,
    deviation: str = "common",
) -> Policy:
    """Build a convolutional policy for images, such as the observations of MinAtar.

    The defaults are the network of MinAtar's authors: one convolution to 16 channels with kernels of 3 × 3, and one
    hidden layer of width 128. In a configured run `hidden`, `activation`, `output_activation`, `output_scale` and
    `initialiser` come from the options of the run.

    Args:
        environment: the task; observations are `[height, width, channels]`, or `[height, width]` with one channel.
        channels: the number of output channels of each convolution.
        kernel: height and width of the kernels.
        stride: distance between two positions of a kernel. There is no padding.
        hidden: the widths of the layers between the convolutions and the outputs.
        activation: the name of the activation of convolutions and hidden layers, a key of `ACTIVATIONS`.
        output_activation: the name of the activation of the outputs.
        output_scale: a factor of the activated outputs.
        initialiser: how parameters are drawn, a key of `INITIALISERS`.
        initial_std: the initial standard deviation of continuous actions, in units of half the width of their range.
        deviation: `"common"` if their standard deviations are the same in every state, `"state"` if the network
            computes them.

    Raises:
        UsageError: if a name is unknown, or the observations are not images, or smaller than the kernels.

    References:
        Young and Tian, MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
        Experiments, 2019, arXiv:1903.03176.
    """
    check_environment(environment)
    check_choice("activation", activation, ACTIVATIONS)
    check_choice("output_activation", output_activation, ACTIVATIONS)
    check_choice("initialiser", initialiser, INITIALISERS)
    shape = _image_shape(environment)
    _check_sizes(shape, channels, kernel, stride)
    actions = environment.actions
    perceptron = MLP(tuple(hidden), outputs_of(actions, deviation), activation, output_activation, initialiser)
    cnn = CNN(shape, tuple(channels), kernel, stride, perceptron, initialiser)
    network = Network(
        init=lambda key: cnn.init(key, jnp.zeros((math.prod(shape), 1))),
        apply=lambda tree, observations: jnp.asarray(cnn.apply(tree, observations)),
    )
    return policy_of(network, actions, output_scale, initial_std, deviation)


def _image_shape(environment: Environment) -> tuple[int, int, int]:
    """Return height, width and channels of the observations."""
    match environment.observation_shape:
        case (height, width, channels):
            return height, width, channels
        case (height, width):
            return height, width, 1
    raise UsageError(
        f"policy cnn: observations of {environment.name} have the shape {list(environment.observation_shape)}; "
        "it needs images [height, width, channels]; mlp takes any observation"
    )


def _check_sizes(shape: tuple[int, int, int], channels: Sequence[int], kernel: int, stride: int) -> None:
    """Refuse sizes that are not positive, and convolutions that leave nothing of the image."""
    for name, value in (("kernel", kernel), ("stride", stride), *(("channels", count) for count in channels)):
        if value < 1:
            raise UsageError(f"policy cnn: {name}={value}: must be at least 1")
    side = min(shape[:2])
    for _ in channels:
        if kernel > side:
            raise UsageError(
                f"policy cnn: kernel={kernel} with {len(channels)} convolutions and stride={stride}: "
                f"the image of {shape[0]} × {shape[1]} is too small"
            )
        side = (side - kernel) // stride + 1
