"""Agents that send the momentum of their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.options import BELOW_1, option, reads
from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.rules.base import Rule


@dataclass(frozen=True, kw_only=True)
class WorkerMomentum:
    """The momentum of messages: in exchange t, agents send m_t = βm_{t−1} + (1 − β)g_t, with m_0 = g_0."""

    momentum: float | None = option(
        None, "agents send βm_{t−1} + (1 − β)g_t in the place of gradients; by default what the algorithm uses",
        allowed=BELOW_1, needs=[reads("momentum")],
    )  # fmt: skip


class Moving(NamedTuple):
    """The last momentum of each agent, `[K, D]`, and whether it has one, `[K]`."""

    momentum: Float[Array, "K D"]
    started: Bool[Array, " K"]


def with_momentum(channel: Channel, beta: float) -> Channel:
    """Let agents send the momentum of their gradients; a gradient that is not finite leaves it unchanged."""

    def init(K: int, D: int) -> Any:
        return Moving(jnp.zeros((K, D)), jnp.zeros(K, bool)), channel.init(K, D)

    def send(now: Iteration, gradients: Array, memory: Any) -> tuple[Array, Any]:
        before, inner = memory
        here = now.takes_part
        mixed = beta * before.momentum + (1.0 - beta) * gradients
        moving = jnp.where(before.started[:, None], mixed, gradients)
        usable = here & jnp.all(jnp.isfinite(moving), axis=1)
        kept = jnp.where(usable[:, None], moving, before.momentum)
        arrived, inner = channel.send(now, moving, inner)
        return arrived, (Moving(kept, before.started | usable), inner)

    def hear_gradients(now: Iteration, rule: Rule, memory: Any) -> Rule:
        return channel.hear_gradients(now, rule, memory[1])

    return channel._replace(init=init, send=send, hear_gradients=hear_gradients)
