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
