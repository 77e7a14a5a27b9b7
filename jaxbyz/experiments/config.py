"""The options of an experiment: their meaning and their validation.

Every option is described once, in the metadata of its `Config` field: help text and allowed values. `check` validates
all options from these descriptions; the Python API, the command line, sweep files and run folders all go through it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.algorithms import Traits, algorithms
from jaxbyz.algorithms.base import always_large
from jaxbyz.attacks import attacks
from jaxbyz.components import check_limit, make_rule
from jaxbyz.environments import Environment, environments, make_environment
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.experiments import needs as need
from jaxbyz.experiments.agent_values import as_text, values_per_agent
from jaxbyz.experiments.presets import DEFAULT_PRESET, PRESETS, RULE_UNDER_ATTACK
from jaxbyz.experiments.task_presets import general_preset
from jaxbyz.policies import ACTIVATIONS, INITIALISERS, policies
from jaxbyz.policies.distributions import DEVIATIONS
from jaxbyz.protocol.agreements import agreements, theorem_rounds
from jaxbyz.protocol.compression import compressors
from jaxbyz.protocol.delivery import ABSENT, Delivery
from jaxbyz.protocol.schedules import schedules
from jaxbyz.registry import Registry, convert, parse_assignments, parse_spec
from jaxbyz.rules import aggregators, pre_aggregators
from jaxbyz.sampling.critic import CriticSettings
from jaxbyz.sampling.estimators import ADVANTAGES, BASELINES, ESTIMATORS, WEIGHTS, Estimator
from jaxbyz.sampling.page import PREVIOUS, Page

OPTIMIZERS = ("adam", "sgd", "rmsprop", "adamw", "amsgrad", "yogi", "radam", "lion")
OUTPUTS = ("last", "sampled", "best")
POLICY_OPTIONS = (  # if the policy has them
    "hidden", "activation", "output_activation", "output_scale", "initialiser", "initial_std", "deviation",
)  # fmt: skip
START_FROM = "from:"  # begins the values of `start` that name a learnt policy
MAX_ROUNDS = 10**6
MAX_TEXT = 1000
MAX_SEED = 2**32 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Allowed(NamedTuple):
    """Which values an option may have.

    Attributes:
        test: whether a value is allowed.
        wording: completes the sentence "must be …" of the error message.
    """

    test: Callable[[Any], bool]
    wording: str


def _is_rounds(text: str) -> bool:
    """Return whether κ is `theorem` or a whole number in range; the length limit spares `int` thousands of digits."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ROUNDS))
    return text == "theorem" or (digits and 1 <= int(text) <= MAX_ROUNDS)


def _are_spreads(text: str) -> bool:
    """Return whether a text assigns finite numbers of at least 0."""
    try:
        return all(type(s) in (int, float) and 0 <= s < math.inf for s in parse_assignments(text).values())
    except UsageError:
        return False


def _are_assignments(text: str) -> bool:
    """Return whether a text assigns values to names."""
    try:
        return bool(parse_assignments(text)) or not text
    except UsageError:
        return False


def _are_values_per_agent(text: str) -> bool:
    """Return whether a text is empty or a JSON object of lists."""
    try:
        return isinstance(values_per_agent(text), dict)
    except UsageError:
        return False


COUNT = Allowed(lambda n: n >= 1, "at least 1")
NOT_NEGATIVE = Allowed(lambda n: n >= 0, "at least 0")
SEED = Allowed(lambda n: 0 <= n <= MAX_SEED, f"a whole number from 0 to {MAX_SEED}")
PROBABILITY_OF_LOSS = Allowed(lambda x: 0 <= x < 1, "in [0, 1)")
MOMENTUM = Allowed(lambda x: 0 <= x < 1, "in [0, 1)")
UNIT_INTERVAL = Allowed(lambda x: 0 < x <= 1, "in (0, 1]")
ENTROPY = Allowed(lambda x: 0 <= x <= FLOAT32_MAX, "a float32 number of at least 0")
FROM_0_TO_1 = Allowed(lambda x: 0 <= x <= 1, "in [0, 1]")
POSITIVE = Allowed(lambda x: 0 < x <= FLOAT32_MAX, "a positive float32 number")
FINITE = Allowed(lambda x: abs(x) <= FLOAT32_MAX, "a finite float32 number")
WIDTHS = Allowed(lambda widths: len(widths) > 0 and min(widths) >= 1, "one or more layer sizes of at least 1")
ASSIGNMENTS = Allowed(_are_assignments, "name=value,name=value")
SPREADS = Allowed(_are_spreads, "name=spread,name=spread with spreads of at least 0")
VALUES_PER_AGENT = Allowed(_are_values_per_agent, "a JSON file or text with one list of numbers per parameter")
START = Allowed(
    lambda text: text in ("own", "shared") or (text.startswith(START_FROM) and text != START_FROM),
    f"own, shared, or {START_FROM}PATH with a run folder or an exported .npz file",
)
ROUNDS = Allowed(_is_rounds, f"a number of rounds from 1 to {MAX_ROUNDS}, or 'theorem'")


def option(
    default: Any,
    help: str,
    *,
    allowed: Allowed | None = None,
    choices: Collection[str] = (),
    registry: Registry | None = None,
    needs: Collection[need.Need] = (),
) -> Any:
    """Return a dataclass field that describes one option.

    Args:
        default: the general default; presets override it.
        help: one line for the command line and the documentation.
        allowed: the condition that a value must satisfy.
        choices: the names that a text may be.
        registry: the table that a component's name must be in.
        needs: the conditions under which the option is read; otherwise it has no effect, and the user is told.
    """
    described = {"help": help, "allowed": allowed, "choices": tuple(choices), "registry": registry}
    return field(default=default, metadata={**described, "needs": tuple(needs)})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that determines the numbers of a run. Options named after symbols of the paper keep their case."""

    algorithm: str = option("decbyzpg", "algorithm; `jaxbyz list` names all", registry=algorithms)
    env: str = option("CartPole-v1", "environment; `jaxbyz list` names all", registry=environments)
    env_param: str = option(
        "", "parameters of the environment of all agents, gravity=9.8,length=0.4", allowed=ASSIGNMENTS
    )
    env_spread: str = option(
        "", "relative spread between agents, gravity=0.2: each draws its own within ±20 %", allowed=SPREADS
    )
    env_agents: str = option(
        "", 'values per agent: a JSON file, or JSON text like {"gravity": [9.1, 9.8]}', allowed=VALUES_PER_AGENT
    )
    agents: int = option(13, "number of agents K", allowed=COUNT)
    byzantine: int = option(0, "number of Byzantine agents f, which the rules defend against", allowed=NOT_NEGATIVE)
    assumed_byzantine: int | None = option(
        None, "number of Byzantine agents that the rules defend against, if it is not f", allowed=NOT_NEGATIVE,
        needs=[need.algorithm_takes("aggregator")],
    )  # fmt: skip
    attack: str = option(
        "none",
        "what Byzantine agents do; options as name:option=value",
        registry=attacks,
        needs=[need.BYZANTINE_AGENTS, need.ATTACK_ACTS],
    )
    schedule: str = option(
        "fixed",
        "which agents are Byzantine in which iteration: fixed, rotating or random",
        registry=schedules,
        needs=[need.BYZANTINE_AGENTS],
    )
    aggregator: str = option(
        "rfa",
        "aggregation rule for gradients, the mean if nobody is Byzantine; options as name:option=value",
        registry=aggregators,
    )
    pre_aggregator: str = option("none", "rules applied before the aggregator, joined with +", registry=pre_aggregators)
    agreement: str = option("mda", "agreement on parameters", registry=agreements)
    kappa: str = option(
        "4",
        "agreement rounds κ: a number, or `theorem` for ⌈log2(N·K/p²)⌉",
        allowed=ROUNDS,
        needs=[need.AGREEMENT, need.ROUNDS_NOT_NAMED],
    )
    tolerance: float | None = option(
        None, "stop agreement early once the honest diameter is at most this", allowed=POSITIVE, needs=[need.AGREEMENT]
    )
    participation: float = option(
        1.0, "part of the agents that takes part in each iteration, drawn at random", allowed=UNIT_INTERVAL,
        needs=[need.algorithm_takes("delivery")],
    )  # fmt: skip
    absent: str = option(
        "ignore", "what counts of absent agents: nothing, or their last gradient", choices=ABSENT,
        needs=[need.algorithm_takes("delivery"), need.ABSENT_AGENTS],
    )  # fmt: skip
    delay: int = option(
        0, "gradients are up to this many iterations old when they arrive", allowed=NOT_NEGATIVE,
        needs=[need.algorithm_takes("delivery")],
    )  # fmt: skip
    drop: float = option(
        0.0, "probability that a message is lost", allowed=PROBABILITY_OF_LOSS, needs=[need.algorithm_takes("delivery")]
    )
    compression: str = option(
        "none", "compression of gradients: top-k:share=0.1, sign, int8, with error feedback", registry=compressors,
        needs=[need.algorithm_takes("delivery")],
    )  # fmt: skip
    local_steps: int = option(
        1, "exchange messages in every iteration of this number; otherwise agents step along their own estimates",
        allowed=COUNT, needs=[need.algorithm_takes("local_steps")],
    )  # fmt: skip
    seeds: int = option(1, "number of seeds, trained side by side", allowed=COUNT)
    seed: int = option(0, "the first seed; the others are seed + 1, seed + 2, …", allowed=SEED)
    coin: str = option(
        "shared", "shared: all seeds use the coins of the first; own: every seed draws its own, which is slower",
        choices=("shared", "own"), needs=[need.SEVERAL_SEEDS, need.COINS],
    )  # fmt: skip
    trajectories: int = option(8000, "trajectories to sample per agent", allowed=COUNT)
    N: int = option(50, "large batch size", allowed=COUNT)
    B: int = option(4, "small batch size", allowed=COUNT, needs=[need.SMALL_BATCHES])
    p: float = option(
        0.2, "probability of a large batch", allowed=UNIT_INTERVAL, needs=[need.algorithm_takes("p"), need.NO_PERIOD]
    )
    period: int | None = option(
        None,
        "take a large batch every this many iterations instead of a coin",
        allowed=COUNT,
        needs=[need.algorithm_takes("period")],
    )
    momentum: float | None = option(
        None, "agents send βm_{t−1} + (1 − β)g_t in the place of gradients; by default what the algorithm uses",
        allowed=MOMENTUM, needs=[need.algorithm_takes("delivery")],
    )  # fmt: skip
    eta: float = option(1e-3, "step size η", allowed=POSITIVE)
    eta_end: float | None = option(None, "decay the step size linearly to this value over the run", allowed=POSITIVE)
    optimizer: str = option("adam", "optax optimizer; sgd is the paper's plain ascent", choices=OPTIMIZERS)
    gamma: float = option(0.999, "discount factor γ", allowed=UNIT_INTERVAL)
    horizon: int = option(500, "task horizon H, by default the limit of the environment", allowed=COUNT)
    estimator: str = option("gpomdp", "gradient estimator", choices=ESTIMATORS)
    baseline: str = option(
        "none", "baseline of the gradient estimator", choices=BASELINES, needs=[need.OTHER_TRAJECTORIES]
    )
    baseline_value: float = option(
        0.0, "value of the constant baseline", allowed=FINITE, needs=[need.CONSTANT_BASELINE]
    )
    gae_lambda: float = option(0.95, "λ of the critics' advantages", allowed=FROM_0_TO_1, needs=[need.CRITIC])
    advantages: str = option(
        "plain", "normalised: every agent scales its own advantages to deviation 1",
        choices=ADVANTAGES, needs=[need.CRITIC],
    )  # fmt: skip
    critic_hidden: tuple[int, ...] = option(
        (32, 32), "hidden layer sizes of the critics", allowed=WIDTHS, needs=[need.CRITIC]
    )
    critic_eta: float = option(3e-3, "step size of the critics", allowed=POSITIVE, needs=[need.CRITIC])
    critic_steps: int = option(16, "local steps of every critic per batch", allowed=COUNT, needs=[need.CRITIC])
    epochs: int = option(1, "uses of every batch, with clipped ratios and one message each", allowed=COUNT)
    minibatches: int = option(1, "parts of a batch, with one message each in every epoch", allowed=COUNT)
    ratio_clip: float = option(
        0.2, "distance from 1 at which ratios are clipped", allowed=POSITIVE, needs=[need.SEVERAL_MESSAGES]
    )
    entropy: float = option(0.0, "factor of the entropy of the policy that is added to the objective",
                            allowed=ENTROPY)  # fmt: skip
    weights: str = option(
        "trajectory",
        "importance weights; trajectory is the paper's choice",
        choices=WEIGHTS,
        needs=[need.SMALL_BATCHES],
    )
    weight_clip: float | None = option(
        None, "clip importance weights at this value", allowed=POSITIVE, needs=[need.SMALL_BATCHES]
    )
    previous: str = option(
        "aggregated", "previous estimate in the small-batch formula", choices=PREVIOUS, needs=[need.SMALL_BATCHES]
    )
    anchor: str = option(
        "previous", "parameters that a small batch is compared with; proposed is what the published code uses",
        choices=("previous", "proposed"), needs=[need.SMALL_BATCHES, need.NO_SNAPSHOT],
    )  # fmt: skip
    clip_norm: float | None = option(None, "scale estimates down to this norm before they are sent", allowed=POSITIVE)
    policy: str | None = option(
        None, "network; by default cnn if observations are images, otherwise mlp; options as name:option=value",
        registry=policies,
    )  # fmt: skip
    hidden: tuple[int, ...] = option(
        (16, 16), "hidden layer sizes, separated by commas", allowed=WIDTHS, needs=[need.policy_takes("hidden")]
    )
    activation: str = option(
        "tanh", "activation of the hidden layers", choices=ACTIVATIONS, needs=[need.policy_takes("activation")]
    )
    output_activation: str = option(
        "tanh", "activation of the output layer", choices=ACTIVATIONS, needs=[need.policy_takes("output_activation")]
    )
    output_scale: float = option(
        1.0, "factor on the activated outputs", allowed=POSITIVE, needs=[need.policy_takes("output_scale")]
    )
    initialiser: str = option(
        "lecun", "initialisation of the network", choices=INITIALISERS, needs=[need.policy_takes("initialiser")]
    )
    initial_std: float = option(
        0.5, "initial standard deviation of continuous actions, in units of half the width of their range",
        allowed=POSITIVE, needs=[need.policy_takes("initial_std")],
    )  # fmt: skip
    deviation: str = option(
        "common", "standard deviations of continuous actions: common to all states, or computed from the state",
        choices=DEVIATIONS, needs=[need.policy_takes("deviation")],
    )  # fmt: skip
    start: str = option(
        "own",
        "own: every seed draws its own initial policy; shared: all start from the one of the first seed; from:PATH: all"
        " start from the learnt policy of a run folder or of a file that `jaxbyz export` wrote",
        allowed=START,
    )
    output: str = option(
        "last", "parameters to evaluate: the last, θ_T̂ (sampled), or those with the best honest return",
        choices=OUTPUTS,
    )  # fmt: skip
    unsafe: bool = option(
        False,
        "allow more Byzantine agents than the rules tolerate",
        needs=[need.Need(lambda c: not _is_safe(c), "no limit is exceeded")],
    )

    @property
    def defended(self) -> int:
        """The number of Byzantine agents that the rules defend against."""
        return self.byzantine if self.assumed_byzantine is None else self.assumed_byzantine

    def kappa_rounds(self) -> int:
        """Return κ as a number."""
        return theorem_rounds(self.N, self.agents, self.p) if self.kappa == "theorem" else int(self.kappa)


FIELDS = {f.name: f for f in dataclasses.fields(Config)}
TYPES = typing.get_type_hints(Config)


# What other libraries and papers call our options.
OTHER_NAMES = {
    "lr": "eta", "learning_rate": "eta", "step_size": "eta", "alpha": "eta", "discount": "gamma", "K": "agents",
    "clients": "agents", "workers": "agents", "f": "byzantine", "attackers": "byzantine", "rule": "aggregator",
    "aggregation": "aggregator", "defence": "aggregator", "defense": "aggregator", "adversary": "attack",
    "batch_size": "N", "batch": "N", "minibatch": "B", "episodes": "trajectories", "iterations": "trajectories",
    "steps": "trajectories", "timesteps": "trajectories", "environment": "env",
    "task": "env", "network": "policy", "model": "policy", "layers": "hidden", "rounds": "kappa",
    "optim": "optimizer", "max_steps": "horizon", "algo": "algorithm", "random_seed": "seed", "num_seeds": "seeds",
}  # fmt: skip


def similar_option(name: str) -> str | None:
    """Return the option that a user may have meant, or None."""
    name = name.replace("-", "_")
    near = difflib.get_close_matches(name, FIELDS, n=1)
    return OTHER_NAMES.get(name) or (near[0] if near else None)


def resolve(preset: str | None = None, **options: Any) -> Config:
    """Return the checked configuration of the given options, with other values from the preset.

    Args:
        preset: the preset to start from; by default the one of the environment (`cartpole` for CartPole-v1), or a
            general one for its kind of actions and observations.
        **options: fields of `Config`. The aggregator `"bucketing+rfa"` is short for the aggregator `"rfa"` with the
            pre-aggregator `"bucketing"`. If neither the options nor the preset name an aggregator, it is the mean if
            nobody is Byzantine. If they name no horizon, it is the environment's own time limit.

    Raises:
        UsageError: if an option is unknown or a value is not allowed.
    """
    for name in options:
        if name not in FIELDS:
            near = similar_option(name)
            raise UsageError(f"option {name!r} is unknown" + (f"; did you mean {near!r}?" if near else ""))
    options = {name: convert(name, TYPES[name], as_text(name, value)) for name, value in options.items()}
    preset = convert("preset", str | None, preset) or default_preset(options)
    check_choice("preset", preset, PRESETS)
    before, plus, last = options.get("aggregator", "").rpartition("+")
    if plus and "pre_aggregator" in options:
        raise UsageError(
            f"aggregator={options['aggregator']!r} with pre_aggregator={options['pre_aggregator']!r}: name the "
            "pre-aggregators in one of them"
        )
    if plus:
        options |= {"aggregator": last, "pre_aggregator": before}
    values = {**PRESETS[preset][1], **options}
    if "aggregator" not in values:
        robust = RULE_UNDER_ATTACK.get(preset, Config.aggregator)
        values["aggregator"] = robust if values.get("byzantine", Config.byzantine) else "mean"
    if "horizon" not in values and (environment := _environment(values)) is not None:
        values["horizon"] = int(environment.limit or Config.horizon)
    return check(Config(**values))


def default_preset(options: dict[str, Any]) -> str:
    """Return the preset of an environment: its own, or a general one that suits its actions and observations."""
    own = DEFAULT_PRESET.get(options.get("env", Config.env))
    if own is not None:
        return own
    environment = _environment(options)
    return "default" if environment is None else general_preset(environment)


def _environment(options: dict[str, Any]) -> Environment | None:
    """Return the environment of some options; None if it cannot be made, which `check` and `build` explain."""
    try:
        return _environment_once(
            options.get("env", Config.env), options.get("env_param", Config.env_param), Registry.revision
        )
    except UsageError:
        return None


@lru_cache(maxsize=16)
def _environment_once(name: str, params: str, revision: int) -> Environment:
    """Make an environment; `revision` makes the cache notice environments that are registered again."""
    return make_environment(name, **parse_assignments(params))


def traits_of(config: Config) -> Traits:
    """Return the traits of the configured algorithm."""
    return algorithms[config.algorithm].traits or Traits()


def effective(config: Config) -> Config:
    """Return the configuration with the values that the algorithm fixes itself."""
    traits = traits_of(config)
    if traits.single:
        config = dataclasses.replace(config, agents=1, byzantine=0, attack="none", schedule="fixed")
    if traits.naive:
        config = dataclasses.replace(config, aggregator="mean", pre_aggregator="none")
    if traits.naive or traits.central:
        config = dataclasses.replace(config, agreement="none")
    return config


def check(config: Config, *, names: bool = True) -> Config:
    """Validate a configuration and return the `effective` one.

    Args:
        config: what to validate.
        names: if False, accept rules and attacks that are not registered in this process.

    Raises:
        UsageError: one line that names the option, its value and what is allowed.
    """
    for name in FIELDS:
        _check_option(name, getattr(config, name))
    if names:
        _check_names(config)
    if config.seed + config.seeds - 1 > MAX_SEED:
        raise UsageError(f"seed={config.seed} with seeds={config.seeds}: the last seed must be at most {MAX_SEED}")
    if config.byzantine >= config.agents:
        raise UsageError(f"byzantine={config.byzantine} of agents={config.agents}: at least one agent must be honest")
    page = page_of(config)
    # An algorithm with snapshots compares small batches with the last snapshot, whatever the option anchor says.
    (page._replace(anchor="snapshot") if traits_of(config).snapshot else page).check()
    page.check_switch(always_large(config.p, config.period))
    config = effective(config)
    if names:
        _check_limits(config)
    return config


def _check_option(name: str, value: Any) -> None:
    """Refuse a value that the description of the option does not allow."""
    rule, optional = FIELDS[name].metadata, FIELDS[name].default is None
    if isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_TEXT):
        raise UsageError(f"{name}={value[:60]!a}: must be printable text of at most {MAX_TEXT} characters")
    if rule["choices"]:
        check_choice(name, value, rule["choices"])
    if rule["allowed"] is None or (optional and value is None) or rule["allowed"].test(value):
        return
    shown = repr(value[:60]) if isinstance(value, str) else str(value).replace(" ", "").strip("(,)")
    raise UsageError(f"{name}={shown}: must be {rule['allowed'].wording}{', or None' if optional else ''}")


def _check_names(config: Config) -> None:
    """Refuse names that are not registered, also of components that the algorithm does not use."""
    for name, described in FIELDS.items():
        registry, value = described.metadata["registry"], getattr(config, name)
        if registry is None or value is None or (registry is pre_aggregators and value == "none"):
            continue
        for part in value.split("+"):
            registry[parse_spec(part)[0]]


def registered(config: Config) -> bool:
    """Return whether every component that the configuration names is registered in this process."""
    try:
        _check_names(config)
    except UsageError:
        return False
    return True


def _check_limits(config: Config) -> None:
    """Refuse more Byzantine agents than the algorithm, its rule and its agreement tolerate."""
    if traits_of(config).naive:  # tolerates nobody, and is run with Byzantine agents to show that
        return
    entries = {
        "algorithm": algorithms[config.algorithm],
        "aggregator": aggregators[parse_spec(config.aggregator)[0]],
        "agreement": agreements[parse_spec(config.agreement)[0]],
    }
    delivery = delivery_of(config)
    counts = dict.fromkeys(entries, delivery.voters(config.agents)) | {"agreement": delivery.present(config.agents)}
    for kind, entry in entries.items():
        # Rules defend against as many as are assumed, and face as many as there are, all of whom may take part.
        most = max(config.byzantine, config.defended)
        check_limit(kind, entry.name, entry.limit, counts[kind], most, config.unsafe)


def _is_safe(config: Config) -> bool:
    """Return whether the configuration would be accepted without `unsafe`."""
    try:
        _check_limits(dataclasses.replace(config, unsafe=False))
        f = 0 if traits_of(config).naive else max(config.byzantine, config.defended)
        make_rule(rule_spec(config), delivery_of(config).voters(config.agents), f)
    except UsageError:
        return False
    return True


def rule_spec(config: Config) -> str:
    """Return the aggregator with its pre-aggregators in front, as one name."""
    return config.aggregator if config.pre_aggregator == "none" else f"{config.pre_aggregator}+{config.aggregator}"


def agrees(config: Config) -> bool:
    """Return whether the agents agree on parameters: with a server and in naive algorithms they do not."""
    return effective(config).agreement != "none"


def delivery_of(config: Config) -> Delivery:
    """Return which messages reach their receivers."""
    name, options = parse_spec(config.compression)
    compression = compressors[name].build(config.agents, config.byzantine, **options)
    own_momentum = algorithms[config.algorithm].takes("momentum")  # the algorithm itself has a momentum
    momentum = 0.0 if config.momentum is None or own_momentum else config.momentum
    return Delivery(config.participation, config.absent, config.delay, config.drop, compression, momentum)


def page_of(config: Config) -> Page:
    """Return the settings of the PAGE switch."""
    estimator = Estimator(
        kind=config.estimator,
        gamma=config.gamma,
        horizon=config.horizon,
        baseline=config.baseline,
        baseline_value=config.baseline_value,
        weights=config.weights,
        clip=config.weight_clip,
        gae_lambda=config.gae_lambda,
        advantages=config.advantages,
    )
    constant_step = config.optimizer == "sgd" and config.eta_end is None
    return Page(
        N=config.N,
        B=config.B,
        estimator=estimator,
        previous=config.previous,
        eta=config.eta if constant_step else None,
        clip_norm=config.clip_norm,
        anchor=config.anchor,
        critic=CriticSettings(config.critic_hidden, config.critic_eta, config.critic_steps),
        epochs=config.epochs,
        minibatches=config.minibatches,
        ratio_clip=config.ratio_clip,
        entropy=config.entropy,
    )


def to_dict(config: Config) -> dict[str, Any]:
    """Return the options as JSON values."""
    return {**dataclasses.asdict(config), "hidden": list(config.hidden), "critic_hidden": list(config.critic_hidden)}


def from_dict(values: dict[str, Any], *, names: bool = True) -> Config:
    """Return the checked configuration of JSON values; inverse of `to_dict`. `names` is passed to `check`."""
    values = {"policy": "mlp", **values}  # what every run used before there was a choice
    known = {name: convert(name, TYPES[name], values[name]) for name in FIELDS if name in values}
    return check(Config(**known), names=names)
