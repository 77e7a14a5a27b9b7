"""What is decided before the first iteration of an experiment: the algorithm, the keys and the coins."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz import training
from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.accelerate.stored_programs import stored_jit
from jaxbyz.algorithms import Algorithm
from jaxbyz.configuration.building import cached_algorithm
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.memory import check_memory
from jaxbyz.trained.start_from import start_parameters


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
    so that every seed samples at least `config.trajectories`; only FedPG-BR's may end below it (see
    `training.most_iterations`).
    """
    check_memory(config)
    algorithm, trajectories = cached_algorithm(config, 1, start_parameters), config.trajectories
    most = training.most_iterations(algorithm, trajectories)
    draw = _drawing_program(algorithm, most, config.coin == "shared")
    keys, commons, drawn = draw(np.arange(config.seed, config.seed + config.seeds, dtype=np.uint32))
    coins = np.asarray(drawn)
    T = max(training.iterations_for(algorithm, row, trajectories) for row in coins)
    output_at = np.asarray(_output_program()(commons, np.int32(T)))
    coins = coins[0, :T] if config.coin == "shared" else coins[:, :T]
    return Plan(cached_algorithm(config, T, start_parameters), keys, coins, output_at)


@lru_cache(maxsize=64)
def _drawing_program(algorithm: Algorithm, most: int, shared: bool) -> Callable[[np.ndarray], tuple[Array, ...]]:
    """Return the program from seeds to their keys, their keys for common random numbers, and `most` coins.

    The coins are `[1, most]` if all seeds share those of the first one, otherwise `[seeds, most]`.
    """

    def draw(seeds: Array) -> tuple[Array, ...]:
        keys = jax.vmap(jax.random.key)(seeds)
        commons = jax.vmap(training.common_seed)(keys)
        coins = jax.vmap(lambda key: jnp.asarray(training.algorithm_coins(algorithm, key, most)))
        return keys, commons, coins(commons[:1] if shared else commons)

    description = repr((algorithm.settings.p, algorithm.settings.period, most, shared))
    return stored_jit(lambda: fast_compiling_jit(draw), "coins", description)


@cache
def _output_program() -> Callable[[PRNGKeyArray, np.int32], Array]:
    """Return the program from keys for common random numbers and T to T̂ of every seed."""
    return stored_jit(lambda: fast_compiling_jit(jax.vmap(training.sampled_iteration, (0, None))), "output", "")
