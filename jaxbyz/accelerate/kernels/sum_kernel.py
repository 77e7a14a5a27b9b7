"""Functions whose results are sums over lanes, such as gradients of small networks, as one GPU kernel.

XLA writes the activations of every layer to memory and reads them again, about twenty times for the gradient of a small
network. Here the numbers of some lanes stay on the chip, forward and backward, for all chunks of time, and only the
sums leave the kernel.

The function is traced and cut at its sums over lanes: `reduce_sum` over the lane axis, or a matrix product along it.
The equations before the sums are evaluated on tiles of lanes inside the kernel, and the equations after the sums once,
outside. The sides of Triton's tiles are powers of two, and at least 16 in matrix products, so the feature axes are
padded. The padding contains arbitrary numbers; every operation along a feature axis masks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jaxbyz.accelerate.kernels.equations import (
    ARITHMETIC,
    KERNEL_TYPES,
    REWRITTEN,
    evaluate,
    inline_calls,
    needed_equations,
    value_of_atom,
)
from jaxbyz.accelerate.kernels.launching import launch, power_of_two, stack_into
from jaxbyz.accelerate.kernels.rows import TRACED_LANES, one_agent, with_traced_lanes
from jaxbyz.accelerate.platform import interpret_kernels

SUM_PARAMETERS = 1024  # the most numbers per agent that the kernel takes
TILE_LANES = 32  # lanes that one kernel instance processes at a time
WIDEST_TILE = 64  # a wider tile does not fit into registers
NARROWEST_FACTOR = 16  # the smallest side of a tile in Triton's matrix products

_REDUCTIONS: dict[str, tuple[Callable, float]] = {  # with their neutral elements
    "reduce_sum": (jnp.sum, 0.0),
    "reduce_max": (jnp.max, -jnp.inf),
    "reduce_min": (jnp.min, jnp.inf),
}


def sum_in_kernel(function: Callable, trees: Any, steps: Any, chunks: jax.Array) -> Any | None:
    """Compute `accelerate.episode_sums.sum_over_steps` in one kernel; None if a kernel cannot run the function.

    Args:
        function: `(tree, steps) -> sums` of one agent, steps with leaves `[…, L]`.
        trees: leaves `[A, …]`.
        steps: leaves `[n, A, …, L]`.
        chunks: the number of chunks to sum over.
    """
    if sum(leaf[0].size for leaf in jax.tree.leaves(trees)) > SUM_PARAMETERS:
        return None
    traced = trace_sums(function, trees, steps)
    return None if traced is None else sum_kernel(traced, trees, steps, chunks)


class TracedSums(NamedTuple):
    """A function that was traced for `sum_kernel`, with the shapes of one agent.

    Attributes:
        jaxpr: the whole function, without calls.
        before: the equations before the sums over lanes.
        sums: the equations that sum over lanes.
        after: the equations after the sums.
        shared: the numbers of the agent.
        inputs: lanes last.
        structure: the structure of the results.
    """

    jaxpr: core.Jaxpr
    before: list[Any]
    sums: list[Any]
    after: list[Any]
    shared: list[jax.ShapeDtypeStruct]
    inputs: list[jax.ShapeDtypeStruct]
    structure: Any


def trace_sums(function: Callable, shared: Any, inputs: Any) -> TracedSums | None:
    """Trace `function(shared, inputs)` of one agent; None if a kernel cannot run it. Arguments as in `sum_kernel`."""
    if not all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shared)):
        return None
    if not all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(inputs)):
        return None
    own, given = one_agent(shared), with_traced_lanes(inputs, 2)
    if any(_side(size) > WIDEST_TILE for leaf in jax.tree.leaves((own, given)) for size in leaf.shape):
        return None
    traced, results = jax.make_jaxpr(function, return_shape=True)(own, given)
    traced = inline_calls(traced)
    parts = None if traced.consts else _cut_at_sums(traced.jaxpr)
    if parts is None:
        return None
    return TracedSums(traced.jaxpr, *parts, jax.tree.leaves(own), jax.tree.leaves(given), jax.tree.structure(results))


def _cut_at_sums(jaxpr: core.Jaxpr) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Return the equations before the sums over lanes, the sums, and those after; None if they do not separate so."""
    before, sums, after = [], [], []
    depends_on_sum: set[Any] = set()

    for equation in needed_equations(jaxpr):
        if depends_on_sum.intersection(atom for atom in equation.invars if not isinstance(atom, core.Literal)):
            if _have_lanes(equation.invars) or _have_lanes(equation.outvars):
                return None
            after.append(equation)
            depends_on_sum.update(equation.outvars)
        elif _have_lanes(equation.invars) and not _have_lanes(equation.outvars):
            if not _is_sum_over_lanes(equation):
                return None
            sums.append(equation)
            depends_on_sum.update(equation.outvars)
        elif not _fits_tiles(equation):
            return None
        else:
            before.append(equation)
            if not _have_lanes(equation.outvars):  # it may be needed after the sums too, and is cheap
                after.append(equation)
    return None if _have_lanes(jaxpr.outvars) else (before, sums, after)


def _have_lanes(atoms: Sequence[Any]) -> bool:
    return any(TRACED_LANES in atom.aval.shape for atom in atoms)


def _is_sum_over_lanes(equation: Any) -> bool:
    if any(atom.aval.dtype != jnp.float32 or atom.aval.ndim > 2 for atom in equation.invars):
        return False
    return equation.primitive.name == "reduce_sum" or _is_matrix_product(equation)


def _is_matrix_product(equation: Any) -> bool:
    if equation.primitive.name != "dot_general":
        return False
    if any(atom.aval.ndim != 2 or atom.aval.dtype != jnp.float32 for atom in equation.invars):
        return False
    contracted, batch = equation.params["dimension_numbers"]
    return not any(batch) and all(len(axes) == 1 for axes in contracted)


def _fits_tiles(equation: Any) -> bool:
    """Whether `_evaluate_on_tiles` computes an equation as XLA does, lane by lane."""
    name, parameters = equation.primitive.name, equation.params
    inputs, outputs = ([atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars))
    for a in (*inputs, *outputs):
        if a.dtype not in KERNEL_TYPES or len(a.shape) > 2 or a.shape.count(TRACED_LANES) > 1:
            return False
        if any(_side(size) > WIDEST_TILE for size in a.shape):
            return False
    if name in ("max", "min", "reduce_max", "reduce_min") and outputs[0].dtype == jnp.bool_:
        return False
    if name == "round" or (name == "select_n" and inputs[0].dtype != jnp.bool_):  # these differ in Triton
        return False
    if name in ("reshape", "squeeze"):  # only axes of length 1 are added or removed
        return [n for n in inputs[0].shape if n != 1] == [n for n in outputs[0].shape if n != 1]
    if name in _REDUCTIONS:
        return outputs[0].dtype == jnp.float32
    if name == "iota":
        return TRACED_LANES not in parameters["shape"]
    if name in ARITHMETIC or name in REWRITTEN:
        return all(a.shape in ((), outputs[0].shape) or len(a.shape) == len(outputs[0].shape) for a in inputs)
    return name in ("broadcast_in_dim", "copy", "stop_gradient", "transpose") or _is_matrix_product(equation)


def sum_kernel(traced: TracedSums, shared: Any, inputs: Any, chunks: jax.Array) -> Any:
    """Compute the traced function for each of A agents, summed over the lanes of the first `chunks` chunks.

    Args:
        traced: the function of one agent.
        shared: leaves `[A, …]`.
        inputs: leaves `[n, A, …, L]`.
        chunks: the number of chunks to sum over.

    Returns:
        A tree with leaves `[A, …]`.
    """
    from jax.experimental import pallas as pl

    given = [a.reshape(*a.shape[:2], -1, a.shape[-1]) for a in jax.tree.leaves(inputs)]
    n, agents, _, lanes = given[0].shape
    blocks = -(-lanes // TILE_LANES)
    given = [jnp.pad(a, [(0, 0)] * 3 + [(0, blocks * TILE_LANES - lanes)]) for a in given]
    numbers = [_pad_to_tile(a, shape.shape) for a, shape in zip(jax.tree.leaves(shared), traced.shared, strict=True)]
    sum_shapes = [_tile_shape(equation.outvars[0].aval.shape) for equation in traced.sums]

    def kernel(limit: Any, *references: Any) -> None:
        own, sources = references[: len(numbers)], references[len(numbers) : len(numbers) + len(given)]
        targets = references[len(numbers) + len(given) :]
        lane = pl.program_id(1) * TILE_LANES + lax.iota(jnp.int32, TILE_LANES)
        valid = None if lanes % TILE_LANES == 0 else lane < lanes
        own_tiles = [reference[0] for reference in own]

        def add_chunk(c: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
            tiles = [
                _input_tile([source[c, 0, i, :] for i in range(source.shape[2])], shape.shape)
                for source, shape in zip(sources, traced.inputs, strict=True)
            ]
            known = dict(zip(traced.jaxpr.invars, [*own_tiles, *tiles], strict=True))
            for equation in traced.before:
                known[equation.outvars[0]] = _evaluate_on_tiles(equation, known)
            terms = [_evaluate_on_tiles(equation, known, valid) for equation in traced.sums]
            return [a + b for a, b in zip(totals, terms, strict=True)]

        totals = lax.fori_loop(0, limit[0], add_chunk, [jnp.zeros(shape) for shape in sum_shapes])
        for target, value in zip(targets, totals, strict=True):
            target[0, 0] = value

    def sum_block(shape: Sequence[int]) -> Any:
        return pl.BlockSpec((1, 1, *shape), lambda a, b: (a, b, *[0] * len(shape)))

    def agent_block(shape: Sequence[int]) -> Any:
        return pl.BlockSpec((1, *shape), lambda a, b: (a, *[0] * len(shape)))

    parts = launch(
        kernel,
        (agents, blocks),
        [
            pl.BlockSpec((1,), lambda a, b: (0,)),
            *(agent_block(a.shape[1:]) for a in numbers),
            *(pl.BlockSpec((n, 1, a.shape[2], TILE_LANES), lambda a, b: (0, a, 0, b)) for a in given),
        ],
        [sum_block(shape) for shape in sum_shapes],
        [(agents, blocks, *shape) for shape in sum_shapes],
        [jnp.reshape(chunks, 1).astype(jnp.int32), *numbers, *given],
    )
    totals = []
    for part, equation in zip(parts, traced.sums, strict=True):
        unpadded = (slice(None), *(slice(size) for size in equation.outvars[0].aval.shape))
        totals.append(jnp.sum(part, axis=1)[unpadded])
    return _finish(traced, jax.tree.leaves(shared), totals)


def _finish(traced: TracedSums, shared: list[jax.Array], totals: list[jax.Array]) -> Any:
    """Evaluate the equations after the sums for each agent."""
    jaxpr = traced.jaxpr

    def one_agents_results(shared: list[jax.Array], totals: list[jax.Array]) -> list[jax.Array]:
        known: dict[Any, Any] = dict(zip(jaxpr.invars, shared, strict=False))
        known.update(zip([equation.outvars[0] for equation in traced.sums], totals, strict=True))
        evaluate(traced.after, known)
        return [jnp.asarray(value_of_atom(known, atom)) for atom in jaxpr.outvars]

    return jax.tree.unflatten(traced.structure, jax.vmap(one_agents_results)(shared, totals))


def _side(size: int) -> int:
    """Return the side of a tile for an axis of the given length."""
    if size == TRACED_LANES:
        return TILE_LANES
    return 1 if size == 1 else max(NARROWEST_FACTOR, power_of_two(size))


def _tile_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(_side, shape))


def _pad_to_tile(a: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Pad an array `[A, …]` to one tile per agent, outside the kernel."""
    return jnp.pad(a, [(0, 0), *((0, _side(size) - size) for size in shape)])


def _input_tile(rows: list[jax.Array], shape: Sequence[int]) -> jax.Array:
    """Make the tile of an array of this shape from its rows `[TILE_LANES]`."""
    tile = _tile_shape(shape)
    if len(tile) == 1:
        return rows[0]
    return lax.broadcast_in_dim(rows[0], tile, (1,)) if tile[0] == 1 else stack_into(rows, tile)


def _evaluate_on_tiles(equation: Any, known: dict[Any, Any], valid: jax.Array | None = None) -> jax.Array:
    """Evaluate an equation on known tiles. Sums over lanes include the lanes that `valid`, `[TILE_LANES]`, selects."""
    tiles = [jnp.asarray(value_of_atom(known, atom)) for atom in equation.invars]
    name, parameters = equation.primitive.name, equation.params
    shapes = [atom.aval.shape for atom in equation.invars]
    result_shape = _tile_shape(equation.outvars[0].aval.shape)
    if name in ARITHMETIC or name in _FORMULAS:
        formula = _FORMULAS.get(name) or (lambda *operands: equation.primitive.bind(*operands, **parameters))
        return formula(*(jnp.broadcast_to(tile, result_shape) for tile in tiles))
    if name in _REDUCTIONS:
        reduction, neutral = _REDUCTIONS[name]
        axes = parameters["axes"]
        return reduction(_mask_padding(tiles[0], shapes[0], axes, neutral, valid), axis=axes)
    if name == "dot_general":
        axes = [contracted[0] for contracted in parameters["dimension_numbers"][0]]
        return _matrix_product(tiles, shapes, axes, result_shape, _precision(parameters["precision"]), valid)
    if name == "iota":
        return lax.broadcasted_iota(parameters["dtype"], result_shape, parameters["dimension"])
    if name == "transpose":
        return jnp.transpose(tiles[0], parameters["permutation"])
    if name == "broadcast_in_dim":
        return lax.broadcast_in_dim(tiles[0], result_shape, parameters["broadcast_dimensions"])
    return tiles[0].reshape(result_shape)  # reshape, squeeze, copy, stop_gradient


def _tanh(x: jax.Array) -> jax.Array:
    """Compute tanh to 2e-7, and to 1e-5 of its value, with a quarter of the instructions of CUDA's function."""
    small = x - x * x * x * (1.0 / 3.0)
    return jnp.where(jnp.abs(x) < 0.02, small, 1.0 - 2.0 / (jnp.exp(2.0 * x) + 1.0))


_FORMULAS = {**REWRITTEN, "tanh": _tanh}


def _mask_padding(
    tile: jax.Array, shape: Sequence[int], axes: Sequence[int], neutral: float, valid: jax.Array | None = None
) -> jax.Array:
    """Write the neutral element where the given axes are padded, and in lanes that are not valid."""
    for axis in axes:
        if shape[axis] == TRACED_LANES:
            if valid is not None:
                tile = jnp.where(lax.broadcast_in_dim(valid, tile.shape, (axis,)), tile, neutral)
        elif shape[axis] < tile.shape[axis]:
            index = lax.broadcasted_iota(jnp.int32, tile.shape, axis)
            tile = jnp.where(index < shape[axis], tile, neutral)
    return tile


def _matrix_product(
    tiles: list[jax.Array],
    shapes: list[tuple[int, ...]],
    axes: list[int],
    result_shape: tuple[int, ...],
    precision: Any,
    valid: jax.Array | None,
) -> jax.Array:
    """Multiply two matrices along one axis each. Sides of length 1 are repeated, and the copies dropped afterwards."""
    factors = []
    for tile, shape, axis in zip(tiles, shapes, axes, strict=True):
        wide = jnp.broadcast_to(tile, tuple(max(side, NARROWEST_FACTOR) for side in tile.shape))
        factors.append(_mask_padding(wide, shape, [axis], 0.0, valid))
    if TRACED_LANES in shapes[0] and TRACED_LANES not in shapes[1]:  # compute the transpose, so that lanes stay last
        result = _contract(factors[::-1], axes[::-1], precision).T
    else:
        result = _contract(factors, axes, precision)
    for axis, side in enumerate(result_shape):
        if side == 1:
            first = lax.broadcasted_iota(jnp.int32, result.shape, axis) == 0
            result = lax.expand_dims(jnp.sum(jnp.where(first, result, 0.0), axis=axis), (axis,))
    return result


def _contract(factors: list[jax.Array], axes: list[int], precision: Any) -> jax.Array:
    return lax.dot_general(factors[0], factors[1], (((axes[0],), (axes[1],)), ((), ())), precision=precision)


def _precision(requested: Any) -> Any:
    """Choose the precision of a product as XLA does: TF32, or three TF32 products if the equation requests more."""
    if requested is None or (isinstance(requested, tuple) and lax.Precision.HIGHEST not in requested):
        return None
    return lax.Precision.HIGHEST if interpret_kernels() else lax.DotAlgorithmPreset.TF32_TF32_F32_X3
