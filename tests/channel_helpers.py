"""An iteration and a rule that let tests look at what a channel delivers."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.channel_options import ChannelOptions, make_channel
from jaxbyz.protocol.iteration import Iteration, iteration_keys
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Outcome, Receiver, Rule

everything = Rule(lambda key, rows, receiver, state: Outcome(rows.reshape(1, -1), jnp.ones((1, rows.shape[0])), state))


def channel_of(agents: int, **options) -> Channel:
    return make_channel(ChannelOptions(**options), agents)


def begin(channel: Channel, key: Array, mask: Array, step: int | Array = 0) -> Iteration:
    """Begin an iteration in which `mask` lies."""
    K = mask.shape[0]
    step = jnp.asarray(step, jnp.int32)
    return channel.begin(Iteration(step, jnp.bool_(True), iteration_keys(key, step, K), jnp.asarray(mask), Places(K)))


def heard_at(
    channel: Channel, now: Iteration, key: Array, messages: Array, memory, receiver: int | Array = -1
) -> Array:
    """Return the gradient messages `[n, D]` that the rule of a receiver sees; −1 is a server."""
    heard = channel.hear_gradients(now, everything, memory)
    own = Receiver(messages[receiver], jnp.asarray(receiver, jnp.int32))
    return heard.apply(key, messages, own, ()).rows.reshape(-1, messages.shape[1])
