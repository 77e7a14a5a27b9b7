"""How runs of several seeds lie on a mesh of devices, and the compiled programs that advance them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxbyz.accelerate.batching import repeat_last
from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.accelerate.stored_programs import stored_jit
from jaxbyz.algorithms import Algorithm, Metrics, State
from jaxbyz.protocol.placement import Places
from jaxbyz.training.devices import Shape, choose_shape, make_mesh
from jaxbyz.training.run import Outputs, Run, iterate, start

# Numbers of a run, `[]` each by name -> the algorithm with these numbers, all of which compile to the same program.
Vary = Callable[[Mapping[str, Array]], Algorithm]


class Layout(NamedTuple):
    """How the runs of `seeds` seeds lie on a mesh; without a mesh, one device does everything.

    On the mesh, seeds and agents are padded to fill all places. Outside of `segments`, a `Run` always has its own
    shape, `[seeds, K, …]`.

    Attributes:
        algorithm: what to train with; with `vary`, any of the algorithms that it returns.
        seeds: the number of runs.
        mesh: the devices, or None for one.
        vary: returns the algorithm of a run from its numbers, which are then inputs of the programs; None if all runs
            have the same algorithm.
    """

    algorithm: Algorithm
    seeds: int
    mesh: Mesh | None
    vary: Vary | None = None

    def algorithm_of(self, numbers: Mapping[str, Array]) -> Algorithm:
        """Return the algorithm of the run with these numbers."""
        return self.algorithm if self.vary is None else self.vary(numbers)

    @property
    def places(self) -> Places:
        """Where the agents live."""
        return Places(self.algorithm.agents, 1 if self.mesh is None else self.mesh.shape["agents"])

    @property
    def specs(self) -> Run:
        """Which axes of a `Run` are spread over the mesh: seeds always, agents where there is one row per agent."""
        seeds: Any = PartitionSpec("seeds")
        agents: Any = PartitionSpec("seeds", "agents")
        rows = seeds if self.algorithm.central else agents
        state = State(
            step=seeds, key=seeds, parameters=rows, anchor=rows, estimate=rows, optimizer=rows, rules=rows,
            attack_memory=seeds, private=agents, channel=seeds, ended=seeds,
        )  # fmt: skip
        return Run(state, Outputs(sampled=rows, best=rows, best_return=seeds))

    @property
    def seed_at(self) -> np.ndarray:
        """The seed at every place along the mesh; unused places repeat the first seed."""
        pad = 0 if self.mesh is None else -self.seeds % self.mesh.shape["seeds"]
        return np.concatenate([np.arange(self.seeds), np.zeros(pad, int)])

    def map(self, function: Callable[[PartitionSpec, Any], Any], runs: Run) -> Run:
        """Apply `function(spec, leaf)` to every leaf of a `Run`."""
        is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
        each = lambda spec, part: jax.tree.map(lambda leaf: function(spec, leaf), part)  # noqa: E731
        return jax.tree.map(each, self.specs, runs, is_leaf=is_spec)

    @property
    def shapes(self) -> Run:
        """The shapes and shardings of a `Run` of its own shape, `[seeds, K, …]`.

        An axis is spread over the mesh if its length allows it; otherwise every device holds a copy.
        """
        return self.map(self._sharded, _shapes_at_start(self.algorithm, self.seeds))

    def _sharded(self, spec: PartitionSpec, leaf: Any) -> jax.ShapeDtypeStruct:
        if self.mesh is None:
            return leaf
        sizes = zip(spec, leaf.shape, strict=False)
        fits = (name if size % self.mesh.shape[name] == 0 else None for name, size in sizes)
        sharding = NamedSharding(self.mesh, PartitionSpec(*fits))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def trim(self, runs: Run) -> Run:
        """Drop the unused places."""
        K = self.algorithm.agents

        def leaf(spec: PartitionSpec, leaf: Any) -> Any:
            return leaf[: self.seeds, :K] if "agents" in spec else leaf[: self.seeds]

        return self.map(leaf, runs)

    def pad(self, runs: Run) -> Run:
        """Fill the unused places. Inverse of `trim`."""
        K, places = self.algorithm.agents, self.places
        agents = repeat_last(K, places.per_device * places.devices)

        def leaf(spec: PartitionSpec, leaf: Any) -> Any:
            leaf = leaf[self.seed_at]
            return leaf[:, agents] if "agents" in spec else leaf

        return self.map(leaf, runs)


@lru_cache(maxsize=16)
def _shapes_at_start(algorithm: Algorithm, seeds: int) -> Run:
    """Return the shapes of a `Run`, `[seeds, K, …]`."""
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((seeds,), jnp.int32))
    return jax.eval_shape(jax.vmap(partial(start, algorithm)), keys)


def make_layout(algorithm: Algorithm, seeds: int, shape: Shape | None = None, vary: Vary | None = None) -> Layout:
    """Return the layout on a mesh of the given shape, or of one that fits.

    Raises:
        UsageError: if the shape does not fit the devices, the seeds or the agents.
    """
    return Layout(algorithm, seeds, make_mesh(choose_shape(shape, seeds, algorithm.agents)), vary)


class RunPrograms(NamedTuple):
    """The compiled programs of a layout. They serve all seeds and coins.

    Attributes:
        start: `(key data [seeds, …], numbers) -> padded runs`; numbers are `[seeds]` each.
        advance: `(padded runs, coins, T̂, n, numbers) -> (padded runs, metrics)`.
        trim: padded runs -> runs of their own shape.
        pad: runs of their own shape -> padded runs.
    """

    start: Callable[..., Run]
    advance: Callable[..., tuple[Run, Metrics]]
    trim: Callable[[Run], Run]
    pad: Callable[[Run], Run]


@lru_cache(maxsize=16)
def programs(layout: Layout, length: int, own_coins: bool, description: str | None = None) -> RunPrograms:
    """Return the programs of a layout: `vmap` over the seeds of a device, `shard_map` over the mesh.

    They are cached, so that a second run of the same algorithm in this process is not traced again.

    Args:
        layout: where the runs lie.
        length: the largest number of iterations per call of `advance`.
        own_coins: whether every seed has coins of its own.
        description: everything that determines the algorithm, so that another process can use the compiled programs
            (see `stored_jit`); None to compile them in this process.
    """
    mesh = layout.mesh
    seeds, common = PartitionSpec("seeds"), PartitionSpec()

    def start_one(data: Array, numbers: Mapping[str, Array]) -> Run:
        return start(layout.algorithm_of(numbers), jax.random.wrap_key_data(data), layout.places)

    start_seeds = jax.vmap(start_one)
    advance_seeds = partial(_advance, layout, length, own_coins)
    if description is not None:
        description = repr((description, layout.seeds, length, own_coins, None if mesh is None else dict(mesh.shape)))
    keep = partial(stored_jit, description=description)
    if mesh is None:
        # The caller keeps this copy, while `advance` reuses the memory of the original.
        copy = keep(lambda: fast_compiling_jit(lambda runs: jax.tree.map(jnp.copy, runs)), "copy")
        return RunPrograms(
            keep(lambda: fast_compiling_jit(start_seeds), "start"),
            keep(lambda: jax.jit(advance_seeds, donate_argnums=0), "advance"),
            *(copy, copy),
        )
    spread = partial(jax.shard_map, mesh=mesh, check_vma=False)
    coins = seeds if own_coins else common
    starting = spread(start_seeds, in_specs=seeds, out_specs=layout.specs)
    inputs = (layout.specs, coins, seeds, common, seeds)
    advancing = spread(advance_seeds, in_specs=inputs, out_specs=(layout.specs, seeds))

    def trim() -> Callable[[Run], Run]:
        return fast_compiling_jit(
            layout.trim, out_shardings=layout.map(lambda spec, leaf: leaf.sharding, layout.shapes)
        )

    def pad() -> Callable[[Run], Run]:
        return fast_compiling_jit(
            layout.pad, out_shardings=layout.map(lambda spec, leaf: NamedSharding(mesh, spec), layout.shapes)
        )

    return RunPrograms(
        keep(lambda: fast_compiling_jit(starting), "start"),
        keep(lambda: jax.jit(advancing, donate_argnums=0), "advance"),
        keep(trim, "trim"),
        keep(pad, "pad"),
    )


def _advance(
    layout: Layout,
    length: int,
    own_coins: bool,
    runs: Run,
    coins: Array,
    output_at: Array,
    n: Array,
    numbers: Mapping[str, Array],
) -> tuple[Run, Metrics]:
    """Run n ≤ length iterations of all seeds; metrics are written into buffers `[seeds, length, …]`."""

    # The seeds are mapped over inside the loop and the step is jitted by itself, so that it is traced only once. If the
    # loop itself were mapped, JAX would trace its body again and again, until it knows which values are batched.
    def one(run: Run, coin: Array, output_at: Array, numbers: Mapping[str, Array]) -> tuple[Run, Metrics]:
        return iterate(layout.algorithm_of(numbers), run, coin, output_at, layout.places)

    step = jax.jit(jax.vmap(one, in_axes=(0, 0 if own_coins else None, 0, 0)))
    shapes = jax.eval_shape(step, runs, coins[..., 0], output_at, numbers)[1]
    buffers = jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], length, *leaf.shape[1:]), leaf.dtype), shapes)

    def body(i: Array, carry: tuple[Run, Metrics]) -> tuple[Run, Metrics]:
        runs, buffers = carry
        runs, metrics = step(runs, coins[..., i], output_at, numbers)
        return runs, jax.tree.map(lambda buffer, value: buffer.at[:, i].set(value), buffers, metrics)

    return jax.lax.fori_loop(0, n, body, (runs, buffers))
