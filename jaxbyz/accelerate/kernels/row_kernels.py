"""Functions of lanes as single GPU kernels: `one_kernel` runs a function once, `scan_in_kernel` many steps of one.

On a GPU, XLA launches a small kernel for every few formulas and for every iteration of a loop. A physics solver with
180 iterations becomes a thousand launches, and an episode several launches per step. Here the whole function is one
kernel: a block of lanes stays in registers from the first formula to the last, and every block takes loops and branches
on its own. All numbers travel as one array of floats, because Triton's compile time grows with the number of loads and
stores.
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

from jaxbyz.accelerate.kernels.primitives import KERNEL_TYPES
from jaxbyz.accelerate.kernels.rows import (
    TRACED_LANES,
    RowInterpreter,
    Table,
    can_interpret,
    cast,
    count_entries,
    entries_of,
    make_table,
    make_tables,
    one_agent,
    with_traced_lanes,
)
from jaxbyz.accelerate.platform import interpret_kernels

WARP_LANES = 32  # lanes per kernel instance
SCAN_PARAMETERS = 1024  # the most numbers per agent that a scan kernel takes
SCAN_ENTRIES = 64  # the most numbers per lane that it carries from step to step


def one_kernel(function: Callable, *args: Any) -> Any:
    """Compute `function(*args)` in one kernel.

    Args:
        function: takes arrays `[…, L]` for any number of lanes L. It may reduce over lanes only to decide about a loop
            or a branch, which each block of lanes does on its own.
        args: trees of arrays `[L, …]`. Integers must be below 2²⁴.

    Returns:
        The results, as arrays `[L, …]`.
    """
    from jax.experimental import pallas as pl

    given, structure = jax.tree.flatten(args)
    shapes = [jax.ShapeDtypeStruct((*a.shape[1:], TRACED_LANES), a.dtype) for a in given]
    traced, result = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(structure, leaves)), return_shape=True
    )(*shapes)
    results, result_structure = jax.tree.flatten(result)
    lanes, inputs, outputs = given[0].shape[0], count_entries(shapes), count_entries(results)
    height, width = _power_of_two(max(inputs, outputs)), _padded_width(lanes)
    numbers = jnp.concatenate([a.reshape(lanes, -1).astype(jnp.float32) for a in given], axis=1)
    table = jnp.pad(numbers, ((0, width - lanes), (0, height - inputs))).T

    def kernel(source: Any, target: Any) -> None:
        rows = _split_rows(source[...], inputs)
        target[...] = _join_rows(entries_of(RowInterpreter(WARP_LANES).run(traced, make_tables(shapes, rows))), height)

    block = pl.BlockSpec((height, WARP_LANES), lambda i: (0, i))
    stored = _launch(kernel, (width // WARP_LANES,), [block], [block], [table.shape], [table])[0]
    leaves = _unpack(stored[:, :lanes], results)
    return jax.tree.unflatten(result_structure, [jnp.moveaxis(leaf, -1, 0) for leaf in leaves])


def scan_in_kernel(step: Callable, agents: Any, lanes: Any, drawn: Any, first: jax.Array) -> tuple[Any, Any] | None:
    """Compute `accelerate.episode_loop.scan_steps` in one kernel; None if a kernel cannot run the step.

    A kernel can run it if policies are small and the environment is a few formulas per lane without random numbers.
    Integers among the agents, the random numbers and the record must be below 2²⁴.
    """
    drawn_numbers, restore_keys = _drop_keys(drawn, with_traced_lanes(drawn, 2))
    numbers, restore_agent_keys = _drop_keys(agents, one_agent(agents))
    first_step = jnp.broadcast_to(first, jax.tree.leaves(lanes)[0].shape[:1])

    def numbered_step(shared: Any, lanes: Any, drawn: Any, i: jax.Array) -> tuple[Any, Any]:
        numbers, first_step = shared
        return step(restore_agent_keys(numbers), lanes, restore_keys(drawn), first_step + i)

    shared = (numbers, first_step)
    traced = trace_step(numbered_step, shared, lanes, drawn_numbers)
    return None if traced is None else scan_kernel(traced, shared, lanes, drawn_numbers)


def _drop_keys(tree: Any, traced: Any) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Any]]:
    """Return the leaves that are no random keys, and a function that puts constant keys in the place of the others.

    If the traced step uses a constant key, it contains equations that no kernel can run.

    Args:
        tree: leaves of all agents.
        traced: the shapes that these leaves have while the step of one agent is traced.
    """
    leaves, structure = jax.tree.flatten(tree)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    shapes = [leaf.shape for leaf in jax.tree.leaves(traced)]

    def restore(numbers: list[jax.Array]) -> Any:
        remaining = iter(numbers)
        return jax.tree.unflatten(
            structure,
            [
                jnp.broadcast_to(jax.random.key(0), shape) if key else next(remaining)
                for key, shape in zip(is_key, shapes, strict=True)
            ],
        )

    return [leaf for leaf, key in zip(leaves, is_key, strict=True) if not key], restore


class TracedStep(NamedTuple):
    """A step that was traced for `scan_kernel`, with the shapes of one agent.

    Attributes:
        jaxpr: `(shared, carry, inputs, number of the step) -> (carry, outputs)`.
        shared: the numbers of the agent.
        carry: what goes from step to step, lanes last; every integer as two halves, see `_split_integers`.
        inputs: what each step is given, lanes last.
        outputs: what each step records, lanes last.
        structure: the structure of the outputs.
    """

    jaxpr: core.ClosedJaxpr
    shared: list[jax.ShapeDtypeStruct]
    carry: list[jax.ShapeDtypeStruct]
    inputs: list[jax.ShapeDtypeStruct]
    outputs: list[jax.ShapeDtypeStruct]
    structure: Any


def trace_step(step: Callable, shared: Any, carry: Any, inputs: Any) -> TracedStep | None:
    """Trace `step(shared, carry, inputs, number) -> (carry, outputs)` of one agent; None if a kernel cannot run it.

    Args:
        step: must not mix lanes.
        shared: leaves `[A, …]`.
        carry: leaves `[A, …, M]`.
        inputs: leaves `[length, A, …, M]`.
    """
    if not all(leaf.dtype in KERNEL_TYPES for leaf in jax.tree.leaves((shared, carry, inputs))):
        return None
    own, lanes, given = one_agent(shared), with_traced_lanes(carry, 1), with_traced_lanes(inputs, 2)
    halves = jax.eval_shape(_split_integers, lanes)
    if _float_count(own) > SCAN_PARAMETERS or count_entries(halves) > SCAN_ENTRIES:
        return None

    def with_halves(own: Any, halves: list[jax.Array], given: Any, number: jax.Array) -> tuple[list[jax.Array], Any]:
        following, outputs = step(own, _join_integers(halves, lanes), given, number)
        return _split_integers(following), outputs

    number = jax.ShapeDtypeStruct((), jnp.int32)
    jaxpr, (after, outputs) = jax.make_jaxpr(with_halves, return_shape=True)(own, halves, given, number)
    leaves, structure = jax.tree.flatten(outputs)
    same_carry = [(a.shape, a.dtype) for a in after] == [(a.shape, a.dtype) for a in halves]
    if not (same_carry and all(leaf.dtype in KERNEL_TYPES for leaf in leaves) and can_interpret(jaxpr)):
        return None
    return TracedStep(jaxpr, jax.tree.leaves(own), halves, jax.tree.leaves(given), leaves, structure)


def _float_count(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes) if leaf.dtype == jnp.float32)


def _split_integers(tree: Any) -> list[jax.Array]:
    """Return the leaves, with every integer as its lower and upper 16 bits: a float holds only 24 bits exactly."""
    leaves = jax.tree.leaves(tree)
    return [part for a in leaves for part in ((a & 0xFFFF, a >> 16) if a.dtype == jnp.int32 else (a,))]


def _join_integers(halves: Sequence[jax.Array], like: Any) -> Any:
    """Inverse of `_split_integers`."""
    rest = iter(halves)
    return jax.tree.map(lambda a: next(rest) | (next(rest) << 16) if a.dtype == jnp.int32 else next(rest), like)


def scan_kernel(step: TracedStep, shared: Any, carry: Any, inputs: Any) -> tuple[Any, Any]:
    """Run a traced step for all inputs in one kernel.

    Args:
        step: the step of one agent.
        shared: leaves `[A, …]`.
        carry: leaves `[A, …, M]`.
        inputs: leaves `[length, A, …, M]`.

    Returns:
        The carry after the last step, and the outputs with leaves `[length, A, …, M]`, as `lax.scan` does.
    """
    from jax.experimental import pallas as pl

    agents, *_, lanes = jax.tree.leaves(carry)[0].shape
    length, width = jax.tree.leaves(inputs)[0].shape[0], _padded_width(lanes)
    counts = [count_entries(shapes) for shapes in (step.carry, step.inputs, step.outputs)]
    carry_height, input_height, output_height = [_power_of_two(count) for count in counts]

    def kernel(numbers: Any, start: Any, source: Any, end: Any, target: Any) -> None:
        own = _read_lazily(numbers, step.shared)

        def one_step(i: jax.Array, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            given = make_tables(step.inputs, _split_rows(source[i, 0, :, :], counts[1]))
            number = make_table((), [i.astype(jnp.int32)])
            arguments = [*own, *make_tables(step.carry, rows), *given, number]
            values = [
                row.astype(jnp.float32) for row in entries_of(RowInterpreter(WARP_LANES).run(step.jaxpr, arguments))
            ]
            target[i, 0, :, :] = _join_rows(values[counts[0] :], output_height)
            return tuple(values[: counts[0]])

        rows = lax.fori_loop(0, length, one_step, tuple(_split_rows(start[0, :, :], counts[0])))
        end[0, :, :] = _join_rows(rows, carry_height)

    def over_time(height: int) -> Any:
        return pl.BlockSpec((length, 1, height, WARP_LANES), lambda a, b: (0, a, 0, b))

    constants = _pack_numbers(shared)
    state = pl.BlockSpec((1, carry_height, WARP_LANES), lambda a, b: (a, 0, b))
    end, target = _launch(
        kernel,
        (agents, width // WARP_LANES),
        [pl.BlockSpec((1, constants.shape[1]), lambda a, _: (a, 0)), state, over_time(input_height)],
        [state, over_time(output_height)],
        [(agents, carry_height, width), (length, agents, output_height, width)],
        [
            constants,
            _pack(_split_integers(carry), 1, carry_height, width),
            _pack(jax.tree.leaves(inputs), 2, input_height, width),
        ],
    )
    following = _join_integers(_unpack(end[..., :lanes], step.carry), carry)
    return following, jax.tree.unflatten(step.structure, _unpack(target[..., :lanes], step.outputs))


def _launch(
    kernel: Callable,
    grid: tuple[int, ...],
    in_specs: list,
    out_specs: list,
    out_shapes: list[tuple[int, ...]],
    inputs: list[jax.Array],
) -> list[jax.Array]:
    """Call a Pallas kernel whose results are float32, on the GPU with Triton or interpreted on other devices."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    types = [jax.typeof(array) for array in inputs]
    # Under `shard_map`, the results vary over all mesh axes that an input varies over.
    varying = {"vma": frozenset().union(*(kind.vma for kind in types))} if hasattr(types[0], "vma") else {}
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32, **varying) for shape in out_shapes],
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret_kernels(),
    )(*inputs)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`. Triton's arrays have such sides."""
    return 1 << (count - 1).bit_length()


def _padded_width(lanes: int) -> int:
    """Return a whole number of blocks of lanes plus one: with an odd stride, Triton gives every lane its own thread."""
    return -(-lanes // WARP_LANES) * WARP_LANES + 1


def _pack(arrays: Sequence[jax.Array], leading: int, height: int, width: int) -> jax.Array:
    """Store arrays `[*leading, …, M]` as rows of one array of floats `[*leading, height, width]`, padded with zeros."""
    rows = [a.reshape(*a.shape[:leading], -1, a.shape[-1]).astype(jnp.float32) for a in arrays]
    table = jnp.concatenate(rows, axis=-2)
    return jnp.pad(table, [(0, 0)] * leading + [(0, height - table.shape[-2]), (0, width - table.shape[-1])])


def _unpack(table: jax.Array, shapes: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Inverse of `_pack`: split the rows of `[*leading, rows, M]` into arrays `[*leading, …, M]` of these shapes."""
    arrays, start = [], 0
    for shape in shapes:
        end = start + count_entries([shape])
        rows = table[..., start:end, :].reshape(*table.shape[:-2], *shape.shape[:-1], table.shape[-1])
        arrays.append(cast(rows, shape.dtype))
        start = end
    return arrays


def _split_rows(tile: jax.Array, count: int) -> list[jax.Array]:
    """Return the first rows of a tile `[height, block]`. Triton cannot index what is in registers."""
    number = lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return [jnp.sum(jnp.where(number == i, tile, 0.0), axis=0) for i in range(count)]


def _join_rows(rows: Sequence[jax.Array], height: int) -> jax.Array:
    """Inverse of `_split_rows`, so that one store suffices: each costs Triton's compiler a pass over the program."""
    number = lax.broadcasted_iota(jnp.int32, (height, WARP_LANES), 0)
    tile = jnp.zeros((height, WARP_LANES), jnp.float32)
    for i, row in enumerate(rows):
        tile = jnp.where(number == i, row.astype(jnp.float32)[None], tile)
    return tile


def _pack_numbers(shared: Any) -> jax.Array:
    """Store leaves `[A, …]` as floats `[A, count]`.

    The count is a power of two, so that the address of a number is a constant of the instruction that reads it.
    """
    numbers = jnp.concatenate([a.reshape(a.shape[0], -1).astype(jnp.float32) for a in jax.tree.leaves(shared)], axis=1)
    return jnp.pad(numbers, [(0, 0), (0, _power_of_two(numbers.shape[1]) - numbers.shape[1])])


def _read_lazily(numbers: Any, shapes: Sequence[Any]) -> list[Table]:
    """Make tables of one agent's numbers that are read when they are used: all would not fit into registers."""
    return make_tables(shapes, [functools.partial(lambda i: numbers[0, i], i) for i in range(count_entries(shapes))])
