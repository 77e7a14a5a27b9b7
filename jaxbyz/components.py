"""Build rules, attacks, agreements and policies from names, for the Python API and the command line alike.

A name may carry options and may be joined with others: `"krum"`, `"rfa:rounds=16"`, `"bucketing:size=2+rfa"`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from jaxbyz.attacks import Attack, attacks
from jaxbyz.attacks import from_function as attack_from_function
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy, default_policy, policies
from jaxbyz.protocol.agreements import Agreement, agreements
from jaxbyz.registry import Registry, largest_below, parse_spec
from jaxbyz.rules import Rule, aggregators, chain, check_rule, pre_aggregators
from jaxbyz.rules import from_function as rule_from_function

AGREEMENT_ROUNDS = 4  # κ where none is given


class Limit(NamedTuple):
    """How many Byzantine agents a component tolerates, and how many it meets.

    Attributes:
        kind: what the component is, for the message.
        name: its name.
        limit: it tolerates f < limit·K; None if there is no limit.
        agents: the number of agents K.
        byzantine: the number of Byzantine agents f.
    """

    kind: str
    name: str
    limit: Fraction | None
    agents: int
    byzantine: int

    @property
    def tolerated(self) -> int:
        """The largest number of Byzantine agents that the component tolerates."""
        return self.agents if self.limit is None else largest_below(self.limit, self.agents)


def check_limits(limits: Sequence[Limit], unsafe: bool = False, option: str = "byzantine") -> None:
    """Refuse more Byzantine agents than components tolerate, in one message about all of them.

    Args:
        limits: those of all components of an algorithm.
        unsafe: allow it anyway.
        option: the option that f comes from.

    Raises:
        UsageError: if f is too large for a component and `unsafe` is False.
    """
    broken: dict[str, list[str]] = {}
    for one in limits:
        if one.byzantine > one.tolerated:
            met = f"{option}={one.byzantine} of agents={one.agents} exceeds"
            text = f"the limit {one.limit} of {one.kind} {one.name}: at most {one.tolerated}"
            broken.setdefault(met, []).append(text)
    if broken and not unsafe:
        found = "; ".join(f"{met} {', and '.join(texts)}" for met, texts in broken.items())
        raise UsageError(f"{found}{_alternative(limits)} (the option unsafe runs it anyway)")


def _alternative(limits: Sequence[Limit]) -> str:
    """Return words about another agreement that tolerates as many Byzantine agents, if only the agreement does not."""
    broken = [one for one in limits if one.byzantine > one.tolerated]
    if any(one.kind != "agreement" for one in broken):
        return ""
    most = max(one.byzantine for one in broken)
    for name in agreements.names():
        limit = agreements[name].limit
        if limit is not None and largest_below(limit, broken[0].agents) >= most:
            return f"; agreement={name} tolerates {most}"
    return ""


def limits_of_rule(rule: Any, agents: int, byzantine: int) -> list[Limit]:
    """Return the limits of a named rule: those of its aggregator and of its pre-aggregators."""
    if not isinstance(rule, str):
        return []
    *before, last = (parse_spec(text)[0] for text in rule.split("+"))
    found = [("aggregator", aggregators[last]), *(("pre-aggregator", pre_aggregators[name]) for name in before)]
    return [Limit(kind, entry.name, entry.limit, agents, byzantine) for kind, entry in found]


def limits_of_agreement(agreement: Any, agents: int, byzantine: int) -> list[Limit]:
    """Return the limit of a named agreement."""
    if not isinstance(agreement, str):
        return []
    entry = agreements[parse_spec(agreement)[0]]
    return [Limit("agreement", entry.name, entry.limit, agents, byzantine)]


def make_rule(
    rule: Rule | str | Callable[..., Array], agents: int, byzantine: int, *, unsafe: bool = False, **options: Any
) -> Rule:
    """Return a rule from its name, from a `Rule`, or from a function `([key,] messages) -> [D]`.

    Args:
        rule: what to build; pre-aggregators are joined to the name of an aggregator with `+`.
        agents: the number of messages K.
        byzantine: the number f that the rule defends against.
        unsafe: allow f beyond the limits of the named rules.
        **options: options of the aggregator; they take precedence over those in the name.
    """
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        return rule_from_function(rule)
    *before, last = rule.split("+")
    name, given = parse_spec(last)
    entry = aggregators[name]
    check_limits(limits_of_rule(rule, agents, byzantine), unsafe)
    parts = [entry.build(agents, byzantine, **{**given, **options})]
    for text in reversed(before):
        pre_name, pre_options = parse_spec(text)
        before_it = pre_aggregators[pre_name]
        if entry.limit is not None and "alpha_max" in inspect.signature(before_it.factory).parameters:
            pre_options.setdefault("alpha_max", float(entry.limit))  # buckets must not exceed the aggregator's limit
        built = before_it.build(agents, byzantine, **pre_options)
        parts = [built, *parts] if isinstance(built, Rule) else [built(chain(*parts))]
    return chain(*parts)


def checked_rule(rule: Rule | str | Callable[..., Array], agents: int, byzantine: int, size: int) -> Rule:
    """Return a rule whose limits were checked before, and which can be traced for K messages of D parameters.

    Raises:
        UsageError: if the rule does not fit these sizes.
    """
    build = _checked_once if isinstance(rule, str) else _checked_once.__wrapped__  # tracing takes time
    return build(rule, agents, byzantine, size, Registry.revision)


@lru_cache(maxsize=64)
def _checked_once(rule: Any, agents: int, byzantine: int, size: int, revision: int) -> Rule:
    """Build and trace a rule; `revision` makes the cache notice rules that are registered again."""
    built = make_rule(rule, agents, byzantine, unsafe=True)
    check_rule(built, agents, size)
    return built


def make_attack(
    attack: Attack | str | Callable[..., Array] | None, agents: int, byzantine: int, **options: Any
) -> Attack:
    """Return an attack from its name, from an `Attack`, or from a function `(key, messages, mask) -> messages`.

    None is the attack `"none"`.
    """
    if isinstance(attack, Attack):
        return attack
    if attack is not None and not isinstance(attack, str):
        return attack_from_function(attack)
    name, given = parse_spec("none" if attack is None else attack)
    return attacks[name].build(agents, byzantine, **{**given, **options})


def group_members(agents: int, groups: int) -> list[np.ndarray]:
    """Return the agents of each group: agent k belongs to group k mod G."""
    if not 1 <= groups <= agents:
        raise UsageError(f"groups={groups} of agents={agents}: must be from 1 to the number of agents")
    return [np.arange(first, agents, groups) for first in range(groups)]


def make_group_rules(
    rule: Rule | str | Callable[..., Array], agents: int, byzantine: int, groups: int, *, unsafe: bool = False
) -> list[Rule]:
    """Return the rule of each group, if the last f agents may be Byzantine.

    A named rule defends against the f of its group, or against as many as it can. A group with more is lost, and the
    vote of the groups needs a majority that is not.

    Args:
        rule: as in `make_rule`.
        agents: the number of agents K.
        byzantine: the number f of agents that may be Byzantine.
        groups: the number of groups G.
        unsafe: allow any number of lost groups.

    Raises:
        UsageError: if half of the groups or more are lost and `unsafe` is False.
    """
    rules, lost = [], 0
    for members in group_members(agents, groups):
        liars = int(np.sum(members >= agents - byzantine))
        defended = next((f for f in range(liars, 0, -1) if _tolerates(rule, len(members), f)), 0)
        rules.append(make_rule(rule, len(members), defended))
        lost += defended < liars
    if 2 * lost >= groups and not unsafe:
        raise UsageError(
            f"byzantine={byzantine} of agents={agents}: too many for the rule in {lost} of groups={groups}, and fewer "
            "than half may be lost (the option unsafe runs it anyway)"
        )
    return rules


def _tolerates(rule: Rule | str | Callable[..., Array], agents: int, byzantine: int) -> bool:
    """Return whether a rule can be built for so many Byzantine agents."""
    try:
        make_rule(rule, agents, byzantine)
    except UsageError:
        return False
    return True


def make_policy(
    policy: Policy | str | None, environment: Environment, defaults: dict[str, Any] | None = None, **options: Any
) -> Policy:
    """Return a policy from its name, or a `Policy` unchanged.

    Args:
        policy: what to build; None chooses `cnn` if observations are images, otherwise `mlp`.
        environment: the task.
        defaults: values that replace the policy's own defaults, for those of its options that are among them.
        **options: options of the policy; they take precedence over those in the name.
    """
    if isinstance(policy, Policy):
        return policy
    name, given = parse_spec(default_policy(environment) if policy is None else policy)
    entry = policies[name]
    chosen = entry.convert_options({**given, **options}, ("environment",))
    built = entry.call({**(defaults or {}), "environment": environment}, chosen)
    if not isinstance(built, Policy):
        raise UsageError(f"policy {name}: its factory returns {type(built).__name__}; it must return a Policy")
    return built


def make_agreement(
    agreement: Agreement | Rule | str | None,
    agents: int,
    byzantine: int,
    rounds: int = AGREEMENT_ROUNDS,
    *,
    unsafe: bool = False,
    **options: Any,
) -> Agreement | None:
    """Return an agreement from its name, from the rule of every round, or from an `Agreement`.

    Args:
        agreement: what to build; None and `"none"` mean that the agents do not agree.
        agents: the number of agents K.
        byzantine: the number f that the rule defends against.
        rounds: the number of rounds κ, unless the name gives it (`"mda:rounds=6"`).
        unsafe: allow f beyond the limit of a named agreement.
        **options: options of the rule; they take precedence over those in the name.
    """
    if agreement is None or isinstance(agreement, Agreement):
        return agreement
    if isinstance(agreement, Rule):
        return Agreement(agreement, rounds)
    if not isinstance(agreement, str):
        raise UsageError(f"agreement={agreement!r}: give a name, a rule, an Agreement or None")
    name, given = parse_spec(agreement)
    entry = agreements[name]
    check_limits(limits_of_agreement(agreement, agents, byzantine), unsafe)
    rounds = given.pop("rounds", rounds)
    if type(rounds) is not int or rounds < 1:
        raise UsageError(f"agreement={agreement!r}: rounds must be a whole number of at least 1")
    rule = entry.build(agents, byzantine, **{**given, **options})
    return None if rule is None else Agreement(rule, rounds)
