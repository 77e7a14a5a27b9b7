"""Build the algorithm that a configuration describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbyz.algorithms import Algorithm, algorithms
from jaxbyz.algorithms.agents import make_optimizer
from jaxbyz.attacks import Attack
from jaxbyz.components import make_policy
from jaxbyz.configuration.agent_values import values_per_agent
from jaxbyz.configuration.config import FIELDS, START_FROM, Config
from jaxbyz.configuration.memory import check_memory
from jaxbyz.configuration.resolving import environment_once
from jaxbyz.environments import Environment, heterogeneous
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.registry import Registry, named_files, parse_assignments

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
    settings = replace(config, optimizer=optimizer, attack=config.attack if attack is None else attack)
    return algorithms[config.algorithm].factory(environment, policy, settings)


def cached_algorithm(config: Config, iterations: int = 1, read_start: ReadStart | None = None) -> Algorithm:
    """Return the algorithm of a configuration, the same object for configurations that compile to the same program."""
    versions = tuple(map(_version, files_of(config)))
    return _build_once(*_essential(config, iterations), read_start, Registry.revision, versions)


def describe_algorithm(config: Config, iterations: int) -> str | None:
    """Describe the algorithm of a configuration, in the same words for configurations that compile alike.

    None if an option names a file or folder, as that of a learned attack, because its contents may change.
    """
    return None if files_of(config) else repr(_essential(config, iterations))


def files_of(config: Config) -> list[str]:
    """Return the files and folders that the options name: a learnt policy, and those that components read."""
    specs = [getattr(config, name) for name, option in FIELDS.items() if option.metadata["registry"] is not None]
    start = [config.start.removeprefix(START_FROM)] if config.start.startswith(START_FROM) else []
    return [*start, *(file for spec in specs if spec is not None for file in named_files(spec))]


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
    essential = replace(config, seed=seed, seeds=1, trajectories=1, coin="shared", output="last")
    return essential, 1 if config.eta_end is None else iterations


@lru_cache(maxsize=16)
def _build_once(
    config: Config, iterations: int, read_start: ReadStart | None, revision: int, versions: tuple[Any, ...]
) -> Algorithm:
    """Build an algorithm. The cache notices components that are registered again and files that are written again."""
    check_memory(config)
    return build(config, iterations, read_start=read_start)
