"""Agents that send the momentum of their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from channel_helpers import begin, channel_of

import jaxbyz as jb

KEY = jax.random.key(0)


def test_momentum_is_the_moving_mean_of_the_gradients():
    """Against a loop in NumPy; absent agents keep theirs."""
    channel = channel_of(5, participation=0.6, momentum=0.7)
    gradients = np.random.default_rng(0).normal(size=(12, 5, 3)).astype(np.float32)

    def step(memory, inputs):
        t, messages = inputs
        now = begin(channel, KEY, np.zeros(5, bool), t)
        arrived, memory = channel.send(now, messages, memory)
        return memory, (arrived, now.takes_part)

    run = jax.jit(lambda g: jax.lax.scan(step, channel.init(5, 3), (jnp.arange(12), g))[1])
    arrived, here = jax.device_get(run(gradients))
    momentum = [None] * 5
    for t, k in np.ndindex(12, 5):
        if here[t, k]:
            momentum[k] = gradients[t, k] if momentum[k] is None else 0.7 * momentum[k] + 0.3 * gradients[t, k]
            np.testing.assert_allclose(arrived[t, k], momentum[k], rtol=1e-4, atol=1e-5)
    with pytest.raises(jb.UsageError, match=r"momentum=1.0: must be in \[0, 1\)"):
        jb.resolve(momentum=1.0)


def test_no_momentum_is_no_memory():
    assert channel_of(5, momentum=0.0).init(5, 3) == () == channel_of(5).init(5, 3)


def test_a_gradient_that_is_not_finite_does_not_start_the_momentum():
    channel = channel_of(2, momentum=0.7)

    @jax.jit
    def two_messages(first, second):
        now = begin(channel, KEY, np.zeros(2, bool))
        _, memory = channel.send(now, first, channel.init(2, 3))
        return channel.send(now, second, memory)[0]

    first, second = np.ones((2, 3), np.float32), np.full((2, 3), 2.0, np.float32)
    first[1] = np.nan
    np.testing.assert_allclose(two_messages(first, second), [[1.3] * 3, [2.0] * 3], rtol=1e-6)
