"""One run as pure functions: start it, iterate it, or train it as a whole."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.algorithms import Algorithm, Metrics, State
from jaxbyz.errors import UsageError
from jaxbyz.protocol.placement import Places
from jaxbyz.training.coins import algorithm_coins, common_seed, sampled_iteration


class Outputs(NamedTuple):
    """Parameters that a run offers besides the last ones, `[K, D]` each (`[1, D]` with a server).

    Attributes:
        sampled: θ_T̂ with T̂ ~ Common-Sample(U{0, …, T−1}), the output of the paper's algorithms.
        best: θ_t of the iteration with the highest honest return so far.
        best_return: `[]`, that return.
    """

    sampled: Float[Array, "K D"]
    best: Float[Array, "K D"]
    best_return: Float[Array, ""]


class Run(NamedTuple):
    """A run in progress: the algorithm's state, whose parameters are the last output, and the other outputs."""

    state: State
    outputs: Outputs


class Result(NamedTuple):
    """A finished run: metrics with the leading axis `[iterations]`, and the final `Run`."""

    metrics: Metrics
    run: Run


def start(algorithm: Algorithm, key: PRNGKeyArray, places: Places | None = None) -> Run:
    """Return a run before its first iteration."""
    state = algorithm.init(key, Places(algorithm.agents) if places is None else places)
    return Run(state, Outputs(state.parameters, state.parameters, jnp.float32(-jnp.inf)))


def iterate(
    algorithm: Algorithm, run: Run, coin: Array, output_at: Array, places: Places | None = None
) -> tuple[Run, Metrics]:
    """Run one iteration and update the outputs; `output_at` is T̂."""
    before = run.state
    state, metrics = algorithm.step(before, coin, Places(algorithm.agents) if places is None else places)
    outputs = run.outputs
    better = metrics.returns > outputs.best_return
    outputs = Outputs(
        jnp.where(before.step == output_at, before.parameters, outputs.sampled),
        jnp.where(better, before.parameters, outputs.best),
        jnp.where(better, metrics.returns, outputs.best_return),  # a NaN is not better and is not kept
    )
    return Run(state, outputs), metrics


def train(algorithm: Algorithm, key: PRNGKeyArray, iterations: int, coins: Bool[Array, " T"] | None = None) -> Result:
    """Train for a number of iterations, as one pure function that can be jitted and mapped over keys.

    Args:
        algorithm: what to train with.
        key: the random key of the run.
        iterations: the number of iterations T.
        coins: `[T]`, c_0 to c_{T−1}. By default every run draws its own from its key, as in the paper; under `vmap`
            both branches of the switch are then computed. Pass `common_coins(key, p, T)` without mapping over it to let
            all runs share the coins and compute one branch.
    """
    if iterations < 1:
        raise UsageError(f"iterations={iterations}: must be at least 1")
    if coins is not None and jnp.shape(coins) != (iterations,):
        raise UsageError(f"coins: shape {jnp.shape(coins)} must be ({iterations},), one coin per iteration")
    run = start(algorithm, key)
    seed = common_seed(key)
    coins = algorithm_coins(algorithm, seed, iterations) if coins is None else coins
    output_at = sampled_iteration(seed, iterations)
    run, metrics = jax.lax.scan(lambda run, coin: iterate(algorithm, run, coin, output_at), run, coins)
    return Result(metrics, run)
