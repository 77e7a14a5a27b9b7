"""Runs: many iterations of an algorithm, for one seed or many, on one device or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.algorithms import Algorithm, Metrics, State
from jaxbyz.batching import filled
from jaxbyz.meshes import Places, Shape, choose_shape, make_mesh
from jaxbyz.registry import UsageError

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
    if algorithm.p == 1:
        return jnp.ones(iterations, bool)
    return common_coins(key, algorithm.p, iterations)


def most_iterations(algorithm: Algorithm, trajectories: int) -> int:
    """Iterations that surely sample `trajectories` an agent, however the coin falls."""
    N, B = algorithm.page.N, algorithm.page.B
    most = max(1, -(-trajectories // B))
    if algorithm.period is not None:
        cycle = N + (algorithm.period - 1) * B
        return min(most, max(1, -(-trajectories // cycle)) * algorithm.period)
    return max(1, -(-trajectories // N)) if algorithm.p == 1 else most


def coins_for(algorithm: Algorithm, key: PRNGKeyArray, trajectories: int) -> Bool[np.ndarray, " T"]:
    """Coins of as many iterations as it takes to sample `trajectories` an agent (the last may overshoot)."""
    page = algorithm.page
    coins = np.asarray(algorithm_coins(algorithm, key, most_iterations(algorithm, trajectories)))
    spent = np.cumsum(np.where(coins, page.N, page.B))
    return coins[: int(np.searchsorted(spent, trajectories)) + 1]


def sampled_iteration(key: PRNGKeyArray, iterations: int) -> int:
    """T̂ ~ U{0, …, T−1} by Common-Sample."""
    return int(jax.random.randint(jax.random.fold_in(key, 2**31 - 1), (), 0, iterations))


def start(algorithm: Algorithm, key: PRNGKeyArray, places: Places | None = None) -> Run:
    """A run before its first iteration."""
    state = algorithm.init(key, Places(algorithm.agents) if places is None else places)
    return Run(state, Outputs(state.parameters, state.parameters, jnp.float32(-jnp.inf)))


def iterate(
    algorithm: Algorithm, run: Run, coin: Array, output_at: Array, places: Places | None = None
) -> tuple[Run, Metrics]:
    """One iteration; `output_at` is T̂."""
    before = run.state
    state, metrics = algorithm.step(before, coin, Places(algorithm.agents) if places is None else places)
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
    if iterations < 1:
        raise UsageError(f"iterations={iterations}: must be at least 1")
    if coins is not None and jnp.shape(coins) != (iterations,):
        raise UsageError(f"coins have shape {jnp.shape(coins)}: ({iterations},) is due, one an iteration")
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


class Layout(NamedTuple):
    """How `seeds` runs of an algorithm lie on a mesh (None: one device does it all).

    On the devices, seeds and agents are padded to fill their places; outside of `segments` a `Run` always has its
    own shape, [seeds, K, …].
    """

    algorithm: Algorithm
    seeds: int
    mesh: Mesh | None

    @property
    def places(self) -> Places:
        """Where agents live."""
        return Places(self.algorithm.agents, 1 if self.mesh is None else self.mesh.shape["agents"])

    @property
    def specs(self) -> Run:
        """Which axes of a `Run` are spread: seeds always, agents where there is a row an agent."""
        seeds = PartitionSpec("seeds")
        rows = seeds if self.algorithm.central else PartitionSpec("seeds", "agents")
        return Run(State(seeds, seeds, rows, rows, rows, rows, rows, seeds), Outputs(rows, rows, seeds))  # type: ignore[arg-type]

    @property
    def seed_at(self) -> np.ndarray:
        """The seed at every place; idle ones repeat the first."""
        pad = 0 if self.mesh is None else -self.seeds % self.mesh.shape["seeds"]
        return np.concatenate([np.arange(self.seeds), np.zeros(pad, int)])

    def map(self, function: Callable[[PartitionSpec, Any], Any], runs: Run) -> Run:
        """function(spec, leaf) of every leaf of a Run."""
        is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
        each = lambda spec, part: jax.tree.map(lambda leaf: function(spec, leaf), part)  # noqa: E731
        return jax.tree.map(each, self.specs, runs, is_leaf=is_spec)

    @property
    def shapes(self) -> Run:
        """A Run of its own shape, [seeds, K, …], as shapes with their shardings: spread over an axis that the shape
        fits, a copy on every device otherwise."""
        keys = jax.eval_shape(jax.vmap(jax.random.key), jnp.arange(self.seeds))
        return self.map(self._placed, jax.eval_shape(jax.vmap(partial(start, self.algorithm)), keys))

    def _placed(self, spec: PartitionSpec, leaf: Any) -> jax.ShapeDtypeStruct:
        if self.mesh is None:
            return leaf
        sizes = zip(spec, leaf.shape, strict=False)
        fits = (name if size % self.mesh.shape[name] == 0 else None for name, size in sizes)
        sharding = NamedSharding(self.mesh, PartitionSpec(*fits))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def trim(self, runs: Run) -> Run:
        """Drop idle places."""
        K = self.algorithm.agents

        def leaf(spec: PartitionSpec, leaf: Any) -> Any:
            return leaf[: self.seeds, :K] if "agents" in spec else leaf[: self.seeds]

        return self.map(leaf, runs)

    def pad(self, runs: Run) -> Run:
        """The inverse of `trim`: fill idle places."""
        K, places = self.algorithm.agents, self.places
        agents = filled(K, places.here * places.devices)

        def leaf(spec: PartitionSpec, leaf: Any) -> Any:
            leaf = leaf[self.seed_at]
            return leaf[:, agents] if "agents" in spec else leaf

        return self.map(leaf, runs)


def lay_out(algorithm: Algorithm, seeds: int, shape: Shape | None = None) -> Layout:
    """The layout on a mesh of this shape, or of one that fits; an unfit one is refused in one line."""
    return Layout(algorithm, seeds, make_mesh(choose_shape(shape, seeds, algorithm.agents)))


class Programs(NamedTuple):
    """Compiled once for a layout, whatever the seeds, the coins and the Byzantine set.

    start: key data [seeds, …] -> padded runs; advance: (padded runs, coins, T̂, n) -> (padded runs, metrics)
    trim, pad: between padded runs and runs of their own shape
    """

    start: Callable[..., Run]
    advance: Callable[..., tuple[Run, Metrics]]
    trim: Callable[[Run], Run]
    pad: Callable[[Run], Run]


@lru_cache(maxsize=16)
def programs(layout: Layout, length: int, own_coins: bool) -> Programs:
    """The programs of a layout: vmap over the seeds of a device, shard_map over the mesh. The same ones for the same
    algorithm, so that a second run of it in this process is not traced again."""
    algorithm, places, mesh = layout.algorithm, layout.places, layout.mesh
    seeds, common = PartitionSpec("seeds"), PartitionSpec()
    start_one = jax.vmap(lambda data: start(algorithm, jax.random.wrap_key_data(data), places))
    advance_one = partial(_advance, algorithm, length, places, own_coins)
    if mesh is None:
        copy = jax.jit(lambda runs: jax.tree.map(jnp.copy, runs))  # what is handed out outlives the donated original
        return Programs(jax.jit(start_one), jax.jit(advance_one, donate_argnums=0), copy, copy)
    spread = partial(jax.shard_map, mesh=mesh, check_vma=False)
    coins = seeds if own_coins else common
    starting = spread(start_one, in_specs=seeds, out_specs=layout.specs)
    advancing = spread(advance_one, in_specs=(layout.specs, coins, seeds, common), out_specs=(layout.specs, seeds))
    shapes = layout.shapes
    return Programs(
        jax.jit(starting),
        jax.jit(advancing, donate_argnums=0),
        jax.jit(layout.trim, out_shardings=layout.map(lambda spec, leaf: leaf.sharding, shapes)),
        jax.jit(layout.pad, out_shardings=layout.map(lambda spec, leaf: NamedSharding(mesh, spec), shapes)),
    )


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
    shape: Shape | None = None,
) -> Iterator[Segment]:
    """Train seeds side by side, `length` iterations a compiled call, and hand back metrics after each.

    keys [seeds]; coins [T] shared by all seeds, or [seeds, T] one sequence each (then both branches are paid);
    output_at [seeds] T̂. Pass `runs` and `done` to go on from an earlier segment. Segments end at multiples of `length`
    and, if given, of `every`. The same program serves every segment, seed, coin and Byzantine set, so that where a run
    was cut does not show in its numbers; nothing but the metrics leaves the device in between.

    shape spreads seeds and agents over devices, of all processes; by default what `choose_shape` finds.
    """
    seeds, T = len(keys), coins.shape[-1]
    own_coins = coins.ndim == 2
    layout = lay_out(algorithm, seeds, shape)
    compiled = programs(layout, length, own_coins)
    index = layout.seed_at
    padded = compiled.start(np.asarray(jax.random.key_data(keys))[index]) if runs is None else compiled.pad(runs)
    outputs = np.asarray(output_at, np.int32)[index]

    while done < T:
        n = min(length - done % length, T - done, T if every is None else every - done % every)
        part = np.zeros((*coins.shape[:-1], length), bool)
        part[..., :n] = coins[..., done : done + n]
        padded, metrics = compiled.advance(padded, part[index] if own_coins else part, outputs, np.int32(n))
        done += n
        yield Segment(
            done,
            jax.tree.map(lambda leaf, n=n: leaf[:seeds, :n], on_host(metrics)),
            compiled.trim(padded),
        )


def on_host(tree: Any) -> Any:
    """Arrays as numpy arrays, whole, in every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _advance(
    algorithm: Algorithm,
    length: int,
    places: Places,
    own_coins: bool,
    runs: Run,
    coins: Array,
    output_at: Array,
    n: Array,
) -> tuple[Run, Metrics]:
    """n ≤ length iterations of runs side by side, metrics in buffers [seeds, length, …]."""

    # Seeds are mapped over inside the loop, and the step is a jit of its own: so it is traced once. A loop that is
    # mapped over is traced again with a batch, and then until it is clear what is batched.
    def one(run: Run, coin: Array, output_at: Array) -> tuple[Run, Metrics]:
        return iterate(algorithm, run, coin, output_at, places)

    step = jax.jit(jax.vmap(one, in_axes=(0, 0 if own_coins else None, 0)))
    shapes = jax.eval_shape(step, runs, coins[..., 0], output_at)[1]
    buffers = jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], length, *leaf.shape[1:]), leaf.dtype), shapes)

    def body(i: Array, carry: tuple[Run, Metrics]) -> tuple[Run, Metrics]:
        runs, buffers = carry
        runs, metrics = step(runs, coins[..., i], output_at)
        return runs, jax.tree.map(lambda buffer, value: buffer.at[:, i].set(value), buffers, metrics)

    return jax.lax.fori_loop(0, n, body, (runs, buffers))
