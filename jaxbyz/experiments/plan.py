"""What is decided before the first iteration of an experiment: the algorithm, the keys and the coins."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxbyz import training
from jaxbyz.algorithms import Algorithm
from jaxbyz.experiments.building import build
from jaxbyz.experiments.config import Config
from jaxbyz.experiments.memory import check_memory
from jaxbyz.registry import Registry


class Plan(NamedTuple):
    """The inputs of `training.segments`.

    Attributes:
        algorithm: what to train with.
        keys: `[seeds]`, the random key of every seed.
        coins: `[T]` if shared, otherwise `[seeds, T]`.
        output_at: `[seeds]`, T̂ of every seed.
    """

    algorithm: Algorithm
    keys: PRNGKeyArray
    coins: np.ndarray
    output_at: np.ndarray

    @property
    def iterations(self) -> int:
        """The number of iterations T."""
        return int(self.coins.shape[-1])


def make_plan(config: Config) -> Plan:
    """Return the plan of an experiment.

    Shared coins come from the first seed. If every seed has its own coins, all sequences are as long as the longest,
    so that every seed samples at least `config.trajectories`.
    """
    check_memory(config)
    keys = jax.vmap(jax.random.key)(np.arange(config.seed, config.seed + config.seeds, dtype=np.uint32))
    algorithm = cached_algorithm(config)
    commons = jax.vmap(training.common_seed)(keys)
    if config.coin == "shared":
        coins = training.coins_for(algorithm, commons[0], config.trajectories)
    else:
        T = max(len(training.coins_for(algorithm, seed, config.trajectories)) for seed in commons)
        coins = np.stack([np.asarray(training.algorithm_coins(algorithm, seed, T)) for seed in commons])
    T = coins.shape[-1]
    output_at = np.array([training.sampled_iteration(seed, T) for seed in commons])
    return Plan(cached_algorithm(config, T), keys, coins, output_at)


def cached_algorithm(config: Config, iterations: int = 1) -> Algorithm:
    """Return the algorithm of a configuration, the same object for configurations that compile to the same program."""
    seed = config.seed if config.start == "shared" else 0
    essential = replace(config, seed=seed, seeds=1, trajectories=1, coin="shared", output="last")
    return _build_once(essential, 1 if config.eta_end is None else iterations, Registry.revision)


@lru_cache(maxsize=16)
def _build_once(config: Config, iterations: int, revision: int) -> Algorithm:
    """Build an algorithm; `revision` makes the cache notice components that are registered again."""
    check_memory(config)
    return build(config, iterations)
