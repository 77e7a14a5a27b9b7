"""A run's configuration: every option with its meaning, its checks, and the algorithm it builds."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from jaxbyz.algorithms import Algorithm, Traits, algorithms
from jaxbyz.attacks import attacks
from jaxbyz.components import check_limit, make_agreement, make_attack, make_rule
from jaxbyz.environments import environments, make_environment
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.experiments.presets import DEFAULT_PRESET, PRESETS
from jaxbyz.policies.networks import ACTIVATIONS, INITIALISERS, mlp_policy
from jaxbyz.protocol.agreements import Agreement, agreements, theorem_rounds
from jaxbyz.protocol.schedules import schedules
from jaxbyz.registry import convert, parse_spec
from jaxbyz.rules import aggregators, check_rule, pre_aggregators
from jaxbyz.sampling.estimators import BASELINES, ESTIMATORS, WEIGHTS, Estimator, incompatible
from jaxbyz.sampling.page import PREVIOUS, Page

OPTIMIZERS = ("adam", "sgd", "rmsprop", "adamw", "amsgrad", "yogi", "radam", "lion")
OUTPUTS = ("last", "sampled", "best")
COINS = ("shared", "own")
STARTS = ("own", "shared")
COMPARED = ("previous", "proposed")
MOST_ROUNDS = 10**6  # κ at most
LARGEST = float(np.finfo(np.float32).max)  # what is larger is infinite where it is used


def option(default: Any, help: str, **extra: Any) -> Any:
    """A field with a line of help."""
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides a run's numbers. The paper's symbols keep their names."""

    algorithm: str = option("decbyzpg", "algorithm; see `jaxbyz list`")
    env: str = option("CartPole-v1", "environment id")
    agents: int = option(13, "number of agents K")
    byzantine: int = option(0, "number of Byzantine agents f, which the rules defend against")
    attack: str = option("none", "what Byzantine agents do; options as name:option=value")
    schedule: str = option("fixed", "who is Byzantine when: fixed, rotating, random")
    aggregator: str = option("rfa", "rule for gradients; options as name:option=value")
    pre_aggregator: str = option("none", "rule in front of the aggregator, several joined with +")
    agreement: str = option("mda", "agreement on parameters")
    kappa: str = option("4", "agreement rounds κ: a number, or `theorem` for ⌈log2(N·K/p²)⌉")
    tolerance: float | None = option(
        None, "stop agreement once the honest diameter is at most this; κ is then the most"
    )
    seeds: int = option(1, "number of runs, side by side")
    seed: int = option(0, "first seed; run s of the sweep has seed + s, and, with coin=shared, the first seed's coin")
    coin: str = option(
        "shared", "shared: the first seed's for all; own: each seed its own, repeatable alone, both branches paid"
    )
    trajectories: int = option(8000, "trajectories to sample per agent")
    N: int = option(50, "large batch size")
    B: int = option(4, "small batch size")
    p: float = option(0.2, "probability of a large batch")
    period: int | None = option(None, "a large batch every so many iterations instead of the coin")
    eta: float = option(1e-3, "step size η")
    eta_end: float | None = option(None, "decay the step size linearly to this over the run")
    optimizer: str = option("adam", "optax optimizer, one state an agent; sgd is the paper's plain ascent")
    gamma: float = option(0.999, "discount factor γ")
    horizon: int = option(500, "task horizon H")
    estimator: str = option("gpomdp", "gradient estimator: gpomdp, reinforce, whitened")
    baseline: str = option("none", "baseline: none, constant, leave-one-out")
    baseline_value: float = option(0.0, "the constant baseline")
    weights: str = option(
        "trajectory", "importance weights: trajectory (the paper's), per-decision, per-step, published"
    )
    weight_clip: float | None = option(None, "cut importance weights at this value")
    previous: str = option("aggregated", "previous estimate in the small-batch formula: aggregated, own, realized")
    anchor: str = option("previous", "parameters a small batch is compared with: previous, proposed (published code)")
    clip_norm: float | None = option(None, "scale estimates down to this norm before they are sent")
    hidden: tuple[int, ...] = option((16, 16), "hidden layer sizes, comma-separated")
    activation: str = option("tanh", "hidden activation")
    output_activation: str = option("tanh", "output activation")
    output_scale: float = option(1.0, "factor on the activated outputs")
    initialiser: str = option("lecun", "network initialisation: lecun, orthogonal, published")
    start: str = option("own", "first policy: own, drawn for each seed; shared, one drawn from `seed` alone for all")
    output: str = option("last", "parameters that evaluate uses: last, sampled (θ_T̂), best (by honest return)")
    unsafe: bool = option(False, "run also with more Byzantines than the rules tolerate")

    def kappa_rounds(self) -> int:
        """κ as a number."""
        return theorem_rounds(self.N, self.agents, self.p) if self.kappa == "theorem" else int(self.kappa)


FIELDS = {f.name: f for f in dataclasses.fields(Config)}
HINTS = typing.get_type_hints(Config)


def resolve(preset: str | None = None, **given: Any) -> Config:
    """A configuration from options given, then the preset's numbers, then the general defaults.

    Without a preset, the one for the environment is taken (`cartpole` for CartPole-v1), or `default`. An aggregator
    written as `bucketing+rfa` is the aggregator `rfa` with the pre-aggregator `bucketing`.
    """
    for name in given:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            raise UsageError(f"option {name!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else ""))
    given = {name: convert(name, HINTS[name], value) for name, value in given.items()}
    preset = convert("preset", str | None, preset)
    if preset is None:
        preset = DEFAULT_PRESET.get(given.get("env", Config.env), "default")
    check_choice("preset", preset, PRESETS)
    before, plus, last = str(given.get("aggregator", "")).rpartition("+")
    if plus and "pre_aggregator" in given:
        raise UsageError(
            f"aggregator={given['aggregator']!r} with pre_aggregator={given['pre_aggregator']!r}: keep one"
        )
    if plus:
        given |= {"aggregator": last, "pre_aggregator": before}
    return check(Config(**{**PRESETS[preset][1], **given}))


def traits_of(config: Config) -> Traits:
    """Return the traits of the configured algorithm."""
    return algorithms[config.algorithm].traits


def effective(config: Config) -> Config:
    """With what the algorithm brings itself in place of options that it does not read."""
    traits = traits_of(config)
    if traits.single:
        config = dataclasses.replace(config, agents=1, byzantine=0, attack="none", schedule="fixed")
    if traits.naive:
        config = dataclasses.replace(config, aggregator="mean", pre_aggregator="none")
    if traits.naive or traits.central:
        config = dataclasses.replace(config, agreement="none")
    return config


def check(config: Config, *, names: bool = True) -> Config:
    """The `effective` configuration. What makes no sense is refused: one line that names the option, the value and
    what is allowed. With names=False rules and attacks that are not registered here are taken for somebody's own."""
    c = config
    for name in ("agents", "seeds", "trajectories", "N", "B", "horizon"):
        if getattr(c, name) < 1:
            raise UsageError(f"{name}={getattr(c, name)}: must be at least 1")
    if not 0 <= c.seed <= 2**32 - c.seeds:
        raise UsageError(f"seed={c.seed} with seeds={c.seeds}: seeds are numbers from 0 to 2³² − 1")
    for name in ("eta", "gamma", "output_scale"):
        value = getattr(c, name)
        if not 0 < value <= LARGEST:
            raise UsageError(f"{name}={value}: must be a positive number of float32")
    for name in ("eta_end", "tolerance", "weight_clip", "clip_norm"):
        value = getattr(c, name)
        if value is not None and not 0 < value <= LARGEST:
            raise UsageError(f"{name}={value}: must be a positive number of float32, or left out")
    if c.gamma > 1:
        raise UsageError(f"gamma={c.gamma}: must be in (0, 1]")
    if not 0 < c.p <= 1:
        raise UsageError(f"p={c.p}: must be in (0, 1]")
    if c.B > c.N:
        raise UsageError(f"B={c.B} exceeds N={c.N}: the small batch is at most the large one")
    if c.period is not None and c.period < 1:
        raise UsageError(f"period={c.period}: must be at least 1, or left out")
    if not c.hidden or any(width < 1 for width in c.hidden):
        raise UsageError(f"hidden={','.join(map(str, c.hidden))}: layer sizes must be at least 1")
    if c.byzantine < 0:
        raise UsageError(f"byzantine={c.byzantine}: must be at least 0")
    if c.byzantine >= c.agents:
        raise UsageError(f"byzantine={c.byzantine} of agents={c.agents}: at least one agent must be honest")
    if c.kappa != "theorem" and not _is_rounds(c.kappa):
        raise UsageError(f"kappa={c.kappa[:60]!r}: a number of rounds from 1 to {MOST_ROUNDS}, or `theorem`")
    if not abs(c.baseline_value) <= LARGEST:
        raise UsageError(f"baseline_value={c.baseline_value}: must be a finite number")
    for name, known in (
        ("optimizer", OPTIMIZERS), ("output", OUTPUTS), ("coin", COINS), ("start", STARTS), ("anchor", COMPARED),
        ("estimator", ESTIMATORS),
        ("baseline", BASELINES), ("weights", WEIGHTS), ("previous", PREVIOUS), ("activation", tuple(ACTIVATIONS)),
        ("output_activation", tuple(ACTIVATIONS)), ("initialiser", tuple(INITIALISERS)),
    ):  # fmt: skip
        check_choice(name, getattr(c, name), known)
    if c.previous == "realized" and (c.optimizer != "sgd" or c.eta_end is not None):
        raise UsageError(
            f"previous=realized with optimizer={c.optimizer}: (θ_t − θ_t-1)/η needs sgd and a constant eta"
        )
    if c.previous == "realized" and (c.anchor != "previous" or traits_of(c).snapshot):
        anchor = "snapshot" if traits_of(c).snapshot else c.anchor
        raise UsageError(
            f"previous=realized with algorithm={c.algorithm}, anchor={anchor}: (θ_t − θ_t-1)/η needs anchor=previous"
        )
    if (problem := incompatible(c.estimator, c.weights, c.baseline)) is not None:
        raise UsageError(problem)
    c = effective(c)
    if names:
        _check_names(config)
        _check_limits(c)
    return c


def _is_rounds(text: str) -> bool:
    """Whether κ is a whole number within bounds; int() is not asked to read thousands of digits."""
    written = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_ROUNDS))
    return written and 1 <= int(text) <= MOST_ROUNDS


def _check_names(c: Config) -> None:
    """The names exist, of what the algorithm does not read too."""
    algorithms[c.algorithm]
    environments[c.env]
    attacks[parse_spec(c.attack)[0]]
    schedules[c.schedule]
    aggregators[parse_spec(c.aggregator)[0]]
    agreements[parse_spec(c.agreement)[0]]
    if c.pre_aggregator != "none":
        for part in c.pre_aggregator.split("+"):
            pre_aggregators[parse_spec(part)[0]]


def registered(config: Config) -> bool:
    """Whether everything that the configuration names is known here: somebody's own rule need not be."""
    try:
        _check_names(config)
    except UsageError:
        return False
    return True


def _check_limits(c: Config) -> None:
    """f stays below every limit that applies."""
    algorithm = algorithms[c.algorithm]
    if algorithm.traits.naive:
        return
    entries = [("aggregator", aggregators[parse_spec(c.aggregator)[0]]), ("algorithm", algorithm)]
    if not algorithm.traits.central:
        entries.append(("agreement", agreements[parse_spec(c.agreement)[0]]))
    for kind, entry in entries:
        check_limit(kind, entry.name, entry.limit, c.agents, c.byzantine, c.unsafe)


def rule_spec(config: Config) -> str:
    """The aggregator with its pre-aggregators in front, as one name."""
    return config.aggregator if config.pre_aggregator == "none" else f"{config.pre_aggregator}+{config.aggregator}"


def agreement_of(config: Config) -> Agreement | None:
    """The agreement that the options name, None for `none`; whether the algorithm uses it is `agrees`."""
    agreement = make_agreement(config.agreement, config.agents, config.byzantine, config.kappa_rounds())
    return None if agreement is None else agreement._replace(tolerance=config.tolerance)


def agrees(config: Config) -> bool:
    """Whether agents agree on parameters: there is nothing to agree on with a server, and naive algorithms do not."""
    return effective(config).agreement != "none"


def build(config: Config, iterations: int | None = None) -> Algorithm:
    """The algorithm a configuration names, with its environment, policy, rules and attack.

    iterations is needed for a step size that decays.
    """
    K, f = config.agents, config.byzantine
    environment = make_environment(config.env)
    policy = mlp_policy(
        environment,
        config.hidden,
        config.activation,
        config.output_activation,
        output_scale=config.output_scale,
        initialiser=config.initialiser,
    )
    if config.start == "shared":
        policy = policy._replace(init=partial(_same_start, policy.init, config.seed))
    estimator = Estimator(
        kind=config.estimator,
        gamma=config.gamma,
        horizon=config.horizon,
        baseline=config.baseline,
        baseline_value=config.baseline_value,
        weights=config.weights,
        clip=config.weight_clip,
    )
    eta = config.eta if config.eta_end is None else optax.linear_schedule(config.eta, config.eta_end, iterations or 1)
    aggregator, agreement = make_rule(rule_spec(config), K, f), agreement_of(config)
    check_rule(aggregator, K, policy.size)
    if agreement is not None:
        check_rule(agreement.rule, K, policy.size)
    parts: dict[str, Any] = {
        "agents": K,
        "byzantine": f,
        "aggregator": aggregator,
        "agreement": agreement,
        "optimizer": getattr(optax, config.optimizer)(eta),
        "attack": make_attack(config.attack, K, f),
        "schedule": schedules[config.schedule].build(K, f),
        "page": Page(config.N, config.B, estimator, config.previous, config.eta, config.clip_norm, config.anchor),
        "p": config.p,
        "period": config.period,
        "unsafe": config.unsafe,
    }
    factory = algorithms[config.algorithm].factory
    wanted = inspect.signature(factory).parameters
    return factory(environment, policy, **{name: part for name, part in parts.items() if name in wanted})


def _same_start(init: Any, seed: int, _: Any) -> Any:
    """First parameters that do not depend on the run's key."""
    return init(jax.random.key(seed))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain JSON values."""
    return {**dataclasses.asdict(config), "hidden": list(config.hidden)}


def from_dict(values: dict[str, Any], *, names: bool = True) -> Config:
    """Back from JSON; checked."""
    given = {name: convert(name, HINTS[name], values[name]) for name in FIELDS if name in values}
    return check(Config(**given), names=names)
