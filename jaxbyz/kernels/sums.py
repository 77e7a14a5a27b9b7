"""Functions whose results are sums over lanes, such as gradients, as one GPU kernel.

As XLA runs it, the gradient of a small network moves every layer's numbers through memory some twenty times. Here a
block of lanes stays in registers, forward and back, through all chunks of time; only sums leave the kernel.

The function is traced and cut where it sums: by `reduce_sum` over lanes, or by a product of matrices along them. What
comes before is replayed on rows (`jaxbyz.kernels.replay`), the sums are kept in the kernel, and what comes after them
is computed once, outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jaxbyz.kernels.launching import launch, numbers_of, power_of_two, read_numbers, rows_of, stacked, tile_of
from jaxbyz.kernels.replay import (
    BLOCK,
    LANES,
    Replay,
    Table,
    entry_count,
    equation_replayable,
    known_at_start,
    live,
    reduced,
    table_at,
    table_of,
    written_out,
)

LEAST_SIDE = 16  # of a product of tiles in Triton


class Sums(NamedTuple):
    """A function traced for `sum_kernel`: its equations before the sums over lanes, the sums, and those after.

    Shapes are those of one agent, lanes last.
    """

    traced: core.ClosedJaxpr
    before: list[Any]
    sums: list[Any]
    after: list[Any]
    shared: list[jax.ShapeDtypeStruct]
    inputs: list[jax.ShapeDtypeStruct]
    structure: Any  # of the results


def traced_sums(function: Callable, shared: Any, inputs: Any) -> Sums | None:
    """Trace function(shared, inputs) of one agent; arguments as `sum_kernel`'s. None where a kernel cannot run it."""
    if not all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shared)):
        return None
    if not all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(inputs)):
        return None
    ours = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), shared)
    given = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*a.shape[2:-1], LANES), a.dtype), inputs)
    with jax.disable_jit():  # so that no sum hides in a call
        traced, results = jax.make_jaxpr(function, return_shape=True)(ours, given)
    parts = _cut(traced.jaxpr) if written_out(traced) else None
    if parts is None:
        return None
    return Sums(traced, *parts, jax.tree.leaves(ours), jax.tree.leaves(given), jax.tree.structure(results))


def _cut(jaxpr: core.Jaxpr) -> tuple[list[Any], list[Any], list[Any]] | None:
    """The equations before the sums over lanes, the sums, and those after; None where they are not so ordered."""
    before, sums, after = [], [], []
    summed: set[Any] = set()  # what depends on a sum

    def laned(atoms: Any) -> bool:
        return any(LANES in atom.aval.shape for atom in atoms)

    for equation in live(jaxpr):
        if summed.intersection(atom for atom in equation.invars if not isinstance(atom, core.Literal)):
            if laned(equation.invars) or laned(equation.outvars):
                return None
            after.append(equation)
            summed.update(equation.outvars)
        elif laned(equation.invars) and not laned(equation.outvars):
            if not _is_sum(equation):
                return None
            sums.append(equation)
            summed.update(equation.outvars)
        elif not equation_replayable(equation):
            return None
        else:
            before.append(equation)
            if not laned(equation.outvars):  # of the shared numbers alone: cheap enough to have twice
                after.append(equation)
    return None if laned(jaxpr.outvars) else (before, sums, after)


def _is_sum(equation: Any) -> bool:
    if any(atom.aval.dtype != jnp.float32 for atom in equation.invars):
        return False
    if equation.primitive.name == "reduce_sum":
        return True
    if equation.primitive.name != "dot_general":
        return False
    along, batch = equation.params["dimension_numbers"]
    lengths = [[atom.aval.shape[axis] for axis in axes] for atom, axes in zip(equation.invars, along, strict=True)]
    return not any(batch) and lengths == [[LANES], [LANES]]


def sum_kernel(sums: Sums, shared: Any, inputs: Any, chunks: jax.Array, interpret: bool = False) -> Any:
    """The function's results for each of A agents, summed over the lanes of the first `chunks` chunks.

    shared: leaves [A, …], numbers of an agent; inputs: [n, A, …, L]; results: [A, …].
    """
    from jax.experimental import pallas as pl

    given = [a.reshape(*a.shape[:2], -1, a.shape[-1]) for a in jax.tree.leaves(inputs)]
    n, agents, _, lanes = given[0].shape
    blocks = -(-lanes // BLOCK)
    spare = blocks * BLOCK - lanes
    given = [jnp.pad(a, [(0, 0)] * 2 + [(0, power_of_two(a.shape[2]) - a.shape[2]), (0, spare)]) for a in given]
    numbers = numbers_of(shared)
    products = [equation for equation in sums.sums if equation.primitive.name == "dot_general"]
    totals = [equation for equation in sums.sums if equation.primitive.name == "reduce_sum"]
    total_count = sum(entry_count([equation.outvars[0].aval]) for equation in totals)
    side = max(LEAST_SIDE, *(power_of_two(max(_sides(equation))) for equation in products)) if products else LEAST_SIDE
    height, depth = power_of_two(max(1, total_count)), power_of_two(max(1, len(products)))

    def kernel(limits: Any, numbers: Any, *references: Any) -> None:
        *sources, row_target, tile_target = references
        lane = pl.program_id(1) * BLOCK + lax.iota(jnp.int32, BLOCK)

        def valid(row: jax.Array) -> jax.Array:
            return row if lanes % BLOCK == 0 else jnp.where(lane < lanes, row, 0.0)

        def one(c: jax.Array, kept: tuple[list[jax.Array], list[jax.Array]]) -> tuple[list[jax.Array], list[jax.Array]]:
            replay = Replay(BLOCK)
            # Numbers are read from row 0, which the compiler takes for another row in every equation of every chunk:
            # else it would read all of them once, and keep them in slow memory.
            row = [jnp.int32(0)]
            mine = read_numbers(numbers, sums.shared, lambda: row[0])
            # From lane 0 on, likewise: where it is sure of the place, Triton gives four lanes to one thread in four.
            here = [
                table_of(shape.shape, rows_of(source[c, 0, :, pl.ds(limits[1], BLOCK)], entry_count([shape])))
                for shape, source in zip(sums.inputs, sources, strict=True)
            ]
            known = known_at_start(sums.traced, [*mine, *here])
            for i, equation in enumerate(sums.before):
                row[0] = limits[1] * (c * len(sums.before) + i)
                replay.follow([equation], known)

            def rows(atom: Any) -> list[jax.Array]:
                return [valid(row) for row in replay.laned(table_at(known, atom), atom.aval.shape).ravel()]

            terms = [row for equation in totals for row in _terms(equation, replay, known)]
            row_sums = [a + valid(b) for a, b in zip(kept[0], terms, strict=True)]
            tile_sums = [
                tile + _product(*(tile_of(rows(atom), side) for atom in equation.invars))
                for tile, equation in zip(kept[1], products, strict=True)
            ]
            return row_sums, tile_sums

        start = [jnp.zeros(BLOCK) for _ in range(total_count)], [jnp.zeros((side, side)) for _ in products]
        row_sums, tile_sums = lax.fori_loop(0, limits[0], one, start)
        row_target[0, 0, :] = jnp.sum(tile_of(row_sums, height), axis=1)
        tile_target[0, 0, :, :, :] = stacked(tile_sums, (depth, side, side))

    def whole(*shape: int) -> Any:
        return pl.BlockSpec((1, 1, *shape), lambda a, b: (a, b, *[0] * len(shape)))

    row_sums, tile_sums = launch(
        kernel,
        (agents, blocks),
        [
            pl.BlockSpec((2,), lambda a, b: (0,)),
            pl.BlockSpec((1, numbers.shape[1]), lambda a, b: (a, 0)),
            *(pl.BlockSpec((n, 1, a.shape[2], BLOCK), lambda a, b: (0, a, 0, b)) for a in given),
        ],
        [whole(height), whole(depth, side, side)],
        [(agents, blocks, height), (agents, blocks, depth, side, side)],
        [jnp.stack([chunks.astype(jnp.int32), jnp.int32(0)]), numbers, *given],
        interpret,
    )
    return _finished(sums, shared, totals, jnp.sum(row_sums, axis=1), products, jnp.sum(tile_sums, axis=1))


def _sides(equation: Any) -> list[int]:
    """Rows of the two tables that a product along lanes multiplies."""
    return [entry_count([atom.aval]) for atom in equation.invars]


def _terms(equation: Any, replay: Replay, known: dict[Any, Table]) -> list[jax.Array]:
    """Rows whose lanes are to be added up, other axes having been."""
    atom = equation.invars[0]
    table = replay.laned(table_at(known, atom), atom.aval.shape)
    others = tuple(axis for axis in equation.params["axes"] if atom.aval.shape[axis] != LANES)
    return list(reduced("reduce_sum", table, others, atom.aval.shape).ravel())


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Of tiles [rows, block], along lanes."""
    return lax.dot_general(left, right, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


def _finished(sums: Sums, shared: Any, totals: list, row_sums: jax.Array, products: list, tile_sums: jax.Array) -> Any:
    """The results [A, …] from the sums of each agent."""

    def one(shared: list[jax.Array], row_sums: jax.Array, tile_sums: jax.Array) -> list[jax.Array]:
        jaxpr = sums.traced.jaxpr
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*sums.traced.consts, *shared], strict=False))
        first = 0
        for result in (equation.outvars[0] for equation in totals):
            after = first + entry_count([result.aval])
            known[result] = row_sums[first:after].reshape(result.aval.shape)
            first = after
        for equation, tile in zip(products, tile_sums, strict=False):
            rows, columns = _sides(equation)
            known[equation.outvars[0]] = tile[:rows, :columns].reshape(equation.outvars[0].aval.shape)

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for equation in sums.after:
            results = equation.primitive.bind(*map(read, equation.invars), **equation.params)
            known.update(
                zip(equation.outvars, results if equation.primitive.multiple_results else [results], strict=True)
            )
        return [jnp.asarray(read(atom)) for atom in jaxpr.outvars]

    results = jax.vmap(one)(jax.tree.leaves(shared), row_sums, tile_sums)
    return jax.tree.unflatten(sums.structure, results)
