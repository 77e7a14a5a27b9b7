"""What an attack is: an adversary that sees everything and acts in the environment, on gradients and on parameters.

The adversary knows every message, who is Byzantine, the rule it faces, and its own memory. It decides what Byzantine
senders send, to each receiver separately if it likes. It never alters an agent's state: the paper forbids it.
Whatever it returns in the rows of honest senders is ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.honest_statistics import honest_mean
from jaxbyz.errors import UsageError, check_choice

Memory = Any  # a pytree of arrays that the adversary carries from iteration to iteration; () for none


class View(NamedTuple):
    """All that the adversary sees when it forges messages.

    Attributes:
        messages: `[K, D]`, what every agent would send if it were honest.
        mask: `[K]`, True where the sender is Byzantine.
        rule: `messages [K, D] -> [D]`, the rule that the receivers apply, as agent 0 applies it under a guessed key.
        memory: what the attack remembers from earlier iterations.
        step: `[]`, the iteration t.
        trial: `(key, messages [K, D], receiver index) -> [D]`, the rule as any receiver would apply it under any key;
            None if only `rule` is known.
        random: whether the rule draws random numbers, so that its effect should be averaged over keys.
        weights: `[K, K]`, the mixing weights W (receiver, sender) of the graph; None for all-to-all.
        rotates: whether rotating all messages rotates what the rule returns.
        state: the state of the rule, as agent 0 or the server holds it.
        senders: what the rule remembers of the senders (`jaxbyz.rules.memory.SenderMemory`), if it does.
    """

    messages: Float[Array, "K D"]
    mask: Bool[Array, " K"]
    rule: Callable[[Float[Array, "K D"]], Float[Array, " D"]]
    memory: Memory
    step: Int[Array, ""]
    trial: Callable[[PRNGKeyArray, Array, Array], Array] | None = None
    random: bool = False
    weights: Array | None = None
    rotates: bool = False
    state: Any = ()
    senders: Any = None

    @property
    def averages_over_keys(self) -> bool:
        """Whether the effect of forged messages must be, and can be, averaged over keys of the rule."""
        return self.random and self.trial is not None


# (key, view, receiver index) -> [K, D], what each sender sends to that receiver
Forge = Callable[[PRNGKeyArray, View, Int[Array, ""]], Float[Array, "K D"]]


class Interference(NamedTuple):
    """What a Byzantine agent does wrong in its own environment, before it computes its estimate as prescribed.

    Attributes:
        act: `(draws [..., n], action) -> action`, applied at every step; draws are uniform in [0, 1), one per action
            dimension.
        rewards: `(key, rewards [T, M], alive [T, M]) -> rewards [T, M]`, applied after the episodes; the result is zero
            where an episode is not alive.
        poison: `(rewards [S], effects [S]) -> rewards [S]`, applied to all rewards of one agent's batch.
            The effect of a reward is its contribution to the component of the agent's estimate along the true one,
            which the agent computes first (`jaxbyz.sampling.reward_effects`). Both are zero at steps not taken.
    """

    act: Callable[[Array, Array], Array] | None = None
    rewards: Callable[[PRNGKeyArray, Array, Array], Array] | None = None
    poison: Callable[[Array, Array], Array] | None = None


class Attack(NamedTuple):
    """The pure functions of an attack. None means that Byzantine agents behave honestly in that place.

    Attributes:
        gradients: forges the gradient messages.
        parameters: forges the parameters that are sent during the agreement.
        interfere: `action space -> Interference`.
        interferers: `(memory, mask [K]) -> [K]`, which of the Byzantine agents interfere; by default all of them.
        equivocates: whether forged messages depend on the receiver. If not, they are forged and aggregated only once.
        searches: whether it applies the rule many times to find its messages, so that forging takes most of the time.
        init: `(K, D) -> memory`.
        remember: `view of the gradient messages -> memory`, the memory after an exchange of gradients. An iteration has
            several exchanges if it sends several messages (`Reuse.messages`), and none if agents take local steps or
            ByzPG's server samples alone.
    """

    gradients: Forge | None = None
    parameters: Forge | None = None
    interfere: Callable[[Any], Interference] | None = None
    interferers: Callable[[Memory, Bool[Array, " K"]], Bool[Array, " K"]] = lambda memory, mask: mask
    equivocates: bool = False
    searches: bool = False
    init: Callable[[int, int], Memory] = lambda K, D: ()
    remember: Callable[[View], Memory] = lambda view: view.memory

    def interference(self, actions: Any) -> Interference | None:
        """Return what Byzantine agents do in an environment with this action space; None if they behave there."""
        return None if self.interfere is None else self.interfere(actions)


def no_attack() -> Attack:
    """Byzantine agents behave honestly: for baselines."""
    return Attack()


def from_function(function: Callable[[PRNGKeyArray, Array, Array], Array]) -> Attack:
    """Make an attack on gradients from a plain function `(key, messages [K, D], mask [K]) -> messages`.

    The function returns `[K, D]` if every receiver gets the same, or `[K, K, D]` (receiver, sender) if it equivocates.

    Raises:
        UsageError: if the function does not take three arguments.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise UsageError(f"attack {name!r}: must be a function of (key, messages, mask); {error}") from None

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        forged = function(key, view.messages, view.mask)
        shape, (K, D) = forged.shape, view.messages.shape
        if shape not in ((K, D), (K, K, D)):
            raise UsageError(f"attack {name!r} returned shape {shape}: it must be {(K, D)} or {(K, K, D)}")
        return forged if forged.ndim == 2 else forged[receiver]

    return Attack(gradients=forge, equivocates=True)


MessageKind = Literal["gradients", "parameters", "both"]


def on_messages(
    forge: Forge, on: MessageKind, *, equivocates: bool = False, mirror_for_half: bool = False, **functions: Any
) -> Attack:
    """Make an attack that forges messages with one function.

    Most attacks have the option `on`, which is explained here, and many have the option `equivocate`, which sends the
    mirror image about the honest mean to half of the honest receivers (`mirrored_for_half`).

    Args:
        forge: what is sent.
        on: which messages are forged.
        equivocates: whether `forge` depends on the receiver.
        mirror_for_half: wrap `forge` in `mirrored_for_half`.
        **functions: other functions of the `Attack`.
    """
    check_choice("on", on, get_args(MessageKind))
    if mirror_for_half:
        forge, equivocates = mirrored_for_half(forge), True
    return Attack(
        gradients=forge if on != "parameters" else None,
        parameters=forge if on != "gradients" else None,
        equivocates=equivocates,
        **functions,
    )


def same_row(
    row: Callable[[View], Float[Array, " D"]], on: MessageKind, *, mirror_for_half: bool = False, **functions: Any
) -> Attack:
    """Make an attack whose senders all send the same `row(view)` to every receiver; arguments as in `on_messages`."""

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return sent_by_all(row(view), view)

    return on_messages(forge, on, mirror_for_half=mirror_for_half, **functions)


def mirrored_for_half(forge: Forge) -> Forge:
    """Send every second honest receiver the mirror image about the honest mean: 2μ − x instead of x.

    The two halves of the honest agents are pulled in opposite directions, which no rule can see from the messages of
    one receiver. Receivers are counted among the honest agents, so the halves are even for every mask.
    """

    def forged(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        rows = forge(key, view, receiver)
        mirrored = jnp.cumsum(~view.mask)[receiver] % 2 == 0
        return jnp.where(mirrored, 2.0 * honest_mean(view.messages, view.mask)[None] - rows, rows)

    return forged


def sent_by_all(row: Float[Array, " D"], view: View) -> Float[Array, "K D"]:
    """Return `[K, D]` messages in which every sender sends the same row."""
    return jnp.broadcast_to(row, view.messages.shape)


def with_forged_rows(view: View, forged: Float[Array, "K D"]) -> Float[Array, "K D"]:
    """Return what receivers get: the forged rows of Byzantine senders and the true rows of honest ones."""
    return jnp.where(view.mask[:, None], forged, view.messages)


def rule_output(
    view: View, messages: Float[Array, "K D"], *, key: PRNGKeyArray | None = None, receiver: Array | None = None
) -> Float[Array, " D"]:
    """Return what an honest receiver would compute from these messages.

    Without `key` or `View.trial` this is `View.rule`, the rule as agent 0 applies it under a guessed key, with the rows
    of the receiver and of agent 0 exchanged. On a graph, the result is that of agent 0's place.

    Args:
        view: what the adversary sees.
        messages: `[K, D]`, one row per sender.
        key: random key of the rule; None for the guessed one.
        receiver: `[]`, the index of the receiver; by default the first honest agent.
    """
    receiver = jnp.argmin(view.mask) if receiver is None else receiver
    if view.trial is not None and key is not None:
        return view.trial(key, messages, receiver)
    index = jnp.arange(messages.shape[0])
    swapped = jnp.where(index == 0, receiver, jnp.where(index == receiver, 0, index))
    return view.rule(messages[swapped])
