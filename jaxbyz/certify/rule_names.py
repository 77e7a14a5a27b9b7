"""Rules by name as the certifier accepts them: an aggregator, a chain such as bucketing+krum, or agreement/NAME."""

from __future__ import annotations

from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import agreements
from jaxbyz.registry import parse_spec
from jaxbyz.rules import Rule, aggregators, check_rule, pre_aggregators

AGREEMENT = "agreement/"  # prefix: `mda` is the aggregator, `agreement/mda` the agreement


def named_rule(name: str, agents: int, byzantine: int) -> Rule:
    """Build a rule from its name, for K agents of which f are Byzantine.

    Parts of a chain are joined with + and may have options (`bucketing:size=2+krum`). Bucketing takes its α_max from
    the limit of the aggregator behind it, as in the paper: 1/4 for Krum, 1/2 for RFA.
    """
    if not name.startswith(AGREEMENT):
        return make_rule(name, agents, byzantine, unsafe=True)
    part, options = parse_spec(name.removeprefix(AGREEMENT))
    rule: Rule | None = agreements[part].build(agents, byzantine, **options)
    if rule is None:
        raise UsageError(f"{name}: there is no rule to certify")
    if rule.committee is not None:
        raise UsageError(f"{name}: certify the rule of a committee, with as many agents as it has members")
    return rule


def defending_against(name: str, byzantine: int) -> str:
    """Return the name of the same rule that defends against this number of agents, however many are Byzantine.

    Parts that are built from no such number, as RFA, and parts that name one themselves stay as they are.
    """
    prefix = AGREEMENT if name.startswith(AGREEMENT) else ""
    *before, last = name.removeprefix(prefix).split("+")
    tables = [pre_aggregators] * len(before) + [agreements if prefix else aggregators]
    parts = []
    for text, table in zip([*before, last], tables, strict=True):
        part, options = parse_spec(text)
        takes = table[part].takes("byzantine") and "byzantine" not in options
        parts.append(f"{text}{',' if options else ':'}byzantine={byzantine}" if takes else text)
    return prefix + "+".join(parts)


def refusal(name: str, agents: int, byzantine: int) -> str | None:
    """Return why the named rule cannot be built for K and f, in its own words; None if it can.

    Raises:
        UsageError: if the name or an option does not exist.
    """
    named_rule(name, agents, 0)
    try:
        check_rule(named_rule(name, agents, byzantine), agents, 2)
    except UsageError as error:
        return str(error)
    return None


def largest_tolerated(name: str, agents: int) -> int | None:
    """Return the largest f that all parts of the name tolerate; None if no part has a limit."""
    if name.startswith(AGREEMENT):
        entries = [agreements[parse_spec(name.removeprefix(AGREEMENT))[0]]]
    else:
        *before, last = name.split("+")
        entries = [pre_aggregators[parse_spec(text)[0]] for text in before] + [aggregators[parse_spec(last)[0]]]
    return min((entry.most(agents) for entry in entries if entry.limit is not None), default=None)


def every_rule() -> list[str]:
    """Return all aggregators, the paper's two behind each pre-aggregator, and all agreements."""
    chains = [f"{pre.name}+{last}" for pre in pre_aggregators for last in ("krum", "rfa")]
    return [
        *aggregators.names(),
        *chains,
        *(AGREEMENT + name for name in agreements.names() if name not in ("none", "committees")),
    ]
