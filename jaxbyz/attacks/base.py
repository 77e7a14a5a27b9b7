"""What an attack is: an adversary that sees everything and acts in the environment, on gradients, on parameters.

The adversary knows every message, who is Byzantine, the rule it faces and its own memory. It decides what Byzantine
senders say, to each receiver separately if it likes. It never alters an agent's state: the paper forbids it.
Whatever it returns in the rows of honest senders is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

Memory = Any  # a pytree of arrays the adversary carries from iteration to iteration; () for none


class View(NamedTuple):
    """All the adversary looks at when it forges messages.

    messages: [K, D] what every agent would send if it were honest
    mask:     [K] True where the sender is Byzantine
    rule:     messages [K, D] -> [D], the aggregator or the agreement's rule that the receivers apply
    memory:   what the attack remembered
    step:     [] iteration t
    """

    messages: Float[Array, "K D"]
    mask: Bool[Array, " K"]
    rule: Callable[[Float[Array, "K D"]], Float[Array, " D"]]
    memory: Memory
    step: Int[Array, ""]


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


def from_function(function: Callable[[PRNGKeyArray, Array, Array], Array]) -> Attack:
    """A user's plain function as an attack on gradients: `(key, messages [K, D], mask [K])` to what is sent.

    It returns [K, D] when every receiver gets the same, or [K, K, D] (receiver, sender) when it equivocates.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        sent = function(key, view.messages, view.mask)
        shape, (K, D) = sent.shape, view.messages.shape
        if shape not in ((K, D), (K, K, D)):
            name = getattr(function, "__name__", repr(function))
            raise ValueError(f"attack {name!r} returned shape {shape}: it must be {(K, D)} or {(K, K, D)}")
        return sent if sent.ndim == 2 else sent[receiver]

    return Attack(gradients=forge, equivocates=True)


def honest_mean(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Mean over senders that are not Byzantine."""
    honest = (~mask).astype(messages.dtype)
    total = jnp.sum(jnp.where(mask[:, None], 0.0, messages), axis=0)
    return total / jnp.maximum(jnp.sum(honest), 1.0)


def honest_std(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, " D"]:
    """Coordinate-wise standard deviation over senders that are not Byzantine."""
    gaps = jnp.where(mask[:, None], 0.0, messages - honest_mean(messages, mask))
    return jnp.sqrt(jnp.sum(gaps * gaps, axis=0) / jnp.maximum(jnp.sum(~mask), 1))
