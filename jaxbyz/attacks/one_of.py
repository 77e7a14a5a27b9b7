"""Several attacks in one compiled program: which of them is used is data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Forge, Memory, View
from jaxbyz.errors import UsageError


class ChosenMemory(NamedTuple):
    """What `one_of` remembers.

    Attributes:
        choice: `[]`, the index of the attack that is used.
        memories: the memory of every attack.
    """

    choice: Int[Array, ""]
    memories: tuple[Memory, ...]


def one_of(attacks: Sequence[Attack]) -> Attack:
    """Use one of these attacks, the first one unless `choose_attack` chooses another.

    The messages are those of the chosen attack alone. Under `vmap` over the choice all attacks are computed, which is
    cheap beside the episodes, and one compilation serves all of them. If one of them sends receivers different
    messages, every receiver aggregates for itself, whichever attack is chosen.

    Raises:
        UsageError: if several attacks interfere in the environment, where only one interference can be built in.
    """
    interfering = [number for number, attack in enumerate(attacks) if attack.interfere is not None]
    if len(interfering) > 1:
        raise UsageError("one_of: at most one of several attacks may interfere in the environment")

    def interferers(memory: ChosenMemory, mask: Bool[Array, " K"]) -> Bool[Array, " K"]:
        if not interfering:
            return mask
        (number,) = interfering
        return attacks[number].interferers(memory.memories[number], mask) & (memory.choice == number)

    def chosen(forges: list[Forge | None]) -> Forge | None:
        if not any(forges):
            return None

        def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
            def branch(number: int, one: Forge | None) -> Callable[[], Array]:
                own = view._replace(memory=view.memory.memories[number])
                return (lambda: view.messages) if one is None else (lambda: one(key, own, receiver))

            return jax.lax.switch(view.memory.choice, [branch(i, one) for i, one in enumerate(forges)])

        return forge

    def remember(view: View) -> ChosenMemory:
        choice, memories = view.memory
        own = [one.remember(view._replace(memory=memory)) for one, memory in zip(attacks, memories, strict=True)]
        return ChosenMemory(choice, tuple(own))

    return Attack(
        gradients=chosen([attack.gradients for attack in attacks]),
        parameters=chosen([attack.parameters for attack in attacks]),
        interfere=attacks[interfering[0]].interfere if interfering else None,
        interferers=interferers,
        equivocates=any(attack.equivocates for attack in attacks),
        searches=any(attack.searches for attack in attacks),
        init=lambda K, D: ChosenMemory(jnp.int32(0), tuple(attack.init(K, D) for attack in attacks)),
        remember=remember,
    )


def choose_attack(memory: Any, index: Int[Array, ""]) -> Any:
    """Return a memory, or a tree of memories, in which `one_of` uses the attack with this index.

    If one of the attacks is a `one_of` itself, that one keeps its own choice.
    """

    def chosen(one: Any) -> Any:
        return one._replace(choice=index) if isinstance(one, ChosenMemory) else one

    return jax.tree.map(chosen, memory, is_leaf=lambda node: isinstance(node, ChosenMemory))
