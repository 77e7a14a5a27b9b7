"""A random part of the agents takes part in each iteration. Absent agents neither send nor receive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.attacks.on_delivery import liars_take_part
from jaxbyz.options import UNIT_INTERVAL, Need, option, reads
from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState

ABSENT_AGENTS = Need(
    lambda config, _: config.present(config.agents) < config.agents, "all agents take part (--participation)"
)
LEAVES_SOMEBODY_OUT = Need(
    lambda config, _: config.participation == 1 or config.present(config.agents) < config.agents,
    "participation={participation} of agents={agents}, rounded up, is all of them",
)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Which agents take part.

    Attributes:
        participation: the part of the agents that takes part in each iteration, ⌈participation·K⌉ of them.
        absent: `"ignore"`: rules see the messages of those present only. `"cached"`: the last gradient of those absent
            counts; before their first one it is missing. Agreement is always among those present.
    """

    participation: float = option(
        1.0, "part of the agents that takes part in each iteration, drawn at random", allowed=UNIT_INTERVAL,
        needs=[reads("participation"), LEAVES_SOMEBODY_OUT],
    )  # fmt: skip
    absent: str = option(
        "ignore", "what counts of absent agents: nothing, or their last gradient", choices=("ignore", "cached"),
        needs=[reads("participation"), ABSENT_AGENTS],
    )  # fmt: skip

    def present(self, agents: int) -> int:
        """Return how many of K agents take part in an iteration."""
        return max(1, math.ceil(Fraction(str(self.participation)) * agents))


def with_participation(channel: Channel, present: int, *, adversarial: bool = False) -> Channel:
    """Let a part of the agents take part, whose messages alone are heard.

    Args:
        channel: how messages travel otherwise.
        present: how many agents take part, m.
        adversarial: whether Byzantine agents always take part.
    """

    def begin(now: Iteration) -> Iteration:
        now, key = channel.begin(now), jax.random.fold_in(now.keys.delivery, 0)
        if adversarial:
            return now._replace(present=liars_take_part(key, now.mask, present))
        return now._replace(present=jnp.sort(jax.random.permutation(key, now.mask.shape[0])[:present]))

    def hear_gradients(now: Iteration, rule: Rule, memory: Any) -> Rule:
        return among_present(now, channel.hear_gradients(now, rule, memory))

    def hear_parameters(now: Iteration, rule: Rule) -> Rule:
        return among_present(now, channel.hear_parameters(now, rule))

    return channel._replace(
        begin=begin, hear_gradients=hear_gradients, hear_parameters=hear_parameters, voters=present, present=present,
        all_alike=False,
    )  # fmt: skip


def among_present(now: Iteration, rule: Rule) -> Rule:
    """Return a rule on K messages that applies another one to the messages of those present."""
    present = now.present
    assert present is not None

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        own = present == receiver.index
        position = jnp.where(jnp.any(own), jnp.argmax(own), -1).astype(jnp.int32)
        outcome = rule.apply(key, messages[present], receiver._replace(index=position), state)
        shares = jnp.zeros((outcome.shares.shape[0], messages.shape[0]), outcome.shares.dtype)
        return outcome._replace(shares=shares.at[:, present].set(outcome.shares))

    return rule._replace(apply=apply, init=lambda n, D: rule.init(present.shape[0], D))


class LastMessages(NamedTuple):
    """The last gradient of each agent, `[K, D]`, and whether it has sent one, `[K]`."""

    sent: Float[Array, "K D"]
    known: Bool[Array, " K"]


def with_cached_messages(channel: Channel, present: int, *, adversarial: bool = False) -> Channel:
    """Let a part of the agents take part, while the last gradient of the others counts.

    Arguments are as in `with_participation`.
    """
    ignoring = with_participation(channel, present, adversarial=adversarial)

    def init(K: int, D: int) -> Any:
        return LastMessages(jnp.zeros((K, D)), jnp.zeros(K, bool)), channel.init(K, D)

    def send(now: Iteration, gradients: Array, memory: Any) -> tuple[Array, Any]:
        last, inner = memory
        here = now.takes_part
        latest = jnp.where((here | ~last.known)[:, None], gradients, last.sent)
        arrived, inner = channel.send(now, latest, inner)
        return jnp.where(now.mask[:, None], gradients, arrived), (LastMessages(latest, last.known | here), inner)

    def hear_gradients(now: Iteration, rule: Rule, memory: Any) -> Rule:
        last, inner = memory
        heard = channel.hear_gradients(now, rule, inner)
        missing = ~(last.known | now.mask | now.takes_part)

        def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
            return heard.apply(key, jnp.where(missing[:, None], jnp.nan, messages), receiver, state)

        return heard._replace(apply=apply)

    return ignoring._replace(
        init=init, send=send, hear_gradients=hear_gradients, voters=channel.voters, leaves_gaps=True
    )


def only_present(now: Iteration, after: Any, before: Any) -> Any:
    """Return what the agents on this device hold after a part of the iteration: those absent keep what they had.

    Args:
        now: the iteration, with those present.
        after: leaves `[R, …]`, one row per agent on this device.
        before: leaves of the same shapes.
    """
    here = now.places.local(now.takes_part)
    return jax.tree.map(lambda a, b: jnp.where(here.reshape(-1, *[1] * (a.ndim - 1)), a, b), after, before)
