"""What is decided before the first iteration of an experiment: the algorithm, the keys and the coins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from jaxbyz.configuration.building import DECAY, Family, cached_algorithm, coins_are_data, family_of, numbers_of
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.memory import check_memory
from jaxbyz.trained.start_from import start_parameters
from jaxbyz.training.coins import trajectories_spent


class Plan(NamedTuple):
    """The inputs of `training.segments`.

    Attributes:
        config: the configuration.
        family: the algorithms that share programs with that of the configuration.
        keys: `[seeds]`, the random key of every seed.
        coins: `[T]` if shared, otherwise `[seeds, T]`.
        output_at: the number of iterations of a run -> `[seeds]`, T̂ of every seed.
        decay: the number of iterations over which the step size decays; None if it is constant.
    """

    config: Config
    family: Family
    keys: PRNGKeyArray
    coins: np.ndarray
    output_at: Callable[[int], np.ndarray]
    decay: int | None

    @property
    def iterations(self) -> int:
        """The number of iterations T."""
        return int(self.coins.shape[-1])

    def trajectories_after(self, iterations: int) -> int:
        """Return the trajectories per agent that a run must be asked for to end after this many iterations."""
        spent = trajectories_spent(self.family.template.settings, self.coins)
        return int(spent[..., iterations - 1].min())

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the configuration."""
        return cached_algorithm(self.config, self.decay or 1, start_parameters)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the configuration in its family."""
        return numbers_of(self.config) | ({} if self.decay is None else {DECAY: float(self.decay)})


def make_plan(config: Config, attacks: Sequence[str] = ()) -> Plan:
    """Return the plan of an experiment, in the family with these attacks.

    Shared coins come from the first seed. If every seed has its own coins, all sequences are as long as the longest,
    so that every seed samples at least `config.trajectories`; only FedPG-BR's may end below it (see
    `training.most_iterations`).
    """
    check_memory(config)
    family = family_of(config, attacks, start_parameters)
    p = config.p if coins_are_data(config) else family.template.settings.p
    algorithm = family.template._replace(settings=replace(family.template.settings, p=p))
    most = training.most_iterations(algorithm, max(config.trajectories, config.decays_over or 0))
    draw = _drawing_program(algorithm, p, most, config.coin == "shared")
    keys, commons, drawn = draw(np.arange(config.seed, config.seed + config.seeds, dtype=np.uint32))
    coins = np.asarray(drawn)

    def iterations_for(trajectories: int) -> int:
        return max(training.iterations_for(algorithm, row, trajectories) for row in coins)

    T = iterations_for(config.trajectories)
    coins_of_run = coins[0, :T] if config.coin == "shared" else coins[:, :T]
    decay = None if config.decays_over is None else iterations_for(config.decays_over)

    def output_at(iterations: int) -> np.ndarray:
        return np.asarray(_output_program()(commons, np.int32(iterations)))

    return Plan(config, family, keys, coins_of_run, output_at, decay)


@lru_cache(maxsize=64)
def _drawing_program(
    algorithm: Algorithm, p: float, most: int, shared: bool
) -> Callable[[np.ndarray], tuple[Array, ...]]:
    """Return the program from seeds to their keys, their keys for common random numbers, and `most` coins.

    The coins are `[1, most]` if all seeds share those of the first one, otherwise `[seeds, most]`. `p` is that of the
    algorithm, and there for the cache, because algorithms of a family are equal.
    """

    def draw(seeds: Array) -> tuple[Array, ...]:
        keys = jax.vmap(jax.random.key)(seeds)
        commons = jax.vmap(training.common_seed)(keys)
        coins = jax.vmap(lambda key: jnp.asarray(training.algorithm_coins(algorithm, key, most)))
        return keys, commons, coins(commons[:1] if shared else commons)

    description = repr((p, algorithm.settings.period, most, shared))
    return stored_jit(lambda: fast_compiling_jit(draw), "coins", description)


@cache
def _output_program() -> Callable[[PRNGKeyArray, np.int32], Array]:
    """Return the program from keys for common random numbers and T to T̂ of every seed."""
    return stored_jit(lambda: fast_compiling_jit(jax.vmap(training.sampled_iteration, (0, None))), "output", "")
