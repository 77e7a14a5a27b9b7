"""Messages that are lost, of gradients and of parameters, for each receiver on its own.

A lost message is an unusable row, which a rule counts as one Byzantine message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.on_delivery import worst_losses
from jaxbyz.options import BELOW_1, option, reads
from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How often messages are lost."""

    drop: float = option(0.0, "probability that a message is lost", allowed=BELOW_1, needs=[reads("drop")])


def with_loss(channel: Channel, drop: float, *, adversarial: bool = False) -> Channel:
    """Lose messages with probability `drop`.

    If `adversarial`, every receiver of n messages loses the ⌈drop·n⌉ honest ones that would help it most.
    """

    def hear_gradients(now: Iteration, rule: Rule, memory: Any) -> Rule:
        return losing(now, channel.hear_gradients(now, rule, memory), gradients=True)

    def hear_parameters(now: Iteration, rule: Rule) -> Rule:
        return losing(now, channel.hear_parameters(now, rule), gradients=False)

    def losing(now: Iteration, rule: Rule, *, gradients: bool) -> Rule:
        def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
            n = messages.shape[0]
            honest = ~(now.mask if n == now.mask.shape[0] else now.mask[now.present])
            own = jnp.arange(n) == receiver.index
            if adversarial:
                origin = jnp.zeros_like(receiver.own) if gradients else receiver.own
                lost = worst_losses(messages, honest, own, origin, math.ceil(Fraction(str(drop)) * n))
            else:
                key, key_loss = jax.random.split(key)
                lost = jax.random.bernoulli(key_loss, drop, (n,)) & honest & ~own
            return rule.apply(key, jnp.where(lost[:, None], jnp.nan, messages), receiver, state)

        return rule._replace(apply=apply, random=True, translates=False)

    return channel._replace(hear_gradients=hear_gradients, hear_parameters=hear_parameters, leaves_gaps=True)
