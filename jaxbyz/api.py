"""One-call forms on arrays of JAX, NumPy or torch, and on trees of them: `aggregate`, `agree` and `attack`.

Each is compiled once per component, options and shapes, so that a second call costs little more than the computation.
Messages are a matrix `[K, D]`, or a tree whose leaves are `[K, …]`, such as the parameters of K networks. A result is
what the messages were: leaves keep their types and are arrays of the same program. Computations use float32, or
float64 if a leaf has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from jaxbyz.attacks import Attack
from jaxbyz.components import make_agreement, make_attack, make_rule
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.exchange import Adversary, omniscient_view, sent_to
from jaxbyz.registry import Registry
from jaxbyz.rules import Rule
from jaxbyz.trees import apply_rule, apply_to_messages, as_matrix


def aggregate(
    rule: Rule | str | Callable[..., Array],
    key: PRNGKeyArray,
    messages: Any,
    *,
    byzantine: int = 0,
    own: int = 0,
    unsafe: bool = False,
    **options: Any,
) -> Any:
    """Aggregate K messages into one. A rule with memory starts from its initial state.

    Args:
        rule: a name such as `"krum"` or `"bucketing+rfa"`, a rule, or a function `([key,] messages) -> [D]`.
        key: random key, for rules that draw random numbers.
        messages: `[K, D]`, or a tree of leaves `[K, …]`, one row per sender.
        byzantine: how many of the messages the rule defends against.
        own: the receiver's own row, for rules that trust it (`"monna"`).
        unsafe: allow more Byzantine messages than a named rule tolerates.
        **options: options of a named rule.

    Returns:
        The aggregate, `[D]`, or a tree of leaves `[…]`.

    Raises:
        UsageError: if leaves differ in the number of senders, or the rule does not tolerate as many Byzantine ones.
    """

    def on_arrays(tree: Any, K: int) -> Any:
        _check_count(K, byzantine)

        def build() -> Callable[..., Any]:
            built = make_rule(rule, K, byzantine, unsafe=unsafe, **options)
            return lambda key, tree, own: apply_rule(built, key, tree, own)[0]

        return _compiled(build, "aggregate", rule, K, byzantine, unsafe, **options)(key, tree, np.int32(own))

    return apply_to_messages("messages", messages, on_arrays)


def agree(
    agreement: Agreement | Rule | str,
    key: PRNGKeyArray,
    parameters: Any,
    *,
    byzantine: int = 0,
    rounds: int = 1,
    attack: Attack | str | Callable[..., Array] = "none",
    mask: Bool[Array, " K"] | None = None,
    unsafe: bool = False,
    **options: Any,
) -> Any:
    """Run averaging agreement among K agents.

    Args:
        agreement: a name such as `"mda"`, the rule of every round, or an `Agreement`.
        key: random key.
        parameters: `[K, D]`, or a tree of leaves `[K, …]`, one row per agent.
        byzantine: how many agents the rule defends against.
        rounds: the number of rounds κ, unless the agreement has its own.
        attack: what Byzantine agents send; an attack on gradients only is used for parameters here.
        mask: `[K]`, who is Byzantine; by default the last `byzantine` agents.
        unsafe: allow more Byzantine agents than a named agreement tolerates.
        **options: options of a named agreement.

    Returns:
        What every agent holds in the end, in the form of `parameters`.
    """

    def on_arrays(tree: Any, K: int) -> Any:
        _check_count(K, byzantine)
        liars = jnp.asarray(np.arange(K) >= K - byzantine) if mask is None else _as_mask(mask, K)

        def build() -> Callable[..., Any]:
            forger = make_attack(attack, K, byzantine)
            built = make_agreement(agreement, K, byzantine, rounds, unsafe=unsafe, **options)

            def call(key: PRNGKeyArray, tree: Any, mask: Array) -> Any:
                matrix, restore = as_matrix(tree)
                memory = forger.init(*matrix.shape)
                adversary = Adversary(mask, forger.parameters or forger.gradients, forger.equivocates, memory)
                return restore(run_agreement(key, built, matrix, adversary).parameters)

            return call

        call = _compiled(build, "agree", agreement, attack, K, byzantine, rounds, unsafe, **options)
        return call(key, tree, liars)

    return apply_to_messages("parameters", parameters, on_arrays)


def attack(
    attack: Attack | str | Callable[..., Array],
    key: PRNGKeyArray,
    messages: Any,
    mask: Bool[Array, " K"],
    *,
    byzantine: int | None = None,
    rule: Rule | str | Callable[..., Array] = "mean",
    on: str = "gradients",
    **options: Any,
) -> Any:
    """Return what each receiver gets when the senders in `mask` lie.

    An attack that acts elsewhere, for example in the environment, leaves the messages unchanged.

    Args:
        attack: a name such as `"alie"`, an attack, or a function `(key, messages, mask) -> messages`.
        key: random key.
        messages: `[K, D]`, or a tree of leaves `[K, …]`, the true messages, one row per sender.
        mask: `[K]`, True for Byzantine senders.
        byzantine: how many senders are Byzantine; by default counted in `mask`, which is impossible if `mask` is an
            argument of a function under `jit`.
        rule: the rule that the adversary expects the receivers to apply.
        on: `"gradients"` or `"parameters"`, the kind of message that is forged.
        **options: options of a named attack.

    Returns:
        `[K, K, D]`, or a tree of leaves `[K, K, …]`: entry `[r, s]` is what receiver r gets from sender s.

    Raises:
        UsageError: if an argument has a wrong shape, or the number of liars cannot be counted.
    """
    check_choice("on", on, ("gradients", "parameters"))
    if byzantine is None and isinstance(mask, jax.core.Tracer):
        raise UsageError("byzantine: must be given if mask is an argument of a function under jit")

    def on_arrays(tree: Any, K: int) -> Any:
        liars = _as_mask(mask, K)
        f = int(liars.sum()) if byzantine is None else byzantine

        def build() -> Callable[..., Any]:
            forger = make_attack(attack, K, f, **options)
            forge = forger.gradients if on == "gradients" else forger.parameters
            expected = make_rule(rule, K, f, unsafe=True)

            def call(key: PRNGKeyArray, tree: Any, mask: Array) -> Any:
                matrix, restore = as_matrix(tree)
                key_forge, key_rule = jax.random.split(key)
                adversary = Adversary(mask, forge, forger.equivocates, forger.init(*matrix.shape))
                view = omniscient_view(key_rule, expected, expected.init(*matrix.shape), matrix, adversary)
                receivers = jnp.arange(K, dtype=jnp.int32)
                return restore(jax.vmap(lambda r: sent_to(key_forge, view, forge, r, restore_own=False))(receivers))

            return call

        return _compiled(build, "attack", attack, rule, on, K, f, **options)(key, tree, liars)

    return apply_to_messages("messages", messages, on_arrays)


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


def _as_mask(mask: Any, K: int) -> Array:
    array = jnp.asarray(mask, bool)
    if array.shape != (K,):
        raise UsageError(f"mask has shape {array.shape}: it must be ({K},), one entry per agent")
    return array


def _check_count(K: int, byzantine: int) -> None:
    if not 0 <= byzantine < K:
        raise UsageError(f"byzantine={byzantine} of {K} messages: must be between 0 and {K - 1}")
