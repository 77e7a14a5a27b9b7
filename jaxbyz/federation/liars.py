"""A Byzantine node that plays a registered attack: it hears the others before it decides what to send."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.algorithms import State
from jaxbyz.attacks.base import Forge, View
from jaxbyz.federation.programs import NodePrograms
from jaxbyz.protocol.agreements import key_of_round
from jaxbyz.protocol.exchange import Adversary, omniscient_view, round_keys
from jaxbyz.protocol.iteration import IterationKeys, iteration_keys, message_keys
from jaxbyz.rules import Rule


class Liar:
    """What one Byzantine node sends to each receiver.

    It knows the rules, all messages that reached it, and which nodes are its accomplices. In the row of a node that it
    did not hear, and of an accomplice, whose true message it does not know, it assumes its own message.

    Args:
        programs: the programs of this node, with its attack.
        index: its number.
        accomplices: `[K]`, True for itself and for the nodes that it lies together with.
    """

    def __init__(self, programs: NodePrograms, index: int, accomplices: np.ndarray):
        self.programs, self.index, self.accomplices = programs, index, accomplices
        attack, K, D = programs.attack, len(accomplices), programs.start.parameters.shape[1]
        self.memory: Any = attack.init(K, D)
        self._gradients = jax.jit(self._lies(programs.aggregator, attack.gradients))
        self._parameters = jax.jit(self._lies(programs.agreement, attack.parameters))
        self._remember = jax.jit(lambda *view: attack.remember(self._view(programs.aggregator, *view)))

    def gradients(self, state: State, m: int, rows: np.ndarray) -> np.ndarray:
        """Return `[K, D]`, the lie for every receiver, given the gradients that this node heard in message m."""
        keys = self._keys(state, m, len(rows))
        rule_state = jax.tree.map(lambda leaf: leaf[0], state.rules)
        view = (rule_state, self._assumed(rows), self.memory, state.step)
        lies = np.asarray(self._gradients(keys.gradients, *view))
        self.memory = self._remember(keys.gradients, *view)
        return lies

    def parameters(self, state: State, m: int, i: int, rows: np.ndarray) -> np.ndarray:
        """Return `[K, D]`, the lie for every receiver in round i of the agreement that follows message m."""
        assert self.programs.agreement is not None
        key = key_of_round(self._keys(state, m, len(rows)).parameters, i)
        rule_state = self.programs.agreement.init(*rows.shape)
        return np.asarray(self._parameters(key, rule_state, self._assumed(rows), self.memory, state.step))

    def _keys(self, state: State, m: int, agents: int) -> IterationKeys:
        return message_keys(
            iteration_keys(state.key, state.step, agents), jnp.int32(m) if self.programs.messages > 1 else 0
        )

    def _assumed(self, rows: np.ndarray) -> np.ndarray:
        own = rows[self.index]
        unknown = ~np.isfinite(rows).all(axis=1) | self.accomplices
        return np.where(unknown[:, None], own[None], rows)

    def _adversary(self, forge: Forge | None, memory: Any, step: Array) -> Adversary:
        mask = jnp.asarray(self.accomplices)
        return Adversary(mask, forge, self.programs.attack.equivocates, memory, step)

    def _view(self, rule: Rule, key: PRNGKeyArray, rule_state: Any, messages: Array, memory: Any, step: Array) -> View:
        return omniscient_view(key, rule, rule_state, messages, self._adversary(None, memory, step))

    def _lies(self, rule: Rule | None, forge: Forge | None) -> Any:
        def lies(key: PRNGKeyArray, rule_state: Any, messages: Array, memory: Any, step: Array) -> Array:
            if forge is None or rule is None:
                return jnp.broadcast_to(messages[self.index], messages.shape)
            keys = round_keys(key)
            view = self._view(rule, keys.guess, rule_state, messages, memory, step)
            receivers = jnp.arange(messages.shape[0], dtype=jnp.int32)
            return jax.vmap(lambda receiver: forge(keys.forge, view, receiver)[self.index])(receivers)

        return lies
