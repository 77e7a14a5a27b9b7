"""Agents replay each other's iterations from their random keys, and exclude those that sent something else.

An audit of an agent costs its auditor one batch. An auditor that finds a lie accuses the liar, everybody replays the
same batch to check the accusation, and nobody hears the liar from the next iteration on. What is known about it is in
the attack's memory, because it is what becomes of liars: the attack without audits and the step without audits are
wrapped. A process of `jaxbyz.federation` computes the replay (`jaxbyz.federation.audits`); here it is known what it
would find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.algorithms.base import State
from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.attacks import Attack
from jaxbyz.attacks.base import Forge, Memory, View
from jaxbyz.protocol.iteration import iteration_keys
from jaxbyz.protocol.placement import Places

AUDIT_STREAM = 2**31  # of the key of delivery, apart from the streams of `jaxbyz.protocol`
TOLERANCE = 1e-3  # relative to the length of the true message: rounding differs less between machines


class AuditedMemory(NamedTuple):
    """What is known about liars, and what their attack remembers.

    Attributes:
        excluded_at: `[K]`, the iteration in which an agent was found out; −1 for those that were not.
        lied: `[K]`, whether a replay of the current iteration would find an agent out.
        own: what the attack itself remembers.
    """

    excluded_at: Int[Array, " K"]
    lied: Bool[Array, " K"]
    own: Memory

    @property
    def excluded(self) -> Bool[Array, " K"]:
        """`[K]`, whether an agent is excluded."""
        return self.excluded_at >= 0


def with_exclusion(attack: Attack, agrees: bool) -> Attack:
    """Return the attack of liars of whom some are excluded: rules see rows of NaN in the place of their messages.

    Such a row counts as one of the f Byzantine messages that a rule defends against, and rules give it no weight.

    Args:
        attack: the attack.
        agrees: whether the agents agree on parameters, so that liars can forge those.
    """
    interferes = attack.interfere is not None
    forges = [forge for forge in (attack.gradients, attack.parameters if agrees else None) if forge is not None]

    def silenced(view: View, rows: Array) -> Array:
        return jnp.where(view.memory.excluded[:, None], jnp.nan, rows)

    def as_alone(view: View) -> View:
        """Return the view of the attack itself. It knows that nobody hears those excluded."""
        trial = view.trial
        return view._replace(
            memory=view.memory.own,
            rule=lambda messages: view.rule(silenced(view, messages)),
            trial=None if trial is None else lambda key, rows, receiver: trial(key, silenced(view, rows), receiver),
        )

    def silencing(forge: Forge | None) -> Forge:
        def forged(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
            rows = view.messages if forge is None else forge(key, as_alone(view), receiver)
            return silenced(view, rows)

        return forged

    def lies(view: View) -> Array:
        """Return `[K]`, who sends the first honest agent something else than a replay of the iteration gives."""
        wrong = view.mask & attack.interferers(view.memory.own, view.mask) & interferes
        size = jnp.linalg.norm(view.messages, axis=1)
        for forge in forges:  # parameters are forged as gradients are, so that these show whether it lies about them
            key = jax.random.fold_in(jax.random.key(AUDIT_STREAM), view.step)  # whether it is a lie needs no chance
            sent = forge(key, as_alone(view), jnp.argmin(view.mask))
            wrong |= view.mask & ~(jnp.linalg.norm(sent - view.messages, axis=1) <= TOLERANCE * size)
        return wrong

    def remember(view: View) -> AuditedMemory:
        return view.memory._replace(lied=lies(view), own=attack.remember(as_alone(view)))

    return attack._replace(
        gradients=silencing(attack.gradients),
        parameters=silencing(attack.parameters),
        interferers=lambda memory, mask: attack.interferers(memory.own, mask),
        init=lambda K, D: AuditedMemory(jnp.full(K, -1, jnp.int32), jnp.zeros(K, bool), attack.init(K, D)),
        remember=remember,
    )


Step = Callable[..., tuple[State, Metrics]]


def with_audits(step: Step, probability: float) -> Step:
    """Let every agent replay a random other one with this probability after each iteration.

    Liars do not accuse anybody: everybody checks an accusation, so that a false one would exclude its author. The
    metric `batch` counts the trajectories of audits and of checks, mean over honest agents, rounded.
    """

    def audited(state: State, coin: Array, *places: Places) -> tuple[State, Metrics]:
        after, metrics = step(state, coin, *places)
        memory, honest = after.attack_memory, ~metrics.byzantine
        key = iteration_keys(state.key, state.step, honest.shape[0]).delivery
        targets = choose_targets(jax.random.fold_in(key, AUDIT_STREAM), memory.excluded, probability)
        replayed = jnp.zeros_like(honest).at[targets].set(honest, mode="drop")
        found = replayed & memory.lied & ~memory.excluded
        audits = jnp.sum(honest & (targets < honest.shape[0])) / jnp.maximum(jnp.sum(honest), 1)
        memory = memory._replace(excluded_at=jnp.where(found, state.step, memory.excluded_at))
        batch = jnp.round(metrics.batch * (1.0 + audits + jnp.sum(found))).astype(metrics.batch.dtype)
        return after._replace(attack_memory=memory), metrics._replace(batch=batch)

    return audited


def choose_targets(key: PRNGKeyArray, excluded: Bool[Array, " K"], probability: float) -> Int[Array, " K"]:
    """Return `[K]`, whom every agent replays: one of the others that are not excluded, or K if it replays nobody."""
    K, (key_coin, key_target) = excluded.shape[0], jax.random.split(key)
    allowed = ~excluded[None, :] & ~jnp.eye(K, dtype=bool)
    draws = jnp.where(allowed, jax.random.uniform(key_target, (K, K)), -1.0)
    audits = jax.random.bernoulli(key_coin, probability, (K,)) & jnp.any(allowed, axis=1) & ~excluded
    return jnp.where(audits, jnp.argmax(draws, axis=1), K).astype(jnp.int32)
