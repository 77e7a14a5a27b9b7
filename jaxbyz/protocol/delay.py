"""Gradients that arrive late, at all receivers alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.attacks.on_delivery import worst_ages
from jaxbyz.options import NOT_NEGATIVE, option, reads
from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.rules.base import Rule


@dataclass(frozen=True, kw_only=True)
class Delay:
    """How late gradients arrive.

    Attributes:
        delay: a gradient is 0 to `delay` exchanges old when it arrives, each number with the same probability. An
            iteration has one exchange of gradients; several if it sends several messages (`Reuse.messages`); and none
            if agents take local steps or a server samples alone.
    """

    delay: int = option(
        0, "gradients arrive up to this many exchanges late", allowed=NOT_NEGATIVE, needs=[reads("delay")]
    )


class EarlierMessages(NamedTuple):
    """What may still arrive.

    Attributes:
        sent: `[d, K, D]`, the last gradients of each agent, the latest first. Only its first `sendings` entries have
            been sent. While an agent is absent, its last gradient is repeated.
        sendings: `[K]`, the number of exchanges since each agent sent its first gradient, including that one; 0 before.
    """

    sent: Float[Array, "d K D"]
    sendings: Int[Array, " K"]


def with_delay(channel: Channel, delay: int, *, adversarial: bool = False) -> Channel:
    """Let gradients arrive late; if `adversarial`, at the most harmful age instead of a random one."""

    def init(K: int, D: int) -> Any:
        return EarlierMessages(jnp.zeros((delay, K, D)), jnp.zeros(K, jnp.int32)), channel.init(K, D)

    def send(now: Iteration, gradients: Array, memory: Any) -> tuple[Array, Any]:
        earlier, inner = memory
        here, known = now.takes_part, earlier.sendings > 0
        latest = jnp.where((here | ~known)[:, None], gradients, earlier.sent[0])
        sent = jnp.concatenate([latest[None], earlier.sent])
        if adversarial:
            age = worst_ages(sent, now.mask, earlier.sendings)
        else:
            drawn = jax.random.randint(jax.random.fold_in(now.keys.delivery, 1), known.shape, 0, delay + 1)
            age = jnp.minimum(drawn, earlier.sendings)
        arrived = jnp.take_along_axis(sent, age[None, :, None], axis=0)[0]
        arrived, inner = channel.send(now, jnp.where(now.mask[:, None], gradients, arrived), inner)
        return arrived, (EarlierMessages(sent[:-1], earlier.sendings + (known | here)), inner)

    def hear_gradients(now: Iteration, rule: Rule, memory: Any) -> Rule:
        return channel.hear_gradients(now, rule, memory[1])

    return channel._replace(init=init, send=send, hear_gradients=hear_gradients)
