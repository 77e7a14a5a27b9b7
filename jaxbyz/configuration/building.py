"""Build the algorithm that a configuration describes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxbyz.algorithms import Algorithm, algorithms
from jaxbyz.algorithms.agents import make_optimizer
from jaxbyz.attacks import Attack
from jaxbyz.components import make_policy
from jaxbyz.configuration.agent_values import values_per_agent
from jaxbyz.configuration.config import START_FROM, Config
from jaxbyz.configuration.memory import check_memory
from jaxbyz.configuration.resolving import environment_once
from jaxbyz.configuration.start import start_parameters
from jaxbyz.environments import Environment, heterogeneous
from jaxbyz.policies import Policy
from jaxbyz.registry import Registry, parse_assignments


def environment_of(config: Config) -> Environment:
    """Return the environment that the options describe, with the parameters in which agents differ."""
    nominal = environment_once(config.env, config.env_param)
    spread, values = parse_assignments(config.env_spread), values_per_agent(config.env_agents)
    return heterogeneous(nominal, config.agents, spread=spread, values=values)


def policy_of(config: Config, environment: Environment) -> Policy:
    """Return the policy that the options describe, with the initial parameters that they name."""
    policy = make_policy(config.policy, environment, config.network_options)
    if config.start == "shared":
        return policy._replace(init=partial(_init_from_seed, policy.init, config.seed))
    if config.start.startswith(START_FROM):
        return policy._replace(init=partial(_init_from_policy, config.start, policy.size))
    return policy


def build(
    config: Config,
    iterations: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    attack: Attack | None = None,
) -> Algorithm:
    """Return the algorithm of a configuration, with its environment, policy, rules and attack.

    Args:
        config: a checked configuration.
        iterations: the length of the run, over which the step size decays if `eta_end` is given. Without it, the step
            size stays at `eta`.
        optimizer: replaces the configured one.
        attack: replaces the configured one.
    """
    environment = environment_of(config)
    policy = policy_of(config, environment)
    optimizer = make_optimizer(config, iterations) if optimizer is None else optimizer
    settings = replace(config, optimizer=optimizer, attack=config.attack if attack is None else attack)
    return algorithms[config.algorithm].factory(environment, policy, settings)


def _init_from_seed(init: Callable[..., Any], seed: int, _: Any) -> Any:
    """Draw initial parameters from a seed instead of the run's key."""
    return init(jax.random.key(seed))


def _init_from_policy(start: str, size: int, _: Any) -> Any:
    """Return the parameters of a learnt policy, which are read only if a run starts."""
    return jnp.asarray(start_parameters(start, size))


def cached_algorithm(config: Config, iterations: int = 1) -> Algorithm:
    """Return the algorithm of a configuration, the same object for configurations that compile to the same program."""
    return _build_once(*_essential(config, iterations), Registry.revision, _versions(_named_paths(config)))


def describe_algorithm(config: Config, iterations: int) -> str | None:
    """Describe the algorithm of a configuration, in the same words for configurations that compile alike.

    None if an option names a file or folder, as that of a learned attack, because its contents may change.
    """
    return None if _named_paths(config) else repr(_essential(config, iterations))


def _named_paths(config: Config) -> list[str]:
    """Return the files and folders that options name."""
    texts = [value for value in vars(config).values() if isinstance(value, str)]
    words = {word for text in texts for word in (text, text.partition(":")[2], *re.split("[:=,+]", text))}
    return sorted(filter(os.path.exists, words))


def _versions(paths: list[str]) -> tuple[tuple[str, int, int], ...]:
    """Return what changes when a file or folder is written again: its name, time and size."""
    states = [(path, os.stat(path)) for path in paths]
    return tuple((path, state.st_mtime_ns, state.st_size) for path, state in states)


def _essential(config: Config, iterations: int) -> tuple[Config, int]:
    """Return the configuration without options that do not change the algorithm, and how long its step size decays."""
    seed = config.seed if config.start == "shared" else 0
    essential = replace(config, seed=seed, seeds=1, trajectories=1, coin="shared", output="last")
    return essential, 1 if config.eta_end is None else iterations


@lru_cache(maxsize=16)
def _build_once(config: Config, iterations: int, revision: int, versions: tuple[Any, ...]) -> Algorithm:
    """Build an algorithm. The cache notices components that are registered again and files that are written again."""
    check_memory(config)
    return build(config, iterations)
