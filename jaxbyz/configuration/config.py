"""The options of an experiment, and the parts of a run that they describe.

Every option is described once, in the metadata of its `Config` field: help text, allowed values, and when it is read.
The Python API, the command line, sweep files and run folders all use these descriptions.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from jaxbyz.algorithms import Traits, algorithms, traits_of_algorithm
from jaxbyz.attacks import attacks
from jaxbyz.components import (
    Limit,
    check_limits,
    limits_of_agreement,
    limits_of_rule,
    make_group_rules,
    make_rule,
)
from jaxbyz.configuration import needs as need
from jaxbyz.configuration.allowed_values import (
    ASSIGNMENTS,
    COUNT,
    FINITE,
    FROM_0_TO_1,
    MOMENTUM,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY_OF_LOSS,
    ROUNDS,
    SEED,
    SPREADS,
    START,
    UNIT_INTERVAL,
    VALUES_PER_AGENT,
    WIDTHS,
    Allowed,
)
from jaxbyz.environments import environments
from jaxbyz.errors import UsageError
from jaxbyz.policies import ACTIVATIONS, INITIALISERS, policies
from jaxbyz.policies.distributions import DEVIATIONS
from jaxbyz.protocol.agreements import agreements, theorem_rounds
from jaxbyz.protocol.compression import compressors
from jaxbyz.protocol.delivery import ABSENT, ARRIVALS, Delivery
from jaxbyz.protocol.schedules import schedules
from jaxbyz.registry import Registry, parse_spec
from jaxbyz.rules import aggregators, pre_aggregators
from jaxbyz.sampling.critic import CriticSettings
from jaxbyz.sampling.estimators import ADVANTAGES, BASELINES, ESTIMATORS, WEIGHTS, Estimator
from jaxbyz.sampling.page import PREVIOUS, Page

OPTIMIZERS = ("adam", "sgd", "rmsprop", "adamw", "amsgrad", "yogi", "radam", "lion")
OUTPUTS = ("last", "sampled", "best")
POLICY_OPTIONS = (  # if the policy has them
    "hidden", "activation", "output_activation", "output_scale", "initialiser", "initial_std", "deviation",
)  # fmt: skip


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
    arrivals: str = option(
        "random", "who decides which agents take part, how old gradients are and what is lost: chance, or the "
        "adversary within the same limits", choices=ARRIVALS,
        needs=[need.algorithm_takes("delivery"), need.UNCERTAIN_ARRIVALS],
    )  # fmt: skip
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
    B: int = option(4, "small batch size", allowed=COUNT, needs=[need.ANY_SMALL_BATCH])
    p: float = option(
        0.2, "probability of a large batch", allowed=UNIT_INTERVAL, needs=[need.algorithm_takes("p"), need.NO_PERIOD]
    )
    period: int | None = option(
        None,
        "take a large batch every this many iterations instead of a coin",
        allowed=COUNT,
        needs=[need.algorithm_takes("period")],
    )
    groups: int = option(
        3, "disjoint groups of an ensemble; each trains a policy, and the policies vote on actions", allowed=COUNT,
        needs=[need.algorithm_takes("groups")],
    )  # fmt: skip
    small_batches: str | None = option(
        None, "who samples the small batches of ByzPG: the server alone, or the workers as in the published code",
        choices=("server", "workers"), needs=[need.algorithm_takes("server_samples"), need.SMALL_BATCHES],
    )  # fmt: skip
    batch_spread: int = option(
        0, "draw the sizes of large batches from N ± this, as FedPG-BR does", allowed=NOT_NEGATIVE,
        needs=[need.algorithm_takes("batch_spread")],
    )  # fmt: skip
    ratio_window: float | None = option(
        None, "end the small steps of FedPG-BR once the mean probability ratio is farther than this from 1",
        allowed=POSITIVE, needs=[need.algorithm_takes("ratio_window")],
    )  # fmt: skip
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
    critic_parts: int = option(
        1, "parts of a batch, which the local steps of a critic use in turn", allowed=COUNT, needs=[need.CRITIC]
    )
    epochs: int = option(1, "uses of every batch, with clipped ratios and one message each", allowed=COUNT)
    minibatches: int = option(1, "parts of a batch, with one message each in every epoch", allowed=COUNT)
    local_eta: float | None = option(
        None, "use every batch for local steps of this size with clipped ratios, and send one message, their mean",
        allowed=POSITIVE, needs=[need.SEVERAL_MESSAGES],
    )  # fmt: skip
    ratio_clip: float = option(
        0.2, "distance from 1 at which ratios are clipped", allowed=POSITIVE, needs=[need.SEVERAL_MESSAGES]
    )
    entropy: float = option(0.0, "factor of the entropy of the policy that is added to the objective; negative for "
                            "a more certain policy", allowed=FINITE, needs=[need.ENTROPY_BONUS])  # fmt: skip
    weights: str = option(
        "trajectory",
        "importance weights; trajectory is the paper's choice",
        choices=WEIGHTS,
        needs=[need.SMALL_BATCHES, need.PLAIN_CORRECTION],
    )
    weight_clip: float | None = option(
        None,
        "clip importance weights at this value",
        allowed=POSITIVE,
        needs=[need.SMALL_BATCHES, need.PLAIN_CORRECTION],
    )
    previous: str = option(
        "aggregated",
        "previous estimate in the small-batch formula",
        choices=PREVIOUS,
        needs=[need.SMALL_BATCHES, need.PLAIN_CORRECTION],
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
        needs=[need.Need(lambda c: not is_safe(c), "no limit is exceeded")],
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


def traits_of(config: Config) -> Traits:
    """Return the traits of the configured algorithm."""
    return traits_of_algorithm(config.algorithm)


def in_groups(config: Config) -> bool:
    """Return whether the agents train one policy per group."""
    return algorithms[config.algorithm].takes("groups")


def server_samples_alone(config: Config) -> bool:
    """Return whether a server samples the small batches alone."""
    return traits_of(config).server_samples and config.small_batches != "workers"


def effective(config: Config) -> Config:
    """Return the configuration with the values that the algorithm fixes itself."""
    traits = traits_of(config)
    if traits.single:
        config = dataclasses.replace(config, agents=1, byzantine=0, attack="none", schedule="fixed")
    if traits.naive:
        config = dataclasses.replace(config, aggregator="mean", pre_aggregator="none")
    if traits.naive or traits.central:
        config = dataclasses.replace(config, agreement="none")
    if not algorithms[config.algorithm].takes("server_samples"):
        config = dataclasses.replace(config, small_batches=None)
    return config


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
    return Delivery(
        config.participation, config.absent, config.delay, config.drop, compression, momentum, config.arrivals
    )


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
        critic=CriticSettings(config.critic_hidden, config.critic_eta, config.critic_steps, config.critic_parts),
        epochs=config.epochs,
        minibatches=config.minibatches,
        ratio_clip=config.ratio_clip,
        entropy=config.entropy,
        local_eta=config.local_eta,
    )


def check_tolerance(config: Config) -> None:
    """Refuse more Byzantine agents than the algorithm, its rule and its agreement tolerate."""
    if traits_of(config).naive:  # tolerates nobody, and is run with Byzantine agents to show that
        return
    delivery = _used_delivery(config)
    voters, present = delivery.voters(config.agents), delivery.present(config.agents)
    # Rules defend against as many as are assumed, and face as many as there are, all of whom may take part.
    most, rule = max(config.byzantine, config.defended), rule_spec(config)
    entry = algorithms[config.algorithm]
    limits = [Limit("algorithm", entry.name, entry.limit, voters, most)]
    if in_groups(config):
        make_group_rules(rule, config.agents, most, config.groups, unsafe=config.unsafe)
    else:
        limits += limits_of_rule(rule, voters, most)
    check_limits([*limits, *limits_of_agreement(config.agreement, present, most)], config.unsafe)


def _used_delivery(config: Config) -> Delivery:
    """Return the delivery of messages, which is that of all of them if the algorithm does not read these options."""
    return delivery_of(config) if algorithms[config.algorithm].takes("delivery") else Delivery()


def is_safe(config: Config) -> bool:
    """Return whether the configuration would be accepted without `unsafe`."""
    try:
        check_tolerance(dataclasses.replace(config, unsafe=False))
        f = 0 if traits_of(config).naive else max(config.byzantine, config.defended)
        if not in_groups(config):
            make_rule(rule_spec(config), _used_delivery(config).voters(config.agents), f)
    except UsageError:
        return False
    return True
