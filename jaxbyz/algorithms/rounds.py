"""What algorithms share around their lines: the parts of a federation, how an iteration begins, and its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.algorithms.base import State
from jaxbyz.algorithms.metrics import Measured, Metrics, Transferred, iteration_metrics
from jaxbyz.algorithms.settings import Settings
from jaxbyz.attacks import Attack, Interference
from jaxbyz.components import checked_rule, make_attack
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import Agreed
from jaxbyz.protocol.channel import Channel
from jaxbyz.protocol.channel_options import make_channel
from jaxbyz.protocol.exchange import Adversary
from jaxbyz.protocol.iteration import Iteration, iteration_keys
from jaxbyz.protocol.placement import Places
from jaxbyz.protocol.schedules import Schedule, schedules
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Sampled


class Parts(NamedTuple):
    """What a federation is built from, whichever algorithm it runs.

    Attributes:
        channel: how messages travel.
        attack: what Byzantine agents do.
        schedule: who is Byzantine in which iteration.
    """

    channel: Channel
    attack: Attack
    schedule: Schedule

    def interference(self, environment: Environment) -> Interference | None:
        """Return what Byzantine agents do wrong in their own environment."""
        return self.attack.interference(environment.actions)

    def begin(self, state: State, coin: Array, places: Places) -> Iteration:
        """Start an iteration: derive its keys, and determine who is Byzantine and who takes part."""
        keys = iteration_keys(state.key, state.step, places.agents)
        mask = self.schedule(keys.schedule, state.step)
        return self.channel.begin(Iteration(state.step, coin, keys, mask, places, state.attack_memory))

    def on_gradients(self, now: Iteration) -> Adversary:
        """Return who lies about gradients, and how."""
        return Adversary(now.mask, self.attack.gradients, self.attack.equivocates, now.memory, now.step)

    def on_parameters(self, now: Iteration) -> Adversary:
        """Return who lies about parameters during the agreement, and how."""
        return self.on_gradients(now)._replace(forge=self.attack.parameters)


def make_parts(settings: Settings) -> Parts:
    """Build the parts of a federation."""
    K, f, schedule = settings.agents, settings.byzantine, settings.schedule
    built = schedules[schedule].build(K, f) if isinstance(schedule, str) else schedule
    return Parts(make_channel(settings, K), make_attack(settings.attack, K, f), built)


def gradient_rule(settings: Settings, channel: Channel, D: int) -> Rule:
    """Build the rule for gradients.

    Raises:
        UsageError: if it does not fit the number of messages, or remembers senders some of whom are not heard.
    """
    rule = checked_rule(settings.rule, channel.voters, settings.defended, D)
    if rule.remembers_senders and channel.voters < settings.agents:
        raise UsageError(f"aggregator={settings.rule!r}: remembers every sender; use participation=1 or absent=cached")
    return rule


class Received(NamedTuple):
    """What the receivers on this device make of the gradients of one message.

    Attributes:
        rows: `[R, D]`, the aggregates v_t.
        shares: `[R, K]`, share of each sender in them.
        sampled: what all K agents sampled, with their true estimates.
        sent: `[]`, whether messages were sent.
        measured: what a small batch of the server measured, if it measures something (`sampler`).
    """

    rows: Float[Array, "R D"]
    shares: Float[Array, "R K"]
    sampled: Sampled
    sent: Bool[Array, ""] | bool = True
    measured: Any = ()


Exchange = Callable[[Iteration, State, Sampled], tuple[Received, State]]
Agree = Callable[[Iteration, State], Agreed]


class Protocol(NamedTuple):
    """The two lines that need the other agents: robust aggregation of gradients, and agreement on parameters.

    Attributes:
        exchange: `(iteration, State, own estimates) -> (Received, State)`, line 7; the state has the new memories of
            rules, channel and attack.
        agree: `(iteration, State that holds θ̃) -> Agreed`, line 9.
    """

    exchange: Exchange
    agree: Agree


Lines = Callable[[Iteration, State], tuple[State, Measured]]


def make_step(settings: Settings, parts: Parts, lines: Lines, transferred: Transferred) -> Callable[..., Any]:
    """Return an iteration, `(State, coin, places) -> (State, Metrics)`, from the lines of an algorithm.

    Args:
        settings: the settings of the iteration.
        parts: what the federation is built from.
        lines: what the algorithm does.
        transferred: the bytes that it sends.
    """

    def step(state: State, coin: Array, places: Places = Places(settings.agents)) -> tuple[State, Metrics]:
        now = parts.begin(state, coin, places)
        state, measured = lines(now, state)
        metrics = iteration_metrics(settings, now, measured, transferred(places, measured))
        return state._replace(step=now.step + 1), metrics

    return step


def repeat(
    messages: int, one_message: Lines, now: Iteration, state: State, *, alike: bool = False
) -> tuple[State, Measured]:
    """Send `messages` messages in turn; the program of one message is compiled once.

    Numbers of rounds and exchanges are summed over the messages, and norms and shares are averaged. `finite_proposals`
    of an agent is True only if all its proposals were finite. Other fields are those of the last message.

    Args:
        messages: how many messages there are: one for each use of the batch.
        one_message: the lines of the algorithm that follow the sampling.
        now: the iteration.
        state: the state after sampling.
        alike: whether the rules of all receivers remember the same; messages are then exchanged with one row of it.
    """
    if messages == 1:
        return one_message(now.message(0, state.attack_memory), state)

    def following(index: Array, carry: tuple[State, Measured]) -> tuple[State, Measured]:
        state, measured = carry
        state, new = one_message(now.message(index, state.attack_memory), state)
        return state, measured.followed_by(new)

    rows = state.rules
    if alike:
        state = state._replace(rules=jax.tree.map(lambda leaf: leaf[:1], rows))
    shapes: Any = jax.eval_shape(one_message, now.message(jnp.int32(0), state.attack_memory), state)[1]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = zeros._replace(finite_proposals=jnp.ones_like(zeros.finite_proposals))
    state, total = jax.lax.fori_loop(0, messages, following, (state, start))
    state = state._replace(rules=jax.tree.map(lambda leaf, row: jnp.broadcast_to(leaf, row.shape), state.rules, rows))
    return state, total._replace(aggregate_norms=total.aggregate_norms / messages, shares=total.shares / messages)
