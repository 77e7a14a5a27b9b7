"""Build the algorithm that a configuration describes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxbyz.algorithms import Algorithm, algorithms
from jaxbyz.attacks import Attack
from jaxbyz.components import make_agreement, make_attack, make_policy, make_rule
from jaxbyz.configuration.agent_values import values_per_agent
from jaxbyz.configuration.allowed_values import START_FROM
from jaxbyz.configuration.config import POLICY_OPTIONS, Config, delivery_of, in_groups, page_of, rule_spec
from jaxbyz.configuration.memory import check_memory
from jaxbyz.configuration.resolving import environment_once
from jaxbyz.configuration.start import start_parameters
from jaxbyz.environments import Environment, heterogeneous
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import Agreement
from jaxbyz.protocol.schedules import schedules
from jaxbyz.registry import Registry, parse_assignments
from jaxbyz.rules import Rule, check_rule


def agreement_of(config: Config) -> Agreement | None:
    """Return the agreement that the options name, or None for `"none"`."""
    present = delivery_of(config).present(config.agents)
    agreement = make_agreement(config.agreement, present, config.defended, config.kappa_rounds(), unsafe=config.unsafe)
    return None if agreement is None else agreement._replace(tolerance=config.tolerance)


def environment_of(config: Config) -> Environment:
    """Return the environment that the options describe, with the parameters in which agents differ."""
    nominal = environment_once(config.env, config.env_param)
    spread, values = parse_assignments(config.env_spread), values_per_agent(config.env_agents)
    return heterogeneous(nominal, config.agents, spread=spread, values=values)


def optimizer_of(config: Config, iterations: int | None = None) -> optax.GradientTransformation:
    """Return the optimizer, whose step size decays over this many iterations if `eta_end` is given, else not at all."""
    if config.eta_end is None:
        eta = config.eta
    elif iterations is None:
        eta = optax.constant_schedule(config.eta)
    else:
        eta = optax.linear_schedule(config.eta, config.eta_end, iterations * page_of(config).messages)
    return getattr(optax, config.optimizer)(eta)


class Parts(NamedTuple):
    """What a configuration names, built.

    Attributes:
        environment: the task.
        policy: the policy that is trained.
        components: the other arguments of the factories in `jaxbyz.algorithms`, by name.
    """

    environment: Environment
    policy: Policy
    components: dict[str, Any]


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
    environment, policy, components = build_parts(config, iterations, optimizer)
    if attack is not None:
        components["attack"] = attack
    entry = algorithms[config.algorithm]
    return entry.factory(environment, policy, **{name: part for name, part in components.items() if entry.takes(name)})


def build_parts(
    config: Config, iterations: int | None = None, optimizer: optax.GradientTransformation | None = None
) -> Parts:
    """Return what `build` composes: the environment, the policy, the rules, the attack and the optimizer.

    Arguments as in `build`.
    """
    K, f = config.agents, config.byzantine
    environment = environment_of(config)
    policy = make_policy(config.policy, environment, {name: getattr(config, name) for name in POLICY_OPTIONS})
    if config.start == "shared":
        policy = policy._replace(init=partial(_init_from_seed, policy.init, config.seed))
    elif config.start.startswith(START_FROM):
        policy = policy._replace(init=partial(_init_from_policy, config.start, policy.size))
    delivery = delivery_of(config)
    voters = delivery.voters(K)
    aggregator, agreement = _checked_rules(config, voters, delivery.present(K), policy.size, Registry.revision)
    components = {
        "agents": K,
        "byzantine": f,
        "aggregator": aggregator,
        "agreement": agreement,
        "optimizer": optimizer or optimizer_of(config, iterations),
        "attack": make_attack(config.attack, K, f),
        "schedule": schedules[config.schedule].build(K, f),
        "page": page_of(config),
        "p": config.p,
        "period": config.period,
        "delivery": delivery,
        "groups": config.groups,
        "batch_spread": config.batch_spread,
        "ratio_window": config.ratio_window,
        "server_samples": config.small_batches != "workers",
        "local_steps": config.local_steps,
        "momentum": config.momentum,
        "unsafe": config.unsafe,
    }
    return Parts(environment, policy, components)


@lru_cache(maxsize=64)
def _checked_rules(
    config: Config, voters: int, present: int, size: int, revision: int
) -> tuple[Rule | str, Agreement | None]:
    """Build and check the rules of a configuration once, because a check traces them.

    Args:
        config: names the rules.
        voters: the number of messages that the aggregator sees.
        present: the number of agents that agree.
        size: the number of parameters D.
        revision: makes the cache notice rules that are registered again.
    """
    aggregator: Any = rule_spec(config)
    if not in_groups(config):  # groups differ in size and have their own rules
        aggregator = make_rule(aggregator, voters, config.defended, unsafe=config.unsafe)
        check_rule(aggregator, voters, size)
    agreement = agreement_of(config)
    if agreement is not None:
        check_rule(agreement.rule, agreement.rule.committee or present, size)
    return aggregator, agreement


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
