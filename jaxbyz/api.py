"""One-call forms on plain arrays, for exploration: `aggregate`, `agree` and `attack`.

Each is compiled once per component, options and shapes, so that a second call costs little more than the computation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.attacks import Attack
from jaxbyz.components import make_agreement, make_attack, make_rule
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.exchange import Adversary, omniscient_view, sent_to
from jaxbyz.registry import Registry
from jaxbyz.rules import Receiver, Rule


def aggregate(
    rule: Rule | str | Callable[..., Array],
    key: PRNGKeyArray,
    messages: Float[Array, "K D"],
    *,
    byzantine: int = 0,
    own: int = 0,
    unsafe: bool = False,
    **options: Any,
) -> Float[Array, " D"]:
    """Aggregate K messages into one vector. A rule with memory starts from its initial state.

    Args:
        rule: a name such as `"krum"` or `"bucketing+rfa"`, a rule, or a function `([key,] messages) -> [D]`.
        key: random key, for rules that draw random numbers.
        messages: `[K, D]`, one row per sender.
        byzantine: how many of the messages the rule defends against.
        own: the receiver's own row, for rules that trust it (`"monna"`).
        unsafe: allow more Byzantine messages than a named rule tolerates.
        **options: options of a named rule.

    Returns:
        The aggregate, `[D]`.
    """
    messages = _as_matrix("messages", messages)
    K, D = messages.shape
    _check_count(K, byzantine)

    def build() -> Callable[..., Array]:
        built = make_rule(rule, K, byzantine, unsafe=unsafe, **options)
        return lambda key, messages, own: built.apply(
            key, messages, Receiver(messages[own], own), built.init(K, D)
        ).rows[0]

    return _compiled(build, "aggregate", rule, K, D, byzantine, unsafe, **options)(key, messages, np.int32(own))


def agree(
    agreement: Agreement | Rule | str,
    key: PRNGKeyArray,
    parameters: Float[Array, "K D"],
    *,
    byzantine: int = 0,
    rounds: int = 1,
    attack: Attack | str | Callable[..., Array] = "none",
    mask: Bool[Array, " K"] | None = None,
    unsafe: bool = False,
    **options: Any,
) -> Float[Array, "K D"]:
    """Run averaging agreement among K agents.

    Args:
        agreement: a name such as `"mda"`, the rule of every round, or an `Agreement`.
        key: random key.
        parameters: `[K, D]`, one row per agent.
        byzantine: how many agents the rule defends against.
        rounds: the number of rounds κ, unless the agreement has its own.
        attack: what Byzantine agents send; an attack on gradients only is used for parameters here.
        mask: `[K]`, who is Byzantine; by default the last `byzantine` agents.
        unsafe: allow more Byzantine agents than a named agreement tolerates.
        **options: options of a named agreement.

    Returns:
        What every agent holds in the end, `[K, D]`.
    """
    parameters = _as_matrix("parameters", parameters)
    K = parameters.shape[0]
    _check_count(K, byzantine)
    mask = jnp.asarray(np.arange(K) >= K - byzantine) if mask is None else _as_mask(mask, K)

    def build() -> Callable[..., Array]:
        forger = make_attack(attack, K, byzantine)
        built = make_agreement(agreement, K, byzantine, rounds, unsafe=unsafe, **options)

        def call(key: PRNGKeyArray, parameters: Array, mask: Array) -> Array:
            memory = forger.init(*parameters.shape)
            adversary = Adversary(mask, forger.parameters or forger.gradients, forger.equivocates, memory)
            return run_agreement(key, built, parameters, adversary).parameters

        return call

    call = _compiled(build, "agree", agreement, attack, K, byzantine, rounds, unsafe, **options)
    return call(key, parameters, mask)


def attack(
    attack: Attack | str | Callable[..., Array],
    key: PRNGKeyArray,
    messages: Float[Array, "K D"],
    mask: Bool[Array, " K"],
    *,
    byzantine: int | None = None,
    rule: Rule | str | Callable[..., Array] = "mean",
    on: str = "gradients",
    **options: Any,
) -> Float[Array, "K K D"]:
    """Return what each receiver gets when the senders in `mask` lie.

    An attack that acts elsewhere, for example in the environment, leaves the messages unchanged.

    Args:
        attack: a name such as `"alie"`, an attack, or a function `(key, messages, mask) -> messages`.
        key: random key.
        messages: `[K, D]`, the true messages, one row per sender.
        mask: `[K]`, True for Byzantine senders.
        byzantine: how many senders are Byzantine; by default counted in `mask`, which is impossible if `mask` is an
            argument of a function under `jit`.
        rule: the rule that the adversary expects the receivers to apply.
        on: `"gradients"` or `"parameters"`, the kind of message that is forged.
        **options: options of a named attack.

    Returns:
        `[K, K, D]`: entry `[r, s]` is what receiver r gets from sender s.

    Raises:
        UsageError: if an argument has a wrong shape, or the number of liars cannot be counted.
    """
    messages = _as_matrix("messages", messages)
    K, D = messages.shape
    mask = _as_mask(mask, K)
    check_choice("on", on, ("gradients", "parameters"))
    if byzantine is None and isinstance(mask, jax.core.Tracer):
        raise UsageError("byzantine: must be given if mask is an argument of a function under jit")
    f = int(mask.sum()) if byzantine is None else byzantine

    def build() -> Callable[..., Array]:
        forger = make_attack(attack, K, f, **options)
        forge = forger.gradients if on == "gradients" else forger.parameters
        expected = make_rule(rule, K, f, unsafe=True)

        def call(key: PRNGKeyArray, messages: Array, mask: Array) -> Array:
            key_forge, key_rule = jax.random.split(key)
            adversary = Adversary(mask, forge, forger.equivocates, forger.init(K, D))
            view = omniscient_view(key_rule, expected, expected.init(K, D), messages, adversary)
            receivers = jnp.arange(K, dtype=jnp.int32)
            return jax.vmap(lambda r: sent_to(key_forge, view, forge, r, restore_own=False))(receivers)

        return call

    return _compiled(build, "attack", attack, rule, on, K, D, f, **options)(key, messages, mask)


_COMPILED: OrderedDict[Any, Callable[..., Array]] = OrderedDict()
_MOST_COMPILED = 256


def _compiled(build: Callable[[], Callable[..., Array]], *parts: Any, **options: Any) -> Callable[..., Array]:
    """Return the jitted function that `build` makes, the same one for the same parts and options."""
    description = (*parts, *sorted(options.items()), Registry.revision)
    try:
        found = _COMPILED.get(description)
    except TypeError:  # a part cannot be hashed, for example a rule that holds the matrix of a graph
        return jax.jit(build())
    if found is None:
        found = _COMPILED[description] = jax.jit(build())
        if len(_COMPILED) > _MOST_COMPILED:
            _COMPILED.popitem(last=False)
    return found


def _as_matrix(name: str, values: Any) -> Array:
    array = values if isinstance(values, jax.Array) else jnp.asarray(values)
    if array.ndim != 2 or 0 in array.shape:
        raise UsageError(f"{name} has shape {array.shape}: it must be [K, D], one row per sender")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.float32)


def _as_mask(mask: Any, K: int) -> Array:
    array = jnp.asarray(mask, bool)
    if array.shape != (K,):
        raise UsageError(f"mask has shape {array.shape}: it must be ({K},), one entry per agent")
    return array


def _check_count(K: int, byzantine: int) -> None:
    if not 0 <= byzantine < K:
        raise UsageError(f"byzantine={byzantine} of {K} messages: must be between 0 and {K - 1}")
