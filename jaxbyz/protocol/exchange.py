"""One round of all-to-all messages: agents send, the adversary forges, every receiver applies its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.batching import map_in_batches
from jaxbyz.accelerate.no_inline import stored
from jaxbyz.attacks.base import Forge, Memory, View
from jaxbyz.protocol.committees import draw_committees, scatter_outcomes
from jaxbyz.protocol.placement import Places
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState
from jaxbyz.rules.memory import senders_of

COMMITTEES_AT_ONCE = 1024
RECEIVERS_AT_ONCE = 64  # more receivers than this are processed in turn, so that no [K, K, D] array is materialised


class Adversary(NamedTuple):
    """Who lies in a round, and how.

    Attributes:
        mask: `[K]`, True for Byzantine senders.
        forge: what they send; None if they send their true messages.
        equivocates: whether the forged messages depend on the receiver.
        memory: what the attack remembers from earlier iterations.
        step: `[]`, the iteration t.
    """

    mask: Bool[Array, " K"]
    forge: Forge | None = None
    equivocates: bool = False
    memory: Memory = ()
    step: Int[Array, ""] | int = 0


class RoundKeys(NamedTuple):
    """Random keys of one round: for forged messages, for the receivers' rules, and for the adversary's guess."""

    forge: PRNGKeyArray
    rule: PRNGKeyArray
    guess: PRNGKeyArray


def round_keys(key: PRNGKeyArray) -> RoundKeys:
    """Derive the keys of a round from its key."""
    return RoundKeys(*jax.random.split(key, 3))


def receive(
    keys: RoundKeys,
    rule: Rule,
    state: RuleState,
    sent: Float[Array, "n D"],
    own: Float[Array, " D"],
    index: Array,
    row: Array | None = None,
) -> Outcome:
    """Return what one receiver makes of the messages of a round.

    Args:
        keys: keys of the round.
        rule: what the receiver applies.
        state: its rule state.
        sent: `[n, D]`, the messages that it got.
        own: `[D]`, its own, true message.
        index: `[]`, its number.
        row: `[]`, the row of its own message; by default its number, as where all messages arrive.

    Returns:
        One row `[D]`, shares `[n]`, and the next rule state.
    """
    receiver = Receiver(own, index if row is None else row)
    outcome = rule.apply(jax.random.fold_in(keys.rule, index), sent, receiver, state)
    return Outcome(outcome.rows[0], outcome.shares[0], outcome.state)


def sent_to(
    key: PRNGKeyArray, view: View, forge: Forge | None, receiver: Int[Array, ""], *, restore_own: bool = True
) -> Float[Array, "K D"]:
    """Return the messages that one receiver gets: honest rows are true, Byzantine rows are forged.

    Args:
        key: the adversary's random key.
        view: what the adversary sees.
        forge: how it forges; None for no attack.
        receiver: `[]`, the index of the receiver.
        restore_own: whether a Byzantine receiver gets its own true message. Rules that trust the receiver's own vector
            need this, because a Byzantine agent cannot alter its own state.
    """
    if forge is None:
        return view.messages
    lies = view.mask
    if restore_own:
        lies = lies & (jnp.arange(lies.shape[0]) != receiver)
    return jnp.where(lies[:, None], forge(key, view, receiver), view.messages)


def omniscient_view(
    key: PRNGKeyArray,
    rule: Rule,
    state: RuleState,
    messages: Float[Array, "K D"],
    adversary: Adversary,
    *,
    at_server: bool = False,
) -> View:
    """Return what the adversary sees when the receivers apply `rule`.

    It can try the rule out on any messages, but it does not know the random key that the receivers will use: `key` is
    its guess. If `at_server`, the receiver is none of the senders.
    """

    def trial(key: PRNGKeyArray, messages: Array, receiver: Int[Array, ""]) -> Array:
        own = Receiver(messages[receiver], jnp.int32(-1) if at_server else receiver)
        return rule.apply(key, messages, own, state).rows[0]

    def guess(messages: Array) -> Array:
        return trial(key, messages, jnp.int32(0))

    step = jnp.asarray(adversary.step, jnp.int32)
    return View(
        messages,
        adversary.mask,
        guess,
        adversary.memory,
        step,
        trial=trial,
        random=rule.random,
        weights=rule.graph,
        rotates=rule.rotates and not rule.stateful,  # what it remembers is not rotated
        state=state,
        senders=senders_of(state),
    )


def exchange(
    key: PRNGKeyArray,
    rule: Rule,
    states: RuleState,
    messages: Float[Array, "K D"],
    adversary: Adversary,
    places: Places | None = None,
    *,
    equal_states: bool = False,
) -> Outcome:
    """Run one round among K agents.

    If no sender equivocates and the rule gives every receiver the same result, it is computed once and copied.

    Args:
        key: random key of the round.
        rule: what every receiver applies.
        states: the rule's state, one row per receiver on this device, or a single row if it is the same for all of them
            and so are their results.
        messages: `[K, D]`, the true messages of all agents.
        adversary: who lies, and how.
        places: where agents live; by default all of them are on this device.
        equal_states: whether all receivers hold the same rule state, as they do if they have always heard the same.

    Returns:
        For the R receivers on this device: rows `[R, D]`, shares `[R, K]`, and the next rule states.
    """
    K = messages.shape[0]
    places = Places(K) if places is None else places
    if rule.committee is not None:
        return _exchange_in_committees(key, rule, messages, adversary, places)
    forge = adversary.forge
    keys = round_keys(key)
    first = places.first_agent(states)
    view = omniscient_view(keys.guess, rule, first, messages, adversary)
    same_for_everyone = forge is None or not adversary.equivocates

    if same_for_everyone and results_alike(rule, equal_states):
        sent = sent_to(keys.forge, view, forge, jnp.int32(0), restore_own=False)
        once = stored(receive(keys, rule, first, sent, sent[0], jnp.int32(0)))  # else XLA on a CPU computes every copy
        after = jax.tree.map(lambda leaf, before: jnp.broadcast_to(leaf, before.shape), once.state, states)
        return copies(once, places.per_device)._replace(state=after)

    common = sent_to(keys.forge, view, forge, jnp.int32(0), restore_own=False) if same_for_everyone else None

    def receive_at(inputs: tuple[Array, RuleState]) -> Outcome:
        index, state = inputs
        if common is None:
            sent = sent_to(keys.forge, view, forge, index, restore_own=rule.personal)
        else:
            true_own = rule.personal and forge is not None
            sent = common.at[index].set(messages[index]) if true_own else common
        return receive(keys, rule, state, sent, messages[index], index)

    receivers = (places.local(jnp.arange(K, dtype=jnp.int32)), states)
    return map_in_batches(receive_at, receivers, RECEIVERS_AT_ONCE)


def results_alike(rule: Rule, equal_states: bool) -> bool:
    """Whether a rule gives all receivers the same result if they hear the same."""
    return (equal_states or not rule.stateful) and not (rule.personal or rule.random)


def exchange_with_server(
    key: PRNGKeyArray,
    rule: Rule,
    state: RuleState,
    messages: Float[Array, "K D"],
    adversary: Adversary,
    receiver: Callable[[Float[Array, "K D"]], Receiver],
) -> tuple[Outcome, View]:
    """Run one round in which K workers send to a server.

    Args:
        key: random key of the round.
        rule: what the server applies.
        state: its rule state.
        messages: `[K, D]`, the true messages of all workers.
        adversary: who lies, and how.
        receiver: what the server knows besides, given the messages that it received.

    Returns:
        The outcome, with one row, and what the adversary has seen.
    """
    keys = round_keys(key)
    view = omniscient_view(keys.guess, rule, state, messages, adversary, at_server=True)
    sent = sent_to(keys.forge, view, adversary.forge, jnp.int32(0), restore_own=False)
    return rule.apply(keys.rule, sent, receiver(sent), state), view


def no_own_batch(sent: Float[Array, "K D"]) -> Receiver:
    """Return a server that has sampled nothing itself; rules that need a vector of the receiver use the first one."""
    return Receiver(sent[0], jnp.int32(-1))


def copies(tree: Any, rows: int) -> Any:
    """Return a tree whose leaves `[…]` are copied to `[rows, …]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *jnp.shape(leaf))), tree)


def _exchange_in_committees(
    key: PRNGKeyArray, rule: Rule, messages: Float[Array, "K D"], adversary: Adversary, places: Places
) -> Outcome:
    """Run one round in which agents send to the members of their committee only; see `jaxbyz.protocol.committees`.

    The adversary sees one committee at a time, with the rule that its members apply.
    """
    assert rule.committee is not None
    within = rule._replace(committee=None)
    key_draw, key_rounds = jax.random.split(key)
    members, sitting_out = draw_committees(key_draw, messages.shape[0], rule.committee)

    def one_committee(inputs: tuple[PRNGKeyArray, Int[Array, " s"]]) -> Outcome:
        key, who = inputs
        local = adversary._replace(mask=adversary.mask[who])
        return exchange(key, within, (), messages[who], local)

    keys = jax.random.split(key_rounds, members.shape[0])
    found = map_in_batches(one_committee, (keys, members), COMMITTEES_AT_ONCE)
    return jax.tree.map(places.local, scatter_outcomes(messages, members, sitting_out, found))
