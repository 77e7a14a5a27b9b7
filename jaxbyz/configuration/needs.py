"""When an option is read: conditions that the fields of `Config` name in their metadata.

An option whose conditions do not hold makes no difference, and `ineffective.without_effect` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxbyz.algorithms import algorithms, traits_of_algorithm
from jaxbyz.algorithms.base import always_large
from jaxbyz.components import make_attack, make_rule
from jaxbyz.errors import UsageError
from jaxbyz.policies import policies
from jaxbyz.registry import parse_spec


class Need(NamedTuple):
    """A condition under which an option is read.

    Attributes:
        test: whether the condition holds for a checked `Config`.
        otherwise: completes the sentence "… has no effect: …"; `{name}` stands for the value of an option.
    """

    test: Callable[[Any], bool]
    otherwise: str


def algorithm_takes(part: str) -> Need:
    """The algorithm's factory has this argument."""
    return Need(lambda c: algorithms[c.algorithm].takes(part), "{algorithm} does not read it")


def policy_takes(part: str) -> Need:
    """The policy has this option; one that is chosen by the observations reads all of them."""
    return Need(
        lambda c: c.policy is None or policies[parse_spec(c.policy)[0]].takes(part),
        f"policy {{policy}} has no option {part}",
    )


def _takes_small_batches(c: Any) -> bool:
    entry = algorithms[c.algorithm]
    return not always_large(c.p if entry.takes("p") else 0.5, c.period if entry.takes("period") else None)


def _server_samples_small_batch(c: Any) -> bool:
    """Whether the rule measures messages by a small batch of the server's own, as FLTrust does."""
    try:
        return make_rule(c.aggregator, c.agents, c.byzantine, unsafe=True).trusts_own
    except UsageError:  # building the run refuses it and says why
        return False


def _has_one_batch(c: Any) -> bool:
    return traits_of_algorithm(c.algorithm).one_batch


def _draws_coins(c: Any) -> bool:
    """Whether batch sizes are random. An algorithm that takes neither p nor a period draws its own coins, if any."""
    entry = algorithms[c.algorithm]
    if _has_one_batch(c):
        return False
    return c.period is None and c.p < 1 if entry.takes("p") else not entry.takes("period")


def _attack_acts(c: Any) -> bool:
    """Whether the attack does something in a place that the run has; parameters are only sent during agreement."""
    try:
        attack = make_attack(c.attack, c.agents, c.byzantine)
    except UsageError:  # building the run refuses it and says why
        return True
    acts = attack.gradients is not None or attack.interfere is not None
    return acts or attack.parameters is None or c.agreement != "none"


BYZANTINE_AGENTS = Need(lambda c: c.byzantine > 0, "no agent is Byzantine (--byzantine)")
ATTACK_ACTS = Need(_attack_acts, "it forges parameters only, and agreement=none exchanges none, so nobody attacks")
AGREEMENT = Need(lambda c: c.agreement != "none", "the agents do not agree on parameters (agreement=none)")
ROUNDS_NOT_NAMED = Need(
    lambda c: "rounds" not in parse_spec(c.agreement)[1], "agreement={agreement} names the number of rounds itself"
)
UNCERTAIN_ARRIVALS = Need(
    lambda c: c.participation < 1 or c.delay > 0 or c.drop > 0,
    "every message arrives at once (--participation, --delay, --drop)",
)
ABSENT_AGENTS = Need(lambda c: c.participation < 1, "all agents take part (--participation)")
SEVERAL_SEEDS = Need(lambda c: c.seeds > 1, "there is one seed")
COINS = Need(_draws_coins, "the batch sizes are not random")
NO_PERIOD = Need(
    lambda c: c.period is None or (c.kappa == "theorem" and c.agreement != "none"), "period={period} replaces the coin"
)
SMALL_BATCHES = Need(_takes_small_batches, "every batch is large")
ANY_SMALL_BATCH = Need(lambda c: _takes_small_batches(c) or _server_samples_small_batch(c), "every batch is large")
NO_SNAPSHOT = Need(
    lambda c: not traits_of_algorithm(c.algorithm).snapshot,
    "{algorithm} compares small batches with its last snapshot",
)
PLAIN_CORRECTION = Need(lambda c: not _has_one_batch(c), "{algorithm} has no importance weights")
ENTROPY_BONUS = Need(lambda c: not _has_one_batch(c), "{algorithm} does not read it")
CONSTANT_BASELINE = Need(lambda c: c.baseline == "constant", "baseline={baseline}")
CRITIC = Need(lambda c: c.baseline == "critic", "baseline={baseline}")
SEVERAL_MESSAGES = Need(lambda c: c.epochs * c.minibatches > 1, "every batch is used once (--epochs)")
OTHER_TRAJECTORIES = Need(
    lambda c: c.baseline != "leave-one-out" or c.N > 1, "batches of one trajectory leave no other one"
)
