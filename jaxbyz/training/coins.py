"""Common-Sample: random numbers that all agents know, derived from the seed that they share (section 5.1)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.algorithms import Algorithm
from jaxbyz.algorithms.settings import Settings

COIN_STREAM = 7  # separates Common-Sample's key from every other use of the run's key
OUTPUT_STREAM = 2**31 - 1  # larger than any iteration, so that T̂ and the coins do not share a key


def common_seed(key: PRNGKeyArray) -> PRNGKeyArray:
    """Return Common-Sample's key, derived from the key of the run.

    The paper derives it from θ_0. The key that θ_0 is drawn from serves as well and is the same on every device,
    which the last bits of θ_0 are not.
    """
    return jax.random.fold_in(key, COIN_STREAM)


def common_coins(key: PRNGKeyArray, p: float, iterations: int) -> Bool[Array, " T"]:
    """Draw c_0, …, c_{T−1} ~ Be(p) with c_0 = True, as Algorithms 1 and 2 require. Coin t does not depend on T."""
    draw = jax.vmap(lambda t: jax.random.bernoulli(jax.random.fold_in(key, t), p))
    return draw(jnp.arange(iterations)).at[0].set(True)


def algorithm_coins(algorithm: Algorithm, key: PRNGKeyArray, iterations: int) -> Bool[Array, " T"]:
    """Return the coins of an algorithm: random ones, or a large batch every `period` iterations."""
    if algorithm.settings.period is not None:
        return jnp.arange(iterations) % algorithm.settings.period == 0
    if algorithm.settings.p == 1:
        return jnp.ones(iterations, bool)
    return common_coins(key, algorithm.settings.p, iterations)


def most_iterations(algorithm: Algorithm, trajectories: int) -> int:
    """Return a number of iterations that samples `trajectories` per agent however the coins fall.

    FedPG-BR may sample fewer: its large batches count as N here, although their sizes vary (`batch_spread`), and its
    small ones as B, although those after an early end of its inner loop (`ratio_window`) sample nothing.
    """
    N, B = algorithm.settings.N, algorithm.settings.B
    most = max(1, -(-trajectories // B))
    if algorithm.settings.period is not None:
        per_period = N + (algorithm.settings.period - 1) * B
        return min(most, max(1, -(-trajectories // per_period)) * algorithm.settings.period)
    return max(1, -(-trajectories // N)) if algorithm.settings.p == 1 else most


def coins_for(algorithm: Algorithm, key: PRNGKeyArray, trajectories: int) -> Bool[np.ndarray, " T"]:
    """Return the coins of the iterations that sample `trajectories` per agent; the last iteration may exceed it."""
    coins = np.asarray(algorithm_coins(algorithm, key, most_iterations(algorithm, trajectories)))
    return coins[: iterations_for(algorithm, coins, trajectories)]


def iterations_for(algorithm: Algorithm, coins: Bool[np.ndarray, " T"], trajectories: int) -> int:
    """Return the number of iterations that sample `trajectories` per agent; see `most_iterations` for FedPG-BR."""
    return int(np.searchsorted(trajectories_spent(algorithm.settings, coins), trajectories)) + 1


def trajectories_spent(settings: Settings, coins: Bool[np.ndarray, "*any T"]) -> np.ndarray:
    """Return the trajectories per agent after every iteration; those of audits are counted on average."""
    return np.cumsum(np.where(coins, settings.N, settings.B), axis=-1) * (1 + settings.audit)


def sampled_iteration(key: PRNGKeyArray, iterations: int | Array) -> Int[Array, ""]:
    """Draw T̂ ~ U{0, …, T−1} with Common-Sample's key.

    T̂ is the last t with u_t < 1/(t + 1), for u_t ~ U[0, 1). A longer run then keeps the T̂ of a shorter one or has a
    later one, so that a finished run can be extended: P(T̂ = t) = 1/(t + 1) · ∏_{s=t+1}^{T−1} s/(s + 1) = 1/T.
    """
    key = jax.random.fold_in(key, OUTPUT_STREAM)

    def rejected(t: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, t)) * (t + 1) >= 1

    return jax.lax.while_loop(rejected, lambda t: t - 1, jnp.int32(iterations) - 1)  # t = 0 is never rejected
