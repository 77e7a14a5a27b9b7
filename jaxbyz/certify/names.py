"""Rules by name as the certifier takes them: an aggregator, a chain such as bucketing+krum, or agreement/NAME."""

from __future__ import annotations

from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import agreements
from jaxbyz.registry import parse_spec
from jaxbyz.rules import Rule, aggregators, check_rule, pre_aggregators

AGREEMENT = "agreement/"  # prefix: `mda` is the aggregator, `agreement/mda` the agreement


def named_rule(name: str, agents: int, byzantine: int) -> Rule:
    """The rule a name stands for, built for K agents of which f lie.

    Parts of a chain are joined with + and may carry options (bucketing:size=2+krum). Bucketing takes its α_max from
    the limit of the aggregator behind it, as the paper does: 1/4 for Krum, 1/2 for RFA.
    """
    if name.startswith(AGREEMENT):
        part, options = parse_spec(name.removeprefix(AGREEMENT))
        rule = agreements[part].build(agents, byzantine, **options)
        if rule is None:
            raise UsageError(f"{name}: there is no rule to certify")
        return rule
    return make_rule(name, agents, byzantine)


def refusal(name: str, agents: int, byzantine: int) -> str | None:
    """Why the named rule declines these numbers, in its own words; None if it takes them."""
    named_rule(name, agents, 0)  # a name or an option that does not exist is a mistake, no refusal
    try:
        check_rule(named_rule(name, agents, byzantine), agents, 2)
    except UsageError as error:
        return str(error)
    return None


def limit_of(name: str, agents: int) -> int | None:
    """The largest f the registry allows, of every part of the name; None when no part has a limit."""
    if name.startswith(AGREEMENT):
        entries = [agreements[parse_spec(name.removeprefix(AGREEMENT))[0]]]
    else:
        *before, last = name.split("+")
        entries = [pre_aggregators[parse_spec(text)[0]] for text in before] + [aggregators[parse_spec(last)[0]]]
    most = [entry.most(agents) for entry in entries if entry.limit is not None]
    return min(most) if most else None


def every_rule() -> list[str]:
    """All aggregators alone, the paper's two behind each pre-aggregator, and all agreements."""
    chains = [f"{pre.name}+{last}" for pre in pre_aggregators for last in ("krum", "rfa") if last in aggregators]
    return [
        *aggregators.names(),
        *chains,
        *(AGREEMENT + entry.name for entry in agreements if entry.name != "none"),
    ]
