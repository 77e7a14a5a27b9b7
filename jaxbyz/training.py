"""Runs: many iterations of an algorithm, for one seed or many, on one device or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.algorithms import Algorithm, Metrics, State

COIN_STREAM = 7  # keeps the coin's generator apart from every other use of the same numbers


class Outputs(NamedTuple):
    """Parameters a run offers, [K, D] each ([1, D] with a server).

    sampled: θ_T̂ with T̂ ~ Common-Sample(U{0, …, T−1}), the paper's output
    best:    θ_t of the iteration with the highest honest return so far; best_return [] says how high
    """

    sampled: Float[Array, "K D"]
    best: Float[Array, "K D"]
    best_return: Float[Array, ""]


class Run(NamedTuple):
    """A run in progress: the algorithm's state (its parameters are the last output) and the other outputs."""

    state: State
    outputs: Outputs


class Result(NamedTuple):
    """metrics with leading axis [iterations]; the final run."""

    metrics: Metrics
    run: Run


def common_seed(key: PRNGKeyArray) -> PRNGKeyArray:
    """Common-Sample's key, from the run's key: the common initialisation that every agent knows (section 5.1).

    The paper derives it from θ_0; the key that θ_0 is drawn from serves as well and is the same on every device, while
    the last bits of θ_0 are not.
    """
    return jax.random.fold_in(key, COIN_STREAM)


def common_coins(key: PRNGKeyArray, p: float, iterations: int) -> Bool[Array, " T"]:
    """c_0, …, c_{T−1} ~ Be(p), the first one True as Algorithms 1 and 2 want it; coin t does not depend on T."""
    draw = jax.vmap(lambda t: jax.random.bernoulli(jax.random.fold_in(key, t), p))
    return draw(jnp.arange(iterations)).at[0].set(True)


def algorithm_coins(algorithm: Algorithm, key: PRNGKeyArray, iterations: int) -> Bool[Array, " T"]:
    """The algorithm's switch: its common coins, or a large batch every `period` iterations."""
    if algorithm.period is not None:
        return jnp.arange(iterations) % algorithm.period == 0
    return common_coins(key, algorithm.p, iterations)


def coins_for(algorithm: Algorithm, key: PRNGKeyArray, trajectories: int) -> Bool[np.ndarray, " T"]:
    """Coins of as many iterations as it takes to sample `trajectories` an agent (the last may overshoot)."""
    page = algorithm.page
    T = -(-trajectories // page.B)
    coins = np.asarray(algorithm_coins(algorithm, key, max(1, T)))
    spent = np.cumsum(np.where(coins, page.N, page.B))
    return coins[: int(np.searchsorted(spent, trajectories)) + 1]


def sampled_iteration(key: PRNGKeyArray, iterations: int) -> int:
    """T̂ ~ U{0, …, T−1} by Common-Sample."""
    return int(jax.random.randint(jax.random.fold_in(key, 2**31 - 1), (), 0, iterations))


def start(algorithm: Algorithm, key: PRNGKeyArray) -> Run:
    """A run before its first iteration."""
    state = algorithm.init(key)
    return Run(state, Outputs(state.parameters, state.parameters, jnp.float32(-jnp.inf)))


def iterate(algorithm: Algorithm, run: Run, coin: Array, output_at: Array) -> tuple[Run, Metrics]:
    """One iteration; `output_at` is T̂."""
    before = run.state
    state, metrics = algorithm.step(before, coin)
    outputs = run.outputs
    better = metrics.returns > outputs.best_return
    outputs = Outputs(
        jnp.where(before.step == output_at, before.parameters, outputs.sampled),
        jnp.where(better, before.parameters, outputs.best),
        jnp.maximum(metrics.returns, outputs.best_return),
    )
    return Run(state, outputs), metrics


def train(algorithm: Algorithm, key: PRNGKeyArray, iterations: int, coins: Bool[Array, " T"] | None = None) -> Result:
    """A whole run as one pure function: jit it, vmap it over keys.

    Without `coins`, every run draws its own from its key, as the paper says; under vmap both branches of the switch are
    then paid. Pass `coins=common_coins(key, p, iterations)` (not batched) to let all runs share them and pay for one.
    """
    run = start(algorithm, key)
    seed = common_seed(key)
    coins = algorithm_coins(algorithm, seed, iterations) if coins is None else coins
    output_at = jax.random.randint(jax.random.fold_in(seed, 2**31 - 1), (), 0, iterations)
    run, metrics = jax.lax.scan(lambda run, coin: iterate(algorithm, run, coin, output_at), run, coins)
    return Result(metrics, run)


class Segment(NamedTuple):
    """What `segments` yields: iterations done so far, metrics [seeds, n] of this segment, the runs [seeds, …]."""

    done: int
    metrics: Metrics
    runs: Run


def seed_mesh(seeds: int) -> Mesh | None:
    """All local devices in a row, or as many as there are seeds; None when one is enough."""
    devices = jax.local_devices()[:seeds]
    return Mesh(np.array(devices), ("seeds",)) if len(devices) > 1 else None


def over_seeds(function: Callable[..., tuple], mesh: Mesh | None, batched: tuple[bool, ...]) -> Callable[..., tuple]:
    """vmap over a leading seeds axis, split over the mesh: each device works on its own seeds and waits for nobody."""
    mapped = jax.vmap(function, in_axes=tuple(0 if b else None for b in batched))
    if mesh is None:
        return mapped
    specs = tuple(PartitionSpec("seeds") if b else PartitionSpec() for b in batched)
    return jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("seeds"), check_vma=False)


def segments(
    algorithm: Algorithm,
    keys: PRNGKeyArray,
    coins: Bool[np.ndarray, " T"] | Bool[np.ndarray, "seeds T"],
    output_at: np.ndarray,
    *,
    length: int = 20,
    every: int | None = None,
    runs: Run | None = None,
    done: int = 0,
) -> Iterator[Segment]:
    """Train seeds side by side, `length` iterations a compiled call, and hand back metrics after each.

    keys [seeds]; coins [T] shared by all seeds, or [seeds, T] one sequence each (then both branches are paid);
    output_at [seeds] T̂. Pass `runs` and `done` to go on from an earlier segment. Segments end at multiples of `length`
    and, if given, of `every`. The same program serves every segment, seed, coin and Byzantine set, so that where a run
    was cut does not show in its numbers; nothing but the metrics leaves the device in between.
    """
    seeds, T = len(keys), coins.shape[-1]
    own_coins = coins.ndim == 2
    mesh = seed_mesh(seeds)
    pad = 0 if mesh is None else -seeds % mesh.devices.size
    index = np.concatenate([np.arange(seeds), np.zeros(pad, int)])  # idle places repeat the first seed

    advance = jax.jit(
        over_seeds(partial(_advance, algorithm, length), mesh, (True, own_coins, True, False)), donate_argnums=0
    )
    if runs is None:
        runs = jax.jit(over_seeds(partial(_start_tuple, algorithm), mesh, (True,)))(keys[index])
    else:
        runs = jax.tree.map(lambda leaf: leaf[index], runs)
        if mesh is not None:
            runs = jax.device_put(runs, NamedSharding(mesh, PartitionSpec("seeds")))
    outputs = jnp.asarray(output_at, jnp.int32)[index]

    while done < T:
        n = min(length - done % length, T - done, T if every is None else every - done % every)
        part = np.zeros((*coins.shape[:-1], length), bool)
        part[..., :n] = coins[..., done : done + n]
        runs, metrics = advance(runs, part[index] if own_coins else part, outputs, jnp.int32(n))
        done += n
        yield Segment(
            done,
            jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:seeds, :n], metrics),
            jax.tree.map(lambda leaf: leaf[:seeds], runs),
        )


def _start_tuple(algorithm: Algorithm, key: PRNGKeyArray) -> Run:
    return start(algorithm, key)


def _advance(
    algorithm: Algorithm, length: int, run: Run, coins: Array, output_at: Array, n: Array
) -> tuple[Run, Metrics]:
    """n ≤ length iterations, metrics in buffers of that length."""
    shapes = jax.eval_shape(lambda run: iterate(algorithm, run, jnp.bool_(True), output_at)[1], run)
    buffers = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)

    def body(i: Array, carry: tuple[Run, Metrics]) -> tuple[Run, Metrics]:
        run, buffers = carry
        run, metrics = iterate(algorithm, run, coins[i], output_at)
        return run, jax.tree.map(lambda buffer, value: buffer.at[i].set(value), buffers, metrics)

    return jax.lax.fori_loop(0, n, body, (run, buffers))
