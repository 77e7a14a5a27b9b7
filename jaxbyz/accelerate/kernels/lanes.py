"""Functions over lanes as one GPU kernel: `one_kernel` runs a function once, `scan_kernel` many steps of many agents.

On a GPU, XLA makes a small kernel of every few formulas and of every pass of a loop: a physics solver of 180 sweeps
becomes a chain of a thousand launches, and an episode one of many launches a step. Here the whole function runs inside
one kernel: a block of lanes stays in registers from the first formula to the last, and loops and branches are taken by
each block on its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jaxbyz.accelerate.kernels.equations import (
    BLOCK,
    LANES,
    TYPES,
    Replay,
    Table,
    as_type,
    entries_of,
    entry_count,
    laned,
    one_agent,
    replayable,
    table_of,
    tables_of,
)
from jaxbyz.accelerate.kernels.launching import launch, power_of_two, stacked


def one_kernel(function: Callable, *args: Any, interpret: bool = False) -> Any:
    """function(*args) in one kernel. Arrays are [L, ...]; the function sees [..., LANES] and may not mix lanes.

    It may ask for all, any or the extreme of its lanes to decide on a branch or a loop. Integers must be below 2²⁴:
    everything travels as one array of floats, since Triton's compile time grows with the number of loads and stores
    times the square of the program's length. `interpret` runs it without a GPU, for tests.
    """
    from jax.experimental import pallas as pl

    given, structure = jax.tree.flatten(args)
    shapes = [jax.ShapeDtypeStruct((*a.shape[1:], LANES), a.dtype) for a in given]
    traced, result = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(structure, leaves)), return_shape=True
    )(*shapes)
    results, result_structure = jax.tree.flatten(result)
    lanes, inputs, outputs = given[0].shape[0], entry_count(shapes), entry_count(results)
    height = power_of_two(max(inputs, outputs))
    # One column more than whole blocks: with an odd stride Triton gives every lane a thread, not four lanes to each.
    spare = (0, -lanes % BLOCK + 1), (0, height - inputs)
    table = jnp.pad(jnp.concatenate([a.reshape(lanes, -1).astype(jnp.float32) for a in given], axis=1), spare).T

    def kernel(source: Any, target: Any) -> None:
        rows = _rows_of(source[...], inputs)
        target[...] = _tile_of(entries_of(Replay(BLOCK).run(traced, tables_of(shapes, rows))), height)

    block = pl.BlockSpec((height, BLOCK), lambda i: (0, i))
    stored = launch(kernel, (table.shape[1] // BLOCK,), [block], [block], [table.shape], [table], interpret)[0].T
    parts, first = [], 0
    for shape in results:
        after = first + entry_count([shape])
        parts.append(as_type(stored[:lanes, first:after].reshape(lanes, *shape.shape[:-1]), shape.dtype))
        first = after
    return jax.tree.unflatten(result_structure, parts)


class Scan(NamedTuple):
    """A step traced for `scan_kernel`; shapes are those of one agent, lanes last, integers of the carry in halves."""

    jaxpr: core.ClosedJaxpr
    shared: list[jax.ShapeDtypeStruct]
    carry: list[jax.ShapeDtypeStruct]
    inputs: list[jax.ShapeDtypeStruct]
    outputs: list[jax.ShapeDtypeStruct]
    structure: Any  # of the outputs


def traced_step(step: Callable, shared: Any, carry: Any, inputs: Any) -> Scan | None:
    """Trace step(shared, carry, inputs, number) -> (carry, outputs) of one agent; arguments as `scan_kernel`'s.

    None where a kernel cannot run it: it mixes lanes, needs other types than TYPES, or what Triton does not have.
    """
    if not all(leaf.dtype in TYPES for leaf in jax.tree.leaves((shared, carry, inputs))):
        return None
    ours, lanes, given = one_agent(shared), laned(carry, 1), laned(inputs, 2)
    halves = jax.eval_shape(_split, lanes)

    def whole(ours: Any, halves: list[jax.Array], given: Any, number: jax.Array) -> tuple[list[jax.Array], Any]:
        following, outputs = step(ours, _joined(halves, lanes), given, number)
        return _split(following), outputs

    number = jax.ShapeDtypeStruct((), jnp.int32)
    jaxpr, (after, outputs) = jax.make_jaxpr(whole, return_shape=True)(ours, halves, given, number)
    leaves, structure = jax.tree.flatten(outputs)
    steady = [(a.shape, a.dtype) for a in after] == [(a.shape, a.dtype) for a in halves]
    if not (steady and all(leaf.dtype in TYPES for leaf in leaves) and replayable(jaxpr)):
        return None
    return Scan(jaxpr, jax.tree.leaves(ours), halves, jax.tree.leaves(given), leaves, structure)


def _split(tree: Any) -> list[jax.Array]:
    """Leaves, each integer as its lower and upper half: numbers travel as floats, which hold 24 bits of an integer."""
    leaves = jax.tree.leaves(tree)
    return [part for a in leaves for part in ((a & 0xFFFF, a >> 16) if a.dtype == jnp.int32 else (a,))]


def _joined(halves: Sequence[jax.Array], like: Any) -> Any:
    """The way back."""
    rest = iter(halves)
    return jax.tree.map(lambda a: next(rest) | (next(rest) << 16) if a.dtype == jnp.int32 else next(rest), like)


def scan_kernel(scan: Scan, shared: Any, carry: Any, inputs: Any, length: int, interpret: bool = False) -> Any:
    """`length` steps of A agents, each over its own M lanes, in one kernel: (carry, outputs) as of `lax.scan`.

    shared: leaves [A, …], numbers of an agent; carry: [A, …, M]; inputs and outputs: [length, A, …, M].
    Integers among the shared, the inputs and the outputs must be below 2²⁴.
    """
    from jax.experimental import pallas as pl

    agents, *_, lanes = jax.tree.leaves(carry)[0].shape
    width = -(-lanes // BLOCK) * BLOCK + 1  # odd, as above
    counts = [entry_count(shapes) for shapes in (scan.carry, scan.inputs, scan.outputs)]
    held, drawn, told = [power_of_two(count) for count in counts]

    def padded(arrays: Sequence[jax.Array], leading: int, height: int) -> jax.Array:
        rows = pack(arrays, leading)
        return jnp.pad(rows, [(0, 0)] * leading + [(0, height - rows.shape[-2]), (0, width - lanes)])

    def unpadded(table: jax.Array, shapes: list[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        return unpack(table[..., :lanes], [(shape.shape[:-1], shape.dtype) for shape in shapes])

    def kernel(numbers: Any, start: Any, source: Any, end: Any, target: Any) -> None:
        mine = _read_numbers(numbers, scan.shared)

        def one(i: jax.Array, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            here = tables_of(scan.inputs, _rows_of(source[i, 0, :, :], counts[1]))
            results = Replay(BLOCK).run(
                scan.jaxpr, [*mine, *tables_of(scan.carry, rows), *here, table_of((), [i.astype(jnp.int32)])]
            )
            values = [row.astype(jnp.float32) for row in entries_of(results)]
            target[i, 0, :, :] = _tile_of(values[counts[0] :], told)
            return tuple(values[: counts[0]])

        rows = lax.fori_loop(0, length, one, tuple(_rows_of(start[0, :, :], counts[0])))
        end[0, :, :] = _tile_of(rows, held)

    def in_time(height: int) -> Any:
        return pl.BlockSpec((length, 1, height, BLOCK), lambda a, b: (0, a, 0, b))

    constants = _numbers_of(shared)
    state = pl.BlockSpec((1, held, BLOCK), lambda a, b: (a, 0, b))
    end, target = launch(
        kernel,
        (agents, width // BLOCK),
        [pl.BlockSpec((1, constants.shape[1]), lambda a, _: (a, 0)), state, in_time(drawn)],
        [state, in_time(told)],
        [(agents, held, width), (length, agents, told, width)],
        [constants, padded(_split(carry), 1, held), padded(jax.tree.leaves(inputs), 2, drawn)],
        interpret,
    )
    following = _joined(unpadded(end, scan.carry), carry)
    return following, jax.tree.unflatten(scan.structure, unpadded(target, scan.outputs))


def pack(arrays: Sequence[jax.Array], leading: int, kind: Any = jnp.float32) -> jax.Array:
    """Arrays [*leading, …, M] as rows of one, [*leading, R, M]. Integers must fit into `kind`."""
    rows = [a.reshape(*a.shape[:leading], -1, a.shape[-1]).astype(kind) for a in arrays]
    return jnp.concatenate(rows, axis=-2)


def unpack(table: jax.Array, kinds: Sequence[tuple[tuple[int, ...], Any]]) -> list[jax.Array]:
    """The way back: of each array its shape between the leading axes and the last one, and its type."""
    arrays, first = [], 0
    for shape, dtype in kinds:
        after = first + math.prod(shape)
        arrays.append(as_type(table[..., first:after, :].reshape(*table.shape[:-2], *shape, table.shape[-1]), dtype))
        first = after
    return arrays


def _rows_of(tile: jax.Array, count: int) -> list[jax.Array]:
    """The first rows of a tile [height, block]: Triton has no indexing of what is in registers."""
    number = lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return [jnp.sum(jnp.where(number == i, tile, 0.0), axis=0) for i in range(count)]


def _tile_of(rows: Sequence[jax.Array], height: int) -> jax.Array:
    """The way back: one store, since each costs Triton's compiler another look at the whole program."""
    return stacked([row.astype(jnp.float32) for row in rows], (height, BLOCK))


def _numbers_of(shared: Any) -> jax.Array:
    """Leaves [A, …] as floats [A, numbers]; integers must be below 2²⁴.

    As many as a power of two: then the place of a number is a constant of the instruction that reads it.
    """
    leaves = [a.reshape(a.shape[0], -1).astype(jnp.float32) for a in jax.tree.leaves(shared)]
    numbers = jnp.concatenate(leaves, axis=1)
    return jnp.pad(numbers, [(0, 0), (0, power_of_two(numbers.shape[1]) - numbers.shape[1])])


def _read_numbers(numbers: Any, shapes: Sequence[Any]) -> list[Table]:
    """One agent's, inside the kernel. They are read where they are used: all at once would not fit into registers."""
    return tables_of(shapes, [functools.partial(lambda n: numbers[0, n], n) for n in range(entry_count(shapes))])
