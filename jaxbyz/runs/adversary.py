"""Train an adversary against a federation: evolution strategies over whole trainings, all in one compiled program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz import training
from jaxbyz.algorithms import Algorithm
from jaxbyz.algorithms.base import starting_with_attack
from jaxbyz.attacks.learned import first_guess, learned_from
from jaxbyz.attacks.one_of import one_of
from jaxbyz.components import make_attack
from jaxbyz.configuration.building import build
from jaxbyz.configuration.config import Config
from jaxbyz.environments import check_episodes
from jaxbyz.errors import UsageError
from jaxbyz.trained.start_from import start_parameters


class Search(NamedTuple):
    """How the adversary is trained.

    Attributes:
        generations: the number of steps of the evolution strategy.
        population: the number of networks that are tried per generation; even, because they come in pairs ±ε.
        seeds: the number of trainings over which the damage of a network is averaged.
        sigma: the standard deviation σ of the perturbations ε.
        step: the step size of Adam on the network's parameters.
        reach: the largest distance of a message along one direction, in honest spreads.
        seed: the seed of the search.
    """

    generations: int = 40
    population: int = 16
    seeds: int = 2
    sigma: float = 0.2
    step: float = 0.1
    reach: float = 3.0
    seed: int = 0

    def check(self) -> None:
        """Raise a `UsageError` if a value is out of range."""
        for name, least in (("generations", 1), ("population", 2), ("seeds", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}={getattr(self, name)}: must be at least {least}")
        if self.population % 2:
            raise UsageError(f"population={self.population}: must be even")
        for name in ("sigma", "step", "reach"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name}={getattr(self, name)}: must be a positive number")


class Generation(NamedTuple):
    """One generation: its number, the mean return of the federation under the tried networks, and the parameters."""

    number: int
    mean_return: float
    parameters: Float[Array, " SIZE"]


def final_returns(
    algorithm: Algorithm, keys: PRNGKeyArray, coins: Bool[Array, " T"], parameters: Float[Array, "R SIZE"] | None = None
) -> Float[Array, " R"]:
    """Train R federations under attack and return their honest returns, averaged over the last quarter of each run.

    Args:
        algorithm: the federation, with its attack.
        keys: `[R]`, one key per training.
        coins: `[T]`, whether each iteration has a large batch.
        parameters: `[R, SIZE]`, the networks of a learned adversary; None for another attack.
    """

    def one_training(key: PRNGKeyArray, network: Array | None) -> Array:
        run = training.start(algorithm, key)
        if network is not None:
            memory = run.state.attack_memory._replace(parameters=network)
            run = run._replace(state=run.state._replace(attack_memory=memory))
        _, metrics = jax.lax.scan(lambda run, coin: training.iterate(algorithm, run, coin, jnp.int32(0)), run, coins)
        return jnp.mean(metrics.returns[-max(1, len(coins) // 4) :])

    return jax.vmap(one_training)(keys, parameters)


def coins_of(algorithm: Algorithm, seed: int, iterations: int) -> Bool[Array, " T"]:
    """Return the coins that all trainings of a search share."""
    return training.algorithm_coins(algorithm, training.common_seed(jax.random.key(seed)), iterations)


def train_adversary(config: Config, search: Search, iterations: int) -> Iterator[Generation]:
    """Minimise the federation's final return over the parameters w of the adversary's network.

    Each generation tries w ± σ·ε_j, ranks the final returns, and takes one step of Adam along the estimate
    −(1/(P·σ)) Σ_j rank_j·ε_j of the gradient, where ranks are centred and scaled to [−1/2, 1/2]. All trainings of a
    generation share their seeds, so that networks differ by their attack only, and run as one batch.

    Args:
        config: the federation, with its rule; its own `attack` is not used.
        search: the settings of the evolution strategy.
        iterations: the length of each training.

    Yields:
        Every generation with the parameters after its step.

    References:
        Salimans et al., Evolution strategies as a scalable alternative to reinforcement learning, 2017.
    """
    search.check()
    if config.byzantine < 1:
        raise UsageError("byzantine=0: an adversary needs at least one Byzantine agent")
    pairs, seeds = search.population // 2, search.seeds
    optimizer = optax.adam(search.step)
    key = jax.random.key(search.seed)
    parameters = first_guess(jax.random.fold_in(key, search.generations))
    algorithm = build(config, iterations, attack=learned_from(parameters, search.reach), read_start=start_parameters)
    coins = coins_of(algorithm, config.seed, iterations)

    @jax.jit
    def generation(parameters: Array, state: optax.OptState, key: PRNGKeyArray) -> tuple[Array, optax.OptState, Array]:
        key_noise, key_runs = jax.random.split(key)
        noise = jax.random.normal(key_noise, (pairs, parameters.shape[0]))
        noise = jnp.concatenate([noise, -noise])
        tried = parameters[None] + search.sigma * noise
        # One batch of population × seeds trainings: nested batches would be compiled less efficiently.
        keys = jnp.tile(jax.random.split(key_runs, seeds), search.population)
        returns = final_returns(algorithm, keys, coins, jnp.repeat(tried, seeds, axis=0))
        returns = returns.reshape(search.population, seeds)
        score = jnp.where(jnp.isfinite(returns), returns, -jnp.inf).mean(axis=1)
        ranks = jnp.argsort(jnp.argsort(score)) / (search.population - 1.0) - 0.5
        slope = ranks @ noise / (search.population * search.sigma)  # of the return; Adam descends
        updates, state = optimizer.update(slope, state, parameters)
        return optax.apply_updates(parameters, updates), state, jnp.mean(returns)

    state = optimizer.init(parameters)
    for number in range(search.generations):
        parameters, state, mean_return = generation(parameters, state, jax.random.fold_in(key, number))
        found = float(mean_return)
        check_episodes(algorithm.environment)
        yield Generation(number, found, parameters)


def compare(
    config: Config, parameters: Float[Array, " SIZE"], search: Search, iterations: int, others: list[str], seeds: int
) -> dict[str, Array]:
    """Return final returns `[seeds]` under the learned adversary and named attacks, on seeds not used in training."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(search.seed), search.generations + 1), seeds)
    attacks = {name: make_attack(name, config.agents, config.byzantine) for name in others}
    attacks["learned"] = learned_from(parameters, search.reach)
    algorithm = build(config, iterations, attack=one_of(list(attacks.values())), read_start=start_parameters)
    coins = coins_of(algorithm, config.seed, iterations)

    def under(index: Array) -> Array:
        return final_returns(starting_with_attack(algorithm, index), keys, coins)

    found = jax.block_until_ready(jax.jit(lambda indices: jax.lax.map(under, indices))(jnp.arange(len(attacks))))
    check_episodes(algorithm.environment)
    return dict(zip(attacks, found, strict=True))
