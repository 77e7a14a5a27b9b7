"""Build the algorithm that a configuration describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jaxbyz.algorithms import Algorithm, algorithms
from jaxbyz.algorithms.agents import make_optimizer
from jaxbyz.algorithms.base import starting_with_attack
from jaxbyz.attacks import Attack
from jaxbyz.attacks import attacks as registered_attacks
from jaxbyz.attacks.one_of import one_of
from jaxbyz.components import make_attack, make_policy
from jaxbyz.configuration.agent_values import values_per_agent
from jaxbyz.configuration.config import FIELDS, START_FROM, Config
from jaxbyz.configuration.memory import check_memory
from jaxbyz.configuration.resolving import environment_once
from jaxbyz.environments import Environment, heterogeneous
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.registry import Registry, parse_assignments
from jaxbyz.training.layout import Vary

# Options that are inputs of a program. What agents compute on their lanes has no numbers of its own per run: there,
# runs side by side are one long axis of agents (`accelerate.batching.fold_mapped_axis`).
DATA = ("eta", "eta_end")
DECAY, ATTACK = "decay", "attack"  # further inputs: over how many iterations η decays, and which attack is used

# (option `start`, number of parameters D) -> the learnt parameters [D] that it names
ReadStart = Callable[[str, int], np.ndarray]


def environment_of(config: Config) -> Environment:
    """Return the environment that the options describe, with the parameters in which agents differ."""
    nominal = environment_once(config.env, config.env_param)
    spread, values = parse_assignments(config.env_spread), values_per_agent(config.env_agents)
    return heterogeneous(nominal, config.agents, spread=spread, values=values)


def policy_of(config: Config, environment: Environment, read_start: ReadStart | None = None) -> Policy:
    """Return the policy that the options describe, with the initial parameters that they name."""
    policy = make_policy(config.policy, environment, config.network_options)
    if config.start == "shared":
        return policy._replace(init=lambda _: policy.init(jax.random.key(config.seed)))
    if not config.start.startswith(START_FROM):
        return policy

    def learnt(_: Any) -> jax.Array:  # read only if a run starts
        if read_start is None:
            raise UsageError(f"start={config.start}: give build the argument read_start, which reads a learnt policy")
        return jnp.asarray(read_start(config.start, policy.size))

    return policy._replace(init=learnt)


def build(
    config: Config,
    iterations: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    attack: Attack | None = None,
    read_start: ReadStart | None = None,
) -> Algorithm:
    """Return the algorithm of a configuration, with its environment, policy, rules and attack.

    Args:
        config: a checked configuration.
        iterations: the length of the run, over which the step size decays if `eta_end` is given. Without it, the step
            size stays at `eta`.
        optimizer: replaces the configured one.
        attack: replaces the configured one.
        read_start: reads the parameters that `start=from:PATH` names, as `trained.start_from.start_parameters` does.
    """
    environment = environment_of(config)
    policy = policy_of(config, environment, read_start)
    optimizer = make_optimizer(config, iterations) if optimizer is None else optimizer
    return _build_in(environment, policy, config, optimizer, attack)


def _build_in(
    environment: Environment,
    policy: Policy,
    config: Config,
    optimizer: optax.GradientTransformation,
    attack: Attack | None,
) -> Algorithm:
    """Return the algorithm of a configuration, with parts that exist; an attack replaces the configured one."""
    settings = replace(config, optimizer=optimizer, attack=config.attack if attack is None else attack)
    return algorithms[config.algorithm].factory(environment, policy, settings)


class Family(NamedTuple):
    """Algorithms that differ in numbers only, which are inputs of the programs that they share.

    Attributes:
        template: one of them, with arbitrary numbers.
        vary: returns the one with the numbers of `numbers_of`, and with a number `DECAY` if its step size decays. Of
            several attacks, `ATTACK` is the position of the one that is used.
        description: describes them in the same words for configurations that compile alike; None if programs must not
            be stored: an option names a file or folder, as that of a learned attack, whose contents may change, or
            episodes run outside of the programs.
    """

    template: Algorithm
    vary: Vary
    description: str | None


def numbers_of(config: Config) -> dict[str, float]:
    """Return the options of a configuration that are inputs of its programs. A constant step size has no `eta_end`."""
    return {name: getattr(config, name) for name in DATA if getattr(config, name) is not None}


def coins_are_data(config: Config) -> bool:
    """Return whether the probability of a large batch is read by Common-Sample only, whose coins are data."""
    draws = "p" not in config.traits.ignores and config.traits.draws_coins(config)
    return draws and (config.kappa != "theorem" or config.agreement == "none")


def without_numbers(config: Config, attack: str) -> Config:
    """Return a configuration that is the same for all of a family under this attack."""
    any_numbers: dict[str, Any] = dict.fromkeys(numbers_of(config), 0.5)
    p = 0.5 if coins_are_data(config) else config.p
    return replace(_essential(config, 1)[0], attack=attack, p=p, **any_numbers)


def family_of(config: Config, attacks: Sequence[str] = (), read_start: ReadStart | None = None) -> Family:
    """Return the family of a configuration, the same object for all configurations of the family.

    Args:
        config: a checked configuration.
        attacks: the attacks that the programs have; by default that of the configuration alone.
        read_start: as in `build`.
    """
    several = tuple(attacks) if len(attacks) > 1 else ()
    essential = without_numbers(config, "none" if several else attacks[0] if attacks else config.attack)
    files = [*files_of(essential), *(file for name in several for file in registered_attacks.files(name))]
    family = _family_once(essential, several, read_start, Registry.revision, tuple(map(_version, files)))
    # A program that calls this process cannot be stored either.
    return family._replace(description=None) if files or family.template.environment.host is not None else family


@lru_cache(maxsize=16)
def _family_once(
    config: Config, attacks: tuple[str, ...], read_start: ReadStart | None, revision: int, versions: tuple[Any, ...]
) -> Family:
    """Build a family; the cache is that of `_build_once`. All numbers of the configuration stand for any others."""
    check_memory(config)
    together = one_of([make_attack(name, config.agents, config.byzantine) for name in attacks]) if attacks else None
    environment, names = environment_of(config), tuple(numbers_of(config))
    policy = policy_of(config, environment, read_start)  # not always the template's: that of an ensemble is a vote
    template = _build_in(environment, policy, config, make_optimizer(config, 1), together)

    def vary(numbers: Mapping[str, Array]) -> Algorithm:
        inputs: dict[str, Any] = {name: numbers[name] for name in names}
        own = replace(config, **inputs)
        with jax.ensure_compile_time_eval():  # what does not depend on the numbers is computed now
            algorithm = _build_in(environment, policy, own, make_optimizer(own, numbers.get(DECAY)), together)
        return starting_with_attack(algorithm, numbers[ATTACK]) if attacks else algorithm

    return Family(template, vary, repr((config, attacks)))


def cached_algorithm(config: Config, iterations: int = 1, read_start: ReadStart | None = None) -> Algorithm:
    """Return the algorithm of a configuration, the same object for configurations that compile to the same program."""
    versions = tuple(map(_version, files_of(config)))
    return _build_once(*_essential(config, iterations), read_start, Registry.revision, versions)


def files_of(config: Config) -> list[str]:
    """Return the files and folders that the options name: a learnt policy, and those that components read."""
    registries = {name: option.metadata["registry"] for name, option in FIELDS.items()}
    named = [(known, getattr(config, name)) for name, known in registries.items() if known is not None]
    start = [config.start.removeprefix(START_FROM)] if config.start.startswith(START_FROM) else []
    return [*start, *(file for known, text in named if text is not None for file in known.files(text))]


def _version(path: str) -> tuple[str, int, int]:
    """Return what changes when a file or folder is written again: its name, time and size."""
    path = path.partition("#")[0]
    if not os.path.exists(path):
        return path, 0, 0
    state = os.stat(path)
    return path, state.st_mtime_ns, state.st_size


def _essential(config: Config, iterations: int) -> tuple[Config, int]:
    """Return the configuration without options that do not change the algorithm, and how long its step size decays."""
    seed = config.seed if config.start == "shared" else 0
    essential = replace(config, seed=seed, seeds=1, trajectories=1, decay_over=None, coin="shared", output="last")
    return essential, 1 if config.eta_end is None else iterations


@lru_cache(maxsize=16)
def _build_once(
    config: Config, iterations: int, read_start: ReadStart | None, revision: int, versions: tuple[Any, ...]
) -> Algorithm:
    """Build an algorithm. The cache notices components that are registered again and files that are written again."""
    check_memory(config)
    return build(config, iterations, read_start=read_start)
