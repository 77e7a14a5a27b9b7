"""The program that one would write first: a vmapped scan over a fixed horizon, then one gradient.

It is the baseline of the benchmarks and an oracle of the tests: no chunks, no early stop, lanes before features, dense
layers of flax, one key per step. It computes the same estimate with another order of floating-point operations.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import gymnax
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jaxbyz.sampling.page import Drawn, Sampled, Sampler
from jaxbyz.sampling.scoring import SamplingInputs
from jaxbyz.sampling.settings import Sampling


class Network(nn.Module):
    """The network of the paper, written as in the tutorial of flax."""

    hidden: Sequence[int]
    outputs: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in self.hidden:
            x = jnp.tanh(nn.Dense(width)(x))
        return jnp.tanh(nn.Dense(self.outputs)(x))


def make(env_name: str = "CartPole-v1", hidden: Sequence[int] = (16, 16), horizon: int = 500, **params: Any) -> dict:
    """Return `init(key)`, `rollout(tree, key)` of one episode and `estimate(tree, episodes)` of one agent."""
    env, env_params = gymnax.make(env_name)
    env_params = env_params.replace(**params)
    network = Network(hidden, env.num_actions)
    size = env.observation_space(env_params).shape[0]

    def init(key: Array) -> Any:
        return network.init(key, jnp.zeros(size))

    def rollout(tree: Any, key: Array) -> tuple[Array, Array, Array]:
        key, key_reset = jax.random.split(key)
        observation, state = env.reset_env(key_reset, env_params)

        def step(carry: tuple, key: Array) -> tuple:
            observation, state, alive = carry
            key_act, key_step = jax.random.split(key)
            action = jax.random.categorical(key_act, network.apply(tree, observation))
            following, state, reward, terminated, _ = env.step_env(key_step, state, action, env_params)
            record = (observation, action, reward * alive, alive)
            return (following, state, alive * (1.0 - terminated)), record

        _, episode = jax.lax.scan(step, (observation, state, 1.0), jax.random.split(key, horizon))
        return episode

    def estimate(tree: Any, episode: tuple, gamma: float = 0.999) -> Any:
        """GPOMDP of a batch of episodes [M, T, …] of one agent."""
        observations, actions, rewards, alive = episode
        discounted = rewards * gamma ** jnp.arange(horizon)
        to_go = jnp.cumsum(discounted[:, ::-1], axis=1)[:, ::-1]

        def objective(tree: Any) -> Array:
            log_probs = jax.nn.log_softmax(network.apply(tree, observations))
            chosen = jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]
            return jnp.mean(jnp.sum(chosen * to_go * alive, axis=1))

        return jax.grad(objective)(tree)

    return {"init": init, "rollout": rollout, "estimate": estimate}


@functools.cache
def large_batch(agents: int, episodes: int, horizon: int, params: tuple[tuple[str, float], ...]) -> Callable[[], Any]:
    """Return a program for the rollout and gradient of a large batch; `params` are parameters of the environment."""
    program = make(horizon=horizon, **dict(params))
    keys = jax.random.split(jax.random.key(0), agents)
    trees = jax.vmap(program["init"])(keys)

    def one_agent(tree: Any, key: Array) -> Any:
        episode = jax.vmap(lambda k: program["rollout"](tree, k))(jax.random.split(key, episodes))
        return program["estimate"](tree, episode)

    return functools.partial(jax.jit(jax.vmap(one_agent)), trees, keys)


def run_large_batch(*arguments: Any) -> None:
    """Run `large_batch` once and wait for its result."""
    jax.block_until_ready(large_batch(*arguments)())


def sampler(environment: Any, policy: Any, settings: Sampling, interference: Any = None) -> Sampler:
    """`jaxbyz.sampling.page.sampler` written plainly, for CartPole, gpomdp, leave-one-out and trajectory weights."""
    assert interference is None and settings.baseline == "leave-one-out" and settings.clip_norm is None
    horizon, gamma, clip = settings.horizon, settings.gamma, settings.weight_clip or jnp.inf
    program = make(horizon=horizon)
    network = Network((16, 16), 2)

    def unravel(theta: Array) -> Any:
        """Convert the parameter vector to dense layers of flax, with kernels [in, out]."""
        layers = policy.unravel(theta)["params"]
        dense = {
            name.replace("Layer", "Dense"): {"kernel": layer["kernel"].T, "bias": layer["bias"]}
            for name, layer in layers.items()
        }
        return {"params": dense}

    def log_probs(theta: Array, observations: Array, actions: Array) -> Array:
        scores = jax.nn.log_softmax(network.apply(unravel(theta), observations))
        return jnp.take_along_axis(scores, actions[..., None], axis=-1)[..., 0]

    def collect(theta: Array, key: Array, count: int) -> tuple:
        return jax.vmap(lambda k: program["rollout"](unravel(theta), k))(jax.random.split(key, count))

    def gradient(theta: Array, episode: tuple, weights: Array | float = 1.0) -> Array:
        observations, actions, rewards, alive = episode
        value = rewards * gamma ** jnp.arange(horizon)
        count = value.shape[0]
        value = value - (value.sum(axis=0) - value) / (count - 1)
        value = value * jnp.reshape(weights, (-1, 1))
        to_go = jnp.cumsum(value[:, ::-1], axis=1)[:, ::-1]
        return jax.grad(lambda t: jnp.mean(jnp.sum(log_probs(t, observations, actions) * to_go * alive, axis=1)))(theta)

    def summary(estimate: Array, episode: tuple) -> Sampled:
        _, _, rewards, alive = episode
        one = jnp.float32(1)
        return Sampled(estimate, rewards.sum(axis=1).mean(), alive.sum(axis=1).mean(), one, one)

    def large(inputs: SamplingInputs) -> Drawn:
        def one(theta: Array, key: Array) -> Sampled:
            episode = collect(theta, key, settings.N)
            return summary(gradient(theta, episode), episode)

        return Drawn(jax.vmap(one)(inputs.parameters, inputs.keys), (), ())

    def small(inputs: SamplingInputs) -> Drawn:
        def one(theta: Array, anchor: Array, previous: Array, key: Array) -> Sampled:
            episode = collect(theta, key, settings.B)
            observations, actions, _, alive = episode
            ratio = log_probs(anchor, observations, actions) - log_probs(theta, observations, actions)
            weights = jnp.minimum(jnp.exp(jnp.sum(ratio * alive, axis=1)), clip)
            estimate = gradient(theta, episode) + previous - gradient(anchor, episode, weights)
            return summary(estimate, episode)

        return Drawn(jax.vmap(one)(inputs.parameters, inputs.anchor, inputs.previous, inputs.keys), (), ())

    def either(coin: Array, inputs: SamplingInputs) -> Drawn:
        return jax.lax.cond(coin, large, small, inputs)

    return Sampler(lambda key: (), large, small, either, lambda drawn, theta, index: drawn.sampled)


def replaced_sampler(replacement: Callable[..., Sampler]) -> Any:
    """Let DecByzPG and its naive version be built with another sampler, within a `with` statement."""
    return mock.patch.object(importlib.import_module("jaxbyz.algorithms.decbyzpg"), "sampler", replacement)
