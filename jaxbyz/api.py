"""One-call forms for exploration: `aggregate`, `agree`, `attack` on plain arrays, by name or with your own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.agreements import Agreement, agreements, run_agreement
from jaxbyz.attacks import Attack, attacks
from jaxbyz.attacks import from_function as attack_from_function
from jaxbyz.communication import omniscient_view, received
from jaxbyz.registry import UsageError, parse_spec
from jaxbyz.rules import Receiver, Rule, aggregators, chain, pre_aggregators
from jaxbyz.rules import from_function as rule_from_function


def make_rule(rule: str | Rule | Callable[..., Array], agents: int, byzantine: int, **options: Any) -> Rule:
    """A rule from a name (`"krum"`, `"bucketing+rfa"`, `"rfa:rounds=16"`), a `Rule`, or a plain function."""
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        return rule_from_function(rule)
    *before, last = rule.split("+")
    name, given = parse_spec(last)
    entry = aggregators[name]
    parts = []
    for text in before:
        pre, pre_options = parse_spec(text)
        if pre == "bucketing" and entry.limit is not None and "size" not in pre_options:
            pre_options.setdefault("alpha_max", float(entry.limit))
        parts.append(pre_aggregators[pre].build(agents, byzantine, **pre_options))
    return chain(*parts, entry.build(agents, byzantine, **{**given, **options}))


def make_attack(attack: str | Attack | Callable[..., Array], agents: int, byzantine: int, **options: Any) -> Attack:
    """An attack from a name (`"large-noise:scale=10"`), an `Attack`, or a plain function (key, messages, mask)."""
    if isinstance(attack, Attack):
        return attack
    if not isinstance(attack, str):
        return attack_from_function(attack)
    name, given = parse_spec(attack)
    return attacks[name].build(agents, byzantine, **{**given, **options})


def make_agreement(
    agreement: str | Rule | Agreement | None, agents: int, byzantine: int, rounds: int, **options: Any
) -> Agreement | None:
    """An agreement from a name, a rule to apply in every round, or an `Agreement`."""
    if agreement is None or isinstance(agreement, Agreement):
        return agreement
    if isinstance(agreement, str):
        name, given = parse_spec(agreement)
        rule = agreements[name].build(agents, byzantine, **{**given, **options})
    else:
        rule = agreement
    return None if rule is None else Agreement(rule, rounds)


def aggregate(
    name: str | Rule | Callable[..., Array],
    key: PRNGKeyArray,
    messages: Float[Array, "K D"],
    *,
    byzantine: int = 0,
    own: int = 0,
    **options: Any,
) -> Float[Array, " D"]:
    """Aggregate messages [K, D] into one vector [D], defending against `byzantine` of them.

    own says which row is the receiver's, for rules that trust it (monna). A rule with memory starts from nothing.
    """
    messages = _matrix("messages", messages)
    K, D = messages.shape
    _check_count(K, byzantine)
    rule = make_rule(name, K, byzantine, **options)
    return rule.apply(key, messages, Receiver(messages[own], jnp.int32(own)), rule.init(K, D)).rows[0]


def agree(
    name: str | Rule | Agreement,
    key: PRNGKeyArray,
    parameters: Float[Array, "K D"],
    *,
    byzantine: int = 0,
    rounds: int = 1,
    attack: str | Attack | Callable[..., Array] = "none",
    mask: Bool[Array, " K"] | None = None,
    **options: Any,
) -> Float[Array, "K D"]:
    """Run κ = rounds of agreement among K agents with parameters [K, D]; what each ends with, [K, D].

    With an attack, `mask` [K] says who lies (default: the last `byzantine`); an attack that has nothing for parameter
    messages uses what it has for gradients.
    """
    parameters = _matrix("parameters", parameters)
    K = parameters.shape[0]
    _check_count(K, byzantine)
    mask = jnp.arange(K) >= K - byzantine if mask is None else jnp.asarray(mask, bool)
    liar = make_attack(attack, K, byzantine)
    agreement = make_agreement(name, K, byzantine, rounds, **options)
    forge = liar.parameters or liar.gradients
    return run_agreement(
        key, agreement, parameters, mask, forge, equivocates=liar.equivocates, memory=liar.init(*parameters.shape)
    ).parameters


def attack(
    name: str | Attack | Callable[..., Array],
    key: PRNGKeyArray,
    messages: Float[Array, "K D"],
    mask: Bool[Array, " K"],
    *,
    rule: str | Rule | Callable[..., Array] = "mean",
    on: str = "gradients",
    **options: Any,
) -> Float[Array, "K K D"]:
    """What each receiver gets, [K, K, D] (receiver, sender), when the senders in `mask` lie.

    rule is what the adversary believes it faces; on chooses between `gradients` and `parameters`. An attack that acts
    elsewhere (in the environment, say) leaves the messages as they are.
    """
    messages = _matrix("messages", messages)
    K, D = messages.shape
    mask = jnp.asarray(mask, bool)
    if mask.shape != (K,):
        raise UsageError(f"mask has shape {mask.shape}: it must be ({K},), one entry a sender")
    if on not in ("gradients", "parameters"):
        raise UsageError(f"on={on!r}: gradients or parameters")
    f = K - 1 if isinstance(mask, jax.core.Tracer) else int(mask.sum())
    liar = make_attack(name, K, f, **options)
    forge = liar.gradients if on == "gradients" else liar.parameters
    key_forge, key_rule = jax.random.split(key)
    faced = make_rule(rule, K, f)
    view = omniscient_view(key_rule, faced, faced.init(K, D), messages, mask, liar.init(K, D), 0)
    return jax.vmap(lambda r: received(key_forge, view, forge, r, restore_own=False))(jnp.arange(K, dtype=jnp.int32))


def _matrix(name: str, values: Any) -> Array:
    array = jnp.asarray(values)
    if array.ndim != 2 or 0 in array.shape:
        raise UsageError(f"{name} has shape {array.shape}: it must be [K, D], a row a sender")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.float32)


def _check_count(K: int, byzantine: int) -> None:
    if not 0 <= byzantine < K:
        raise UsageError(f"byzantine={byzantine} of {K} messages: between 0 and {K - 1}")
