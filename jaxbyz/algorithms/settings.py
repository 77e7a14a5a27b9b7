"""The settings of an iteration: who takes part and lies, which rules defend, how agents sample, and how they step.

Each record declares the options of one idea. `Settings` is all of them, and every algorithm is built from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jaxbyz.attacks import attacks
from jaxbyz.components import make_attack
from jaxbyz.errors import UsageError
from jaxbyz.options import (
    COUNT,
    FROM_0_TO_1,
    NOT_NEGATIVE,
    POSITIVE,
    Allowed,
    Need,
    check_options,
    option,
    reads,
)
from jaxbyz.protocol.agreements import agreements, theorem_rounds
from jaxbyz.protocol.channel_options import CHANNEL_OPTIONS, ChannelOptions
from jaxbyz.protocol.schedules import schedules
from jaxbyz.rules import aggregators, pre_aggregators
from jaxbyz.sampling.settings import SMALL_BATCHES, Sampling, check_sampling

OPTIMIZERS = ("adam", "sgd", "rmsprop", "adamw", "amsgrad", "yogi", "radam", "lion")
MAX_ROUNDS = 10**6


def _is_rounds(value: int | str) -> bool:
    """Return whether κ is `theorem` or a whole number in range."""
    text = str(value)
    return text == "theorem" or (text.isascii() and text.isdigit() and 1 <= float(text) <= MAX_ROUNDS)


def _attack_acts(config: Any, _: Any) -> bool:
    """Return whether the attack can have an effect: one that forges parameters only needs an agreement."""
    try:
        attack = make_attack(config.attack, config.agents, config.byzantine)
    except UsageError:  # building the run refuses it and says why
        return True
    acts = attack.gradients is not None or attack.interfere is not None
    return acts or attack.parameters is None or config.agreement != "none"


def _names_rounds(agreement: Any) -> bool:
    return isinstance(agreement, str) and "rounds=" in agreement


BYZANTINE_AGENTS = Need(lambda config, _: config.byzantine > 0, "no agent is Byzantine (--byzantine)")
ATTACK_ACTS = Need(_attack_acts, "it forges parameters only, and agreement=none exchanges none, so nobody attacks")
AGREEMENT = Need(lambda config, _: config.agreement != "none", "the agents do not agree on parameters (agreement=none)")
ROUNDS_NOT_NAMED = Need(
    lambda config, _: not _names_rounds(config.agreement), "agreement={agreement} names the number of rounds itself"
)
ROUNDS = Allowed(_is_rounds, f"a number of rounds from 1 to {MAX_ROUNDS}, or 'theorem'")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Who takes part, who of them lies, and which rules defend against it.

    Attributes:
        agents: the number of agents K.
        byzantine: the number of Byzantine agents f.
        assumed_byzantine: the number that the named rules defend against; None for f.
        attack: an attack, its name, or a function `(key, messages, mask) -> messages`; None for no attack.
        schedule: who is Byzantine in which iteration, or a name; `"fixed"` is always the last f agents.
        aggregator: a rule, a name such as `"bucketing+rfa"`, or a function `([key,] messages) -> [D]`.
        pre_aggregator: names of rules that are applied before a named aggregator, joined with `+`.
        agreement: an `Agreement`, a rule, a name such as `"mda"` or `"mda:rounds=6"`; None or `"none"` for none.
        kappa: the rounds κ of an agreement whose name gives none.
        tolerance: agreement stops early once the honest diameter is at most this.
        unsafe: allow more Byzantine agents than the named rules tolerate among those whose messages they see.
    """

    agents: int = option(13, "number of agents K", allowed=COUNT)
    byzantine: int = option(0, "number of Byzantine agents f, which the rules defend against", allowed=NOT_NEGATIVE)
    assumed_byzantine: int | None = option(
        None, "number of Byzantine agents that the rules defend against, if it is not f", allowed=NOT_NEGATIVE,
        needs=[reads("aggregator")],
    )  # fmt: skip
    attack: str | Any = option(
        "none", "what Byzantine agents do; options as name:option=value", registry=attacks,
        needs=[BYZANTINE_AGENTS, ATTACK_ACTS],
    )  # fmt: skip
    schedule: str | Any = option(
        "fixed", "which agents are Byzantine in which iteration: fixed, rotating or random", registry=schedules,
        needs=[BYZANTINE_AGENTS],
    )  # fmt: skip
    aggregator: str | Any = option(
        "rfa", "aggregation rule for gradients, the mean if nobody is Byzantine; options as name:option=value",
        registry=aggregators,
    )  # fmt: skip
    pre_aggregator: str = option("none", "rules applied before the aggregator, joined with +", registry=pre_aggregators)
    agreement: str | Any = option("mda", "agreement on parameters", registry=agreements)
    kappa: str = option(
        "4", "agreement rounds κ: a number, or `theorem` for ⌈log2(N·K/p²)⌉", allowed=ROUNDS,
        needs=[AGREEMENT, ROUNDS_NOT_NAMED],
    )  # fmt: skip
    tolerance: float | None = option(
        None, "stop agreement early once the honest diameter is at most this", allowed=POSITIVE, needs=[AGREEMENT]
    )
    unsafe: bool = option(
        False, "allow more Byzantine agents than the rules tolerate",
        needs=[Need(lambda config, traits: not traits.is_safe(config), "no limit is exceeded")],
    )  # fmt: skip

    @property
    def defended(self) -> int:
        """The number of Byzantine agents that the rules defend against."""
        return self.byzantine if self.assumed_byzantine is None else self.assumed_byzantine

    @property
    def most_byzantine(self) -> int:
        """The larger of the actual and the assumed number of Byzantine agents, which limits are checked against."""
        return max(self.byzantine, self.defended)

    @property
    def rule(self) -> Any:
        """The aggregator, with the names of its pre-aggregators in front."""
        named = isinstance(self.aggregator, str) and self.pre_aggregator != "none"
        return f"{self.pre_aggregator}+{self.aggregator}" if named else self.aggregator


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """How parameters move along an estimate: θ + η v, or the step of another optimizer.

    Attributes:
        eta: the step size η of a named optimizer, which `previous="realized"` divides by.
        eta_end: the step size at the end of a run over which it decays linearly; None for a constant one.
        optimizer: the name of an optimizer of optax, or an optax optimizer.
    """

    eta: float = option(1e-3, "step size η", allowed=POSITIVE)
    eta_end: float | None = option(None, "decay the step size linearly to this value over the run", allowed=POSITIVE)
    optimizer: str | Any = option("adam", "optax optimizer; sgd is the paper's plain ascent", choices=OPTIMIZERS)


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """How often messages are exchanged."""

    local_steps: int = option(
        1, "exchange messages in every n-th iteration only; in the others, agents step along their own estimates",
        allowed=COUNT, needs=[reads("local_steps")],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Audits:
    """How often agents replay each other's trajectories; see `jaxbyz.algorithms.audits`."""

    audit: float = option(
        0.0, "probability with which an agent replays the trajectories of a random other one after an iteration; who "
        "sent something else is excluded", allowed=FROM_0_TO_1, needs=[reads("audit")],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServerSampling:
    """Who samples the small batches if there is a server; None for the default of the algorithm."""

    small_batches: str | None = option(
        None, "who samples the small batches of ByzPG: the server alone, or the workers as in the published code",
        choices=("server", "workers"), needs=[reads("small_batches"), SMALL_BATCHES],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """The inner loop of FedPG-BR.

    Attributes:
        batch_spread: the size of every large batch is drawn from {N − batch_spread, …, N + batch_spread}.
        ratio_window: the small steps end once the mean of π(a_t | s_t; θ_0)/π(a_t | s_t; θ_n) over the steps of the
            server's batch is farther than this from 1, where θ_0 are the parameters of the large batch. Until the next
            large batch the server takes no step. None for no early end.
    """

    batch_spread: int = option(
        0, "draw the sizes of large batches from N ± this, as FedPG-BR does", allowed=NOT_NEGATIVE,
        needs=[reads("batch_spread")],
    )  # fmt: skip
    ratio_window: float | None = option(
        None, "end the small steps of FedPG-BR once the mean probability ratio is farther than this from 1",
        allowed=POSITIVE, needs=[reads("ratio_window")],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of an ensemble."""

    groups: int = option(
        3, "disjoint groups of an ensemble; each trains a policy, and the policies vote on actions", allowed=COUNT,
        needs=[reads("groups")],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings(
    Groups, InnerLoop, ServerSampling, LocalSteps, Audits, Ascent, Sampling, ChannelOptions, Federation
):  # fmt: skip
    """Everything that an iteration depends on besides the environment and the policy."""

    def kappa_rounds(self) -> int:
        """Return κ as a number."""
        return theorem_rounds(self.N, self.agents, self.p) if self.kappa == "theorem" else int(self.kappa)


def without_channel(settings: Settings) -> Settings:
    """Return settings with which every message arrives at once and unchanged."""
    direct = ChannelOptions()
    return replace(settings, **{name: getattr(direct, name) for name in CHANNEL_OPTIONS})


def check_settings(settings: Settings) -> None:
    """Refuse values that are not allowed and options that contradict each other, whichever algorithm uses them.

    Raises:
        UsageError: one line that names the options and what would be right.
    """
    s = settings
    check_options(s)
    if s.byzantine >= s.agents:
        raise UsageError(f"byzantine={s.byzantine} of agents={s.agents}: at least one agent must be honest")
    check_sampling(s)
    if s.previous == "realized" and ((s.optimizer in OPTIMIZERS and s.optimizer != "sgd") or s.eta_end is not None):
        raise UsageError("previous='realized' needs a constant step size eta and plain ascent (optimizer=sgd)")
    if s.audit:
        _check_audits(s)
    if s.previous == "realized" and s.anchor != "previous":
        raise UsageError(f"previous='realized' with anchor={s.anchor!r}: (θ_t − θ_{{t−1}})/η needs anchor='previous'")


def _check_audits(settings: Settings) -> None:
    """Refuse audits where a replay of one iteration does not give the message of an honest agent."""
    for name, needed in (
        ("schedule", "fixed"),
        ("participation", 1.0),
        ("delay", 0),
        ("drop", 0.0),
        ("local_steps", 1),
    ):
        if (value := getattr(settings, name)) != needed:
            raise UsageError(f"audit={settings.audit} with {name}={value}: audits need {name}={needed}")
    if isinstance(settings.agreement, str) and settings.agreement.partition(":")[0] == "committees":
        raise UsageError(f"audit={settings.audit} with agreement={settings.agreement}: audits need another agreement")
