"""What an attack is: an adversary that sees everything and acts in the environment, on gradients, on parameters.

The adversary knows every message, who is Byzantine, the rule it faces and its own memory. It decides what Byzantine
senders say, to each receiver separately if it likes. It never alters an agent's state: the paper forbids it.
Whatever it returns in the rows of honest senders is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.errors import UsageError

Memory = Any  # a pytree of arrays the adversary carries from iteration to iteration; () for none


class View(NamedTuple):
    """All the adversary looks at when it forges messages.

    messages: [K, D] what every agent would send if it were honest
    mask:     [K] True where the sender is Byzantine
    rule:     messages [K, D] -> [D], the aggregator or the agreement's rule that the receivers apply
    memory:   what the attack remembered
    step:     [] iteration t
    trial:    (key, messages [K, D], receiver index) -> [D], the rule as any receiver would apply it under any key;
              None when only `rule` is known
    random:   whether the rule draws random numbers, so that what it does should be averaged over keys
    weights:  [K, K] mixing weights W (receiver, sender) of the graph; None for all-to-all
    """

    messages: Float[Array, "K D"]
    mask: Bool[Array, " K"]
    rule: Callable[[Float[Array, "K D"]], Float[Array, " D"]]
    memory: Memory
    step: Int[Array, ""]
    trial: Callable[[PRNGKeyArray, Array, Array], Array] | None = None
    random: bool = False
    weights: Array | None = None


Forge = Callable[[PRNGKeyArray, View, Int[Array, ""]], Float[Array, "K D"]]


class Interference(NamedTuple):
    """What a Byzantine agent does wrong in its own environment, before it honestly computes its estimate.

    act:     (uniform draws [..., n], action) -> action, at every step; n numbers in [0, 1) per action dimension
    rewards: (key, rewards [T, M], alive [T, M]) -> rewards [T, M], after the episodes; zero where not alive
    """

    act: Callable[[Array, Array], Array] | None = None
    rewards: Callable[[PRNGKeyArray, Array, Array], Array] | None = None


class Attack(NamedTuple):
    """Pure functions; None means the Byzantine agents behave in that place.

    gradients, parameters: (key, view, receiver index) -> [K, D], what each sender tells that receiver
    interfere:   action space -> Interference
    equivocates: forged messages depend on the receiver; when False they are made, and aggregated, once for all
    init:        (K, D) -> memory
    remember:    view of the gradient messages -> memory, once an iteration
    """

    gradients: Forge | None = None
    parameters: Forge | None = None
    interfere: Callable[[Any], Interference] | None = None
    equivocates: bool = False
    init: Callable[[int, int], Memory] = lambda K, D: ()
    remember: Callable[[View], Memory] = lambda view: view.memory

    def interference(self, actions: Any) -> Interference | None:
        """Return what Byzantine agents do in an environment with this action space; None if they behave there."""
        return None if self.interfere is None else self.interfere(actions)


def from_function(function: Callable[[PRNGKeyArray, Array, Array], Array]) -> Attack:
    """A user's plain function as an attack on gradients: `(key, messages [K, D], mask [K])` to what is sent.

    It returns [K, D] when every receiver gets the same, or [K, K, D] (receiver, sender) when it equivocates.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        sent = function(key, view.messages, view.mask)
        shape, (K, D) = sent.shape, view.messages.shape
        if shape not in ((K, D), (K, K, D)):
            name = getattr(function, "__name__", repr(function))
            raise UsageError(f"attack {name!r} returned shape {shape}: it must be {(K, D)} or {(K, K, D)}")
        return sent if sent.ndim == 2 else sent[receiver]

    return Attack(gradients=forge, equivocates=True)


Place = Literal["gradients", "parameters", "both"]


def on_messages(forge: Forge, on: Place, *, equivocates: bool = False, mirrored: bool = False, **rest: Any) -> Attack:
    """An attack that forges with one function in the places named by `on`; `mirrored` wraps it in `mirror`."""
    if on not in ("gradients", "parameters", "both"):
        raise UsageError(f"on={on!r}: one of 'gradients', 'parameters', 'both'")
    if mirrored:
        forge, equivocates = mirror(forge), True
    return Attack(
        gradients=forge if on != "parameters" else None,
        parameters=forge if on != "gradients" else None,
        equivocates=equivocates,
        **rest,
    )


def mirror(forge: Forge) -> Forge:
    """Tell every second honest receiver the lie's mirror image about the honest mean: x to one, 2μ − x to the next.

    The two halves of the honest agents are pulled in opposite directions, which no rule can see from the messages
    of one receiver. Receivers are counted among the honest, so the halves are even for every mask.
    """

    def forged(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        lie = forge(key, view, receiver)
        odd = jnp.cumsum(~view.mask)[receiver] % 2 == 0
        return jnp.where(odd, 2.0 * honest_mean(view.messages, view.mask)[None] - lie, lie)

    return forged


def same_for_all(row: Float[Array, " D"], view: View) -> Float[Array, "K D"]:
    """One forged row said by every Byzantine sender; a broadcast, so nothing is copied."""
    return jnp.broadcast_to(row, view.messages.shape)


def sent(view: View, forged: Float[Array, "K D"]) -> Float[Array, "K D"]:
    """What goes over the wire: forged rows of Byzantine senders, true rows of honest ones."""
    return jnp.where(view.mask[:, None], forged, view.messages)


def tried(
    view: View, messages: Float[Array, "K D"], *, key: PRNGKeyArray | None = None, receiver: Array | None = None
) -> Float[Array, " D"]:
    """[D] what an honest receiver would make of these messages: the first honest one, unless `receiver` says who.

    Where the view knows the rule only as its first agent applies it, the receiver's row changes places with row 0,
    which is the same thing for every rule that does not live on a graph.
    """
    receiver = jnp.argmin(view.mask) if receiver is None else receiver
    if view.trial is not None and key is not None:
        return view.trial(key, messages, receiver)
    places = jnp.arange(messages.shape[0])
    swapped = jnp.where(places == 0, receiver, jnp.where(places == receiver, 0, places))
    return view.rule(messages[swapped])


def honest_mean(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Mean over senders that are not Byzantine."""
    honest = (~mask).astype(messages.dtype)
    total = jnp.sum(jnp.where(mask[:, None], 0.0, messages), axis=0)
    return total / jnp.maximum(jnp.sum(honest), 1.0)


def honest_std(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Coordinate-wise standard deviation over senders that are not Byzantine."""
    gaps = jnp.where(mask[:, None], 0.0, messages - honest_mean(messages, mask)[None])
    return jnp.sqrt(jnp.sum(gaps * gaps, axis=0) / jnp.maximum(jnp.sum(~mask), 1))


def honest_squares(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, "K K"]:
    """[K, K] ‖x_i − x_j‖² for pairs of senders that are not Byzantine, zero elsewhere."""
    y = jnp.where(mask[:, None], 0.0, messages - honest_mean(messages, mask)[None])
    gram = jnp.matmul(y, y.T, precision=jax.lax.Precision.HIGHEST)
    norms = jnp.diagonal(gram)
    both = ~mask[:, None] & ~mask[None]
    return jnp.where(both, jnp.maximum(norms[:, None] + norms[None] - 2.0 * gram, 0.0), 0.0)
