"""Evaluate trained policies on fresh episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxbyz.algorithms import Algorithm
from jaxbyz.algorithms.agents import run_key
from jaxbyz.configuration.building import cached_algorithm
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.memory import check_evaluation_memory
from jaxbyz.environments import OwnParams, agent_params, check_episodes
from jaxbyz.errors import UsageError
from jaxbyz.policies import most_likely
from jaxbyz.sampling.rollout import collect

EVALUATION_STREAM = 2**32 - 1  # larger than any index that training folds into the same key


def evaluate(
    config: Config, parameters: np.ndarray, episodes: int, seed: int = 0, greedy: bool = False
) -> dict[str, np.ndarray]:
    """Run fresh episodes with trained parameters in the nominal environment.

    Args:
        config: the configuration of the run.
        parameters: `[seeds, D]`, one policy per seed.
        episodes: the number of episodes per seed.
        seed: the seed of the episodes.
        greedy: take the most likely action instead of drawing one.

    Returns:
        `returns` and `length`, `[seeds, episodes]` each.
    """
    return _play(config, parameters, {}, episodes, seed, greedy)


def evaluate_agents(
    config: Config, parameters: np.ndarray, episodes: int, seed: int = 0, greedy: bool = False
) -> dict[str, np.ndarray]:
    """Run fresh episodes of every agent in its own environment, as `env_spread` and `env_agents` make it.

    Args:
        config: the configuration of the run.
        parameters: `[seeds, K, D]`, or `[seeds, 1, D]` of a server, whose policy all agents use.
        episodes: the number of episodes per agent.
        seed: the seed of the episodes.
        greedy: take the most likely action instead of drawing one.

    Returns:
        `returns` and `length`, `[seeds, K, episodes]` each.
    """
    environment = cached_algorithm(config).environment
    seeds, K = len(parameters), config.agents
    keys = jax.vmap(jax.random.key)(np.arange(config.seed, config.seed + seeds, dtype=np.uint32))
    own = jax.vmap(lambda key: agent_params(environment, run_key(key), K))(keys)
    rows = np.broadcast_to(parameters, (seeds, K, parameters.shape[-1])).reshape(seeds * K, -1)
    own = jax.tree.map(lambda leaf: leaf.reshape(seeds * K, *leaf.shape[2:]), own)
    played = _play(config, rows, own, episodes, seed, greedy)
    return {name: values.reshape(seeds, K, episodes) for name, values in played.items()}


def _play(
    config: Config, parameters: np.ndarray, own: OwnParams, episodes: int, seed: int, greedy: bool
) -> dict[str, np.ndarray]:
    """Run the episodes of the policies `[A, D]` in the environments that `own`, `{name: [A, …]}`, describes."""
    check_evaluation_memory(len(parameters), episodes)
    algorithm = cached_algorithm(config)
    check_parameters(algorithm, parameters)
    play = _player(algorithm, episodes, config.horizon, greedy)
    played = play(parameters, evaluation_keys(seed, len(parameters)), own)
    results = {name: np.asarray(x) for name, x in played.items()}
    check_episodes(algorithm.environment)
    return results


def check_parameters(algorithm: Algorithm, parameters: np.ndarray) -> None:
    """Refuse parameters `[…, D]` that do not fit the policy or are not finite.

    Raises:
        UsageError: with the sizes, or how many policies are not finite.
    """
    if parameters.shape[-1] != algorithm.policy.size:
        raise UsageError(
            f"parameters of size {parameters.shape[-1]} do not fit a policy of size {algorithm.policy.size}"
        )
    bad = ~np.isfinite(parameters).all(axis=-1)
    if bad.any():
        raise UsageError(f"the parameters of {bad.sum()} of {bad.size} policies are not finite: the training diverged")


@lru_cache(maxsize=16)
def _player(algorithm: Algorithm, episodes: int, horizon: int, greedy: bool) -> Callable[..., dict[str, Any]]:
    """Return the compiled function `(parameters [A, D], keys [A], own [A, …]) -> returns and lengths`."""
    policy, environment = algorithm.policy, algorithm.environment
    if greedy:
        most_likely_of = partial(most_likely, policy, actions=environment.actions)
        policy = policy._replace(sample=lambda distribution, noise: most_likely_of(distribution))

    def play(parameters: Any, keys: Any, own: OwnParams) -> dict[str, Any]:
        played = collect(environment, policy, parameters, keys, episodes, horizon, own=own)
        return {"returns": played.returns, "length": played.lengths}

    return jax.jit(play)


def evaluation_keys(seed: int, runs: int) -> PRNGKeyArray:
    """Return keys `[runs]` for fresh episodes; training with the same seed uses none of them."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), EVALUATION_STREAM), runs)
