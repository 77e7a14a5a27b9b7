"""One round of all-to-all messages: agents speak, the adversary forges, every receiver applies its rule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import Forge, Memory, View
from jaxbyz.meshes import Places
from jaxbyz.rules.base import Outcome, Receiver, Rule, State

RECEIVERS_AT_ONCE = 64  # more receivers than this are taken in turn: no [K, K, D] array is ever materialised


def received(
    key: PRNGKeyArray, view: View, forge: Forge | None, receiver: Int[Array, ""], *, restore_own: bool = True
) -> Float[Array, "K D"]:
    """What one receiver gets: honest rows as they are, Byzantine rows forged, its own row true if so asked.

    A Byzantine agent cannot alter even its own state, so where a rule trusts the receiver's own vector that vector is
    the true one.
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
    state: State,
    messages: Float[Array, "K D"],
    mask: Bool[Array, " K"],
    memory: Memory,
    step: Int[Array, ""] | int,
) -> View:
    """What the adversary sees when receivers apply `rule`: it can try the rule out, but guesses the receivers' key."""

    def trial(key: PRNGKeyArray, messages: Array, receiver: Int[Array, ""]) -> Array:
        return rule.apply(key, messages, Receiver(messages[receiver], receiver), state).rows[0]

    def guess(messages: Array) -> Array:
        return trial(key, messages, jnp.int32(0))

    step = jnp.asarray(step, jnp.int32)
    return View(messages, mask, guess, memory, step, trial=trial, random=rule.random, weights=rule.graph)


def exchange(
    key: PRNGKeyArray,
    rule: Rule,
    states: State,
    messages: Float[Array, "K D"],
    mask: Bool[Array, " K"],
    forge: Forge | None,
    *,
    equivocates: bool,
    memory: Memory = (),
    step: Int[Array, ""] | int = 0,
    places: Places | None = None,
) -> Outcome:
    """One round among K agents: rows [R, D] (what each receiver computed), shares [R, K], states [R, …].

    messages are everyone's; the R receivers are those that live here, which is everyone unless `places` says otherwise.
    When no sender equivocates and the rule is the same function for everyone, it is computed once and handed to all.
    """
    K, D = messages.shape
    places = Places(K) if places is None else places
    key_forge, key_rule, key_guess = jax.random.split(key, 3)
    first = places.first(states)
    view = omniscient_view(key_guess, rule, first, messages, mask, memory, step)
    alike = forge is None or not equivocates

    if alike and not (rule.personal or rule.random or rule.stateful):
        sent = received(key_forge, view, forge, jnp.int32(0), restore_own=False)
        one = rule.apply(key_rule, sent, Receiver(sent[0], jnp.int32(0)), first)
        rows, shares = jnp.broadcast_to(one.rows, (places.here, D)), jnp.broadcast_to(one.shares, (places.here, K))
        return Outcome(rows, shares, states)

    common = received(key_forge, view, forge, jnp.int32(0), restore_own=False) if alike else None

    def receive(inputs: tuple[Array, State]) -> Outcome:
        index, state = inputs
        if common is None:
            sent = received(key_forge, view, forge, index, restore_own=rule.personal)
        else:
            true_own = rule.personal and forge is not None
            sent = common.at[index].set(messages[index]) if true_own else common
        outcome = rule.apply(jax.random.fold_in(key_rule, index), sent, Receiver(messages[index], index), state)
        return Outcome(outcome.rows[0], outcome.shares[0], outcome.state)

    receivers = (places.mine(jnp.arange(K, dtype=jnp.int32)), states)
    if places.here <= RECEIVERS_AT_ONCE:
        return jax.vmap(receive)(receivers)
    return jax.lax.map(receive, receivers, batch_size=RECEIVERS_AT_ONCE)
