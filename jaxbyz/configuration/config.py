"""All options of an experiment. Each is declared in the file of its idea; those of tasks and runs are declared here."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from jaxbyz.algorithms import Settings, algorithms, traits_of_algorithm
from jaxbyz.algorithms.settings import Ascent, Audits, Federation, Groups, InnerLoop, LocalSteps, ServerSampling
from jaxbyz.algorithms.traits import Traits
from jaxbyz.configuration.agent_values import values_per_agent
from jaxbyz.environments import environments
from jaxbyz.errors import UsageError
from jaxbyz.options import ASSIGNMENTS, COUNT, SPREADS, Allowed, Need, option
from jaxbyz.policies import policies
from jaxbyz.policies.options import NETWORK_OPTIONS, NetworkOptions
from jaxbyz.protocol.channel_options import ChannelOptions
from jaxbyz.sampling.critic import CriticSettings
from jaxbyz.sampling.estimators import Estimator
from jaxbyz.sampling.reuse import Reuse
from jaxbyz.sampling.settings import Batches, PageSwitch

OUTPUTS = ("last", "sampled", "best")
START_FROM = "from:"  # begins the values of `start` that name a learnt policy
MAX_SEED = 2**32 - 1


def _are_values_per_agent(text: str) -> bool:
    """Return whether a text is empty or a JSON object of lists."""
    try:
        return isinstance(values_per_agent(text), dict)
    except UsageError:
        return False


VALUES_PER_AGENT = Allowed(_are_values_per_agent, "a JSON file or text with one list of numbers per parameter")
SEED = Allowed(lambda n: 0 <= n <= MAX_SEED, f"a whole number from 0 to {MAX_SEED}")
START = Allowed(
    lambda text: text in ("own", "shared") or (text.startswith(START_FROM) and text != START_FROM),
    f"own, shared, or {START_FROM}PATH with a run folder or an exported .npz file",
)
SEVERAL_SEEDS = Need(lambda config, _: config.seeds > 1, "there is one seed")
DECAYS = Need(lambda config, _: config.eta_end is not None, "the step size is constant (eta_end=none)")
COINS = Need(lambda config, traits: traits.draws_coins(config), "the batch sizes are not random")


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The algorithm and the environment."""

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


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """Seeds and the number of trajectories."""

    seeds: int = option(1, "number of seeds, trained side by side", allowed=COUNT)
    seed: int = option(0, "the first seed; the others are seed + 1, seed + 2, …", allowed=SEED)
    coin: str = option(
        "shared", "shared: all seeds use the coins of the first; own: every seed draws its own, which is slower",
        choices=("shared", "own"), needs=[SEVERAL_SEEDS, COINS],
    )  # fmt: skip
    trajectories: int = option(8000, "trajectories to sample per agent", allowed=COUNT)
    decay_over: int | None = option(
        None, "trajectories over which the step size decays to eta_end, where it then stays; by default all",
        allowed=COUNT, needs=[DECAYS],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """The policy, besides the options of its network."""

    policy: str | None = option(
        None, "network; by default cnn if observations are images, otherwise mlp; options as name:option=value",
        registry=policies,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StartAndResult:
    """The policy that a run starts from, and which parameters are its result."""

    start: str = option(
        "own",
        "own: every seed draws its own initial policy; shared: all start from one that the option seed determines; "
        "from:PATH: all start from the learnt policy of a run folder or of a file that `jaxbyz export` wrote",
        allowed=START,
    )
    output: str = option(
        "last", "parameters to evaluate: the last, θ_T̂ (sampled), or those with the best honest return",
        choices=OUTPUTS,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(StartAndResult, NetworkOptions, PolicyChoice, RunLength, TaskOptions, Settings):
    """Everything that determines the numbers of a run. Options named after symbols of the paper keep their case."""

    @property
    def traits(self) -> Traits:
        """The traits of the algorithm."""
        return traits_of_algorithm(self.algorithm)

    @property
    def server_samples_alone(self) -> bool:
        """Whether a server samples the small batches alone."""
        return self.traits.server_samples and self.small_batches != "workers"

    @property
    def decays_over(self) -> int | None:
        """The trajectories over which the step size decays, or None if it is constant."""
        return None if self.eta_end is None else self.decay_over or self.trajectories

    def with_length(self, trajectories: int) -> Config:
        """Return the configuration with another number of trajectories, whose step size decays as it does here."""
        over = None if self.decays_over in (None, trajectories) else self.decays_over
        return dataclasses.replace(self, trajectories=trajectories, decay_over=over)

    @property
    def network_options(self) -> dict[str, Any]:
        """The options of the network, for a policy that has them."""
        return {name: getattr(self, name) for name in NETWORK_OPTIONS}


FIELDS = {f.name: f for f in dataclasses.fields(Config)}
TYPES = typing.get_type_hints(Config)
DEFAULTS: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}

# Groups of options, as help texts and the documentation show them.
OPTION_GROUPS: dict[str, tuple[type, ...]] = {
    "task": (TaskOptions,),
    "agents, faults and defence": (Federation, Audits),
    "messages": (ChannelOptions, LocalSteps, ServerSampling, Groups),
    "seeds and length": (RunLength,),
    "batches and steps": (Batches, PageSwitch, Reuse, Ascent),
    "gradient estimate": (Estimator, CriticSettings, InnerLoop),
    "network": (PolicyChoice, NetworkOptions),
    "start and result": (StartAndResult,),
}
