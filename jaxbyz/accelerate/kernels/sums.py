"""Functions whose results are sums over lanes, such as gradients of small networks, as one GPU kernel.

As XLA runs it, the gradient of a small network moves every layer's numbers through memory some twenty times. Here the
numbers of some lanes stay on the chip, forward and back, through all chunks of time; only sums leave the kernel.

The function is traced and cut where it sums: by `reduce_sum` over lanes, or by a product of matrices along them. What
comes before is evaluated on tiles of lanes, the sums are kept in the kernel, and what comes after is computed once,
outside. Triton's tiles have powers of two as sides, and at least 16 in products, so features are padded; the padding
holds anything, and whatever adds up, compares or multiplies along features leaves it out.
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
    LANES,
    REWRITTEN,
    TYPES,
    flattened,
    follow,
    laned,
    live,
    one_agent,
    value_at,
)
from jaxbyz.accelerate.kernels.launching import launch, power_of_two, stacked

TILE = 32  # lanes of one kernel instance at a time
WIDEST = 64  # side of a tile: a wider one does not fit into registers
LEAST_SIDE = 16  # of a product of tiles in Triton

REDUCTIONS: dict[str, tuple[Callable, float]] = {  # and what changes nothing
    "reduce_sum": (jnp.sum, 0.0),
    "reduce_max": (jnp.max, -jnp.inf),
    "reduce_min": (jnp.min, jnp.inf),
}


class Sums(NamedTuple):
    """A function traced for `sum_kernel`: its equations before the sums over lanes, the sums, and those after.

    Shapes are those of one agent, lanes last.
    """

    jaxpr: core.Jaxpr
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
    ours, given = one_agent(shared), laned(inputs, 2)
    if any(_side(size) > WIDEST for leaf in jax.tree.leaves((ours, given)) for size in leaf.shape):
        return None
    traced, results = jax.make_jaxpr(function, return_shape=True)(ours, given)
    traced = flattened(traced)  # so that no sum hides in a call
    parts = None if traced.consts else _cut(traced.jaxpr)
    if parts is None:
        return None
    return Sums(traced.jaxpr, *parts, jax.tree.leaves(ours), jax.tree.leaves(given), jax.tree.structure(results))


def _cut(jaxpr: core.Jaxpr) -> tuple[list[Any], list[Any], list[Any]] | None:
    """The equations before the sums over lanes, the sums, and those after; None where they are not so ordered."""
    before, sums, after = [], [], []
    summed: set[Any] = set()  # what depends on a sum

    for equation in live(jaxpr):
        if summed.intersection(atom for atom in equation.invars if not isinstance(atom, core.Literal)):
            if _laned(equation.invars) or _laned(equation.outvars):
                return None
            after.append(equation)
            summed.update(equation.outvars)
        elif _laned(equation.invars) and not _laned(equation.outvars):
            if not _is_sum(equation):
                return None
            sums.append(equation)
            summed.update(equation.outvars)
        elif not _fits_tiles(equation):
            return None
        else:
            before.append(equation)
            if not _laned(equation.outvars):  # of the shared numbers alone: cheap enough to have twice
                after.append(equation)
    return None if _laned(jaxpr.outvars) else (before, sums, after)


def _laned(atoms: Sequence[Any]) -> bool:
    return any(LANES in atom.aval.shape for atom in atoms)


def _is_sum(equation: Any) -> bool:
    """Over lanes: of all that an array has, or of products of two."""
    if any(atom.aval.dtype != jnp.float32 or atom.aval.ndim > 2 for atom in equation.invars):
        return False
    return equation.primitive.name == "reduce_sum" or _is_product(equation)


def _is_product(equation: Any) -> bool:
    """Of two matrices of floats along one axis each."""
    if equation.primitive.name != "dot_general":
        return False
    if any(atom.aval.ndim != 2 or atom.aval.dtype != jnp.float32 for atom in equation.invars):
        return False
    along, batch = equation.params["dimension_numbers"]
    return not any(batch) and all(len(axes) == 1 for axes in along)


def _fits_tiles(equation: Any) -> bool:
    """Whether `_evaluated` can compute it; lanes may not be mixed."""
    name, parameters = equation.primitive.name, equation.params
    given, made = ([atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars))
    if any(a.dtype not in TYPES or len(a.shape) > 2 or a.shape.count(LANES) > 1 for a in (*given, *made)):
        return False
    if any(_side(size) > WIDEST for a in (*given, *made) for size in a.shape):
        return False
    if name in ("max", "min", "reduce_max", "reduce_min") and made[0].dtype == jnp.bool_:
        return False
    if name == "round" or (name == "select_n" and given[0].dtype != jnp.bool_):  # Triton's are others
        return False
    if name in ("reshape", "squeeze"):  # axes of length 1 come and go
        return [n for n in given[0].shape if n != 1] == [n for n in made[0].shape if n != 1]
    if name in REDUCTIONS:
        return made[0].dtype == jnp.float32
    if name == "iota":
        return LANES not in parameters["shape"]
    if name in ARITHMETIC or name in REWRITTEN:
        return all(a.shape in ((), made[0].shape) or len(a.shape) == len(made[0].shape) for a in given)
    return name in ("broadcast_in_dim", "copy", "stop_gradient", "transpose") or _is_product(equation)


def sum_kernel(sums: Sums, shared: Any, inputs: Any, chunks: jax.Array, interpret: bool = False) -> Any:
    """The function's results for each of A agents, summed over the lanes of the first `chunks` chunks.

    shared: leaves [A, …], numbers of an agent; inputs: [n, A, …, L]; results: [A, …].
    """
    from jax.experimental import pallas as pl

    given = [a.reshape(*a.shape[:2], -1, a.shape[-1]) for a in jax.tree.leaves(inputs)]
    n, agents, _, lanes = given[0].shape
    blocks = -(-lanes // TILE)
    given = [jnp.pad(a, [(0, 0)] * 3 + [(0, blocks * TILE - lanes)]) for a in given]
    numbers = [_padded(a, shape.shape) for a, shape in zip(jax.tree.leaves(shared), sums.shared, strict=True)]
    results = [_result_shape(equation) for equation in sums.sums]

    def kernel(limit: Any, *references: Any) -> None:
        ours, sources = references[: len(numbers)], references[len(numbers) : len(numbers) + len(given)]
        targets = references[len(numbers) + len(given) :]
        lane = pl.program_id(1) * TILE + lax.iota(jnp.int32, TILE)
        valid = None if lanes % TILE == 0 else lane < lanes
        mine = [reference[0] for reference in ours]

        def one(c: jax.Array, kept: list[jax.Array]) -> list[jax.Array]:
            here = [
                _input_tile([source[c, 0, i, :] for i in range(source.shape[2])], shape.shape)
                for source, shape in zip(sources, sums.inputs, strict=True)
            ]
            known = dict(zip(sums.jaxpr.invars, [*mine, *here], strict=True))
            for equation in sums.before:
                known[equation.outvars[0]] = _evaluated(equation, known, interpret)
            terms = [_evaluated(equation, known, interpret, valid) for equation in sums.sums]
            return [a + b for a, b in zip(kept, terms, strict=True)]

        kept = lax.fori_loop(0, limit[0], one, [jnp.zeros(shape) for shape in results])
        for target, value in zip(targets, kept, strict=True):
            target[0, 0] = value

    def whole(shape: Sequence[int]) -> Any:
        return pl.BlockSpec((1, 1, *shape), lambda a, b: (a, b, *[0] * len(shape)))

    def agents_own(shape: Sequence[int]) -> Any:
        return pl.BlockSpec((1, *shape), lambda a, b: (a, *[0] * len(shape)))

    parts = launch(
        kernel,
        (agents, blocks),
        [
            pl.BlockSpec((1,), lambda a, b: (0,)),
            *(agents_own(a.shape[1:]) for a in numbers),
            *(pl.BlockSpec((n, 1, a.shape[2], TILE), lambda a, b: (0, a, 0, b)) for a in given),
        ],
        [whole(shape) for shape in results],
        [(agents, blocks, *shape) for shape in results],
        [jnp.reshape(chunks, 1).astype(jnp.int32), *numbers, *given],
        interpret,
    )
    totals = []
    for part, equation in zip(parts, sums.sums, strict=True):
        true = equation.outvars[0].aval.shape
        totals.append(jnp.sum(part, axis=1)[(slice(None), *(slice(size) for size in true))])
    return _finished(sums, jax.tree.leaves(shared), totals)


def _finished(sums: Sums, shared: list[jax.Array], totals: list[jax.Array]) -> Any:
    """The results [A, …] from the sums of each agent."""
    jaxpr = sums.jaxpr

    def one(shared: list[jax.Array], totals: list[jax.Array]) -> list[jax.Array]:
        known: dict[Any, Any] = dict(zip(jaxpr.invars, shared, strict=False))
        known.update(zip([equation.outvars[0] for equation in sums.sums], totals, strict=True))
        follow(sums.after, known)
        return [jnp.asarray(value_at(known, atom)) for atom in jaxpr.outvars]

    return jax.tree.unflatten(sums.structure, jax.vmap(one)(shared, totals))


def _side(size: int) -> int:
    """Of a tile, for an axis of so many entries."""
    return TILE if size == LANES else 1 if size == 1 else max(LEAST_SIDE, power_of_two(size))


def _tile_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(_side, shape))


def _padded(a: jax.Array, shape: Sequence[int]) -> jax.Array:
    """[A, …] to tiles, outside the kernel."""
    return jnp.pad(a, [(0, 0), *((0, _side(size) - size) for size in shape)])


def _input_tile(rows: list[jax.Array], shape: Sequence[int]) -> jax.Array:
    """Rows [TILE] as the tile of an array of this shape."""
    tile = _tile_shape(shape)
    if len(tile) == 1:
        return rows[0]
    return lax.broadcast_in_dim(rows[0], tile, (1,)) if tile[0] == 1 else stacked(rows, tile)


def _result_shape(equation: Any) -> tuple[int, ...]:
    return _tile_shape(equation.outvars[0].aval.shape)


def _evaluated(equation: Any, known: dict[Any, Any], interpret: bool, valid: jax.Array | None = None) -> jax.Array:
    """An equation on tiles that are known; `valid` [TILE] says which lanes a sum over lanes takes."""
    tiles = [jnp.asarray(value_at(known, atom)) for atom in equation.invars]
    name, parameters = equation.primitive.name, equation.params
    shapes = [atom.aval.shape for atom in equation.invars]
    made = _result_shape(equation)
    if name in ARITHMETIC or name in FORMULAS:
        formula = FORMULAS.get(name) or (lambda *rows: equation.primitive.bind(*rows, **parameters))
        return formula(*(jnp.broadcast_to(tile, made) for tile in tiles))
    if name in REDUCTIONS:
        reduction, nothing = REDUCTIONS[name]
        return reduction(
            _without_padding(tiles[0], shapes[0], parameters["axes"], nothing, valid), axis=parameters["axes"]
        )
    if name == "dot_general":
        along = [axes[0] for axes in parameters["dimension_numbers"][0]]
        return _product(tiles, shapes, along, made, _precision(parameters["precision"], interpret), valid)
    if name == "iota":
        return lax.broadcasted_iota(parameters["dtype"], made, parameters["dimension"])
    if name == "transpose":
        return jnp.transpose(tiles[0], parameters["permutation"])
    if name == "broadcast_in_dim":
        return lax.broadcast_in_dim(tiles[0], made, parameters["broadcast_dimensions"])
    return tiles[0].reshape(made)  # reshape, squeeze, copy, stop_gradient


def _tanh(x: jax.Array) -> jax.Array:
    """To 2e-7, and to 1e-5 of its value; CUDA's own function has four times the instructions."""
    small = x - x * x * x * (1.0 / 3.0)
    return jnp.where(jnp.abs(x) < 0.02, small, 1.0 - 2.0 / (jnp.exp(2.0 * x) + 1.0))


FORMULAS = {**REWRITTEN, "tanh": _tanh}


def _without_padding(
    tile: jax.Array, shape: Sequence[int], axes: Sequence[int], nothing: float, valid: jax.Array | None = None
) -> jax.Array:
    """The tile with `nothing` where these axes are padded."""
    for axis in axes:
        if shape[axis] == LANES:
            if valid is not None:
                tile = jnp.where(lax.broadcast_in_dim(valid, tile.shape, (axis,)), tile, nothing)
        elif shape[axis] < tile.shape[axis]:
            place = lax.broadcasted_iota(jnp.int32, tile.shape, axis)
            tile = jnp.where(place < shape[axis], tile, nothing)
    return tile


def _product(
    tiles: list[jax.Array],
    shapes: list[tuple[int, ...]],
    along: list[int],
    made: tuple[int, ...],
    precision: Any,
    valid: jax.Array | None,
) -> jax.Array:
    """Two matrices along one axis each. Sides of length 1 are widened, and taken back."""
    wide = []
    for tile, shape, axis in zip(tiles, shapes, along, strict=True):
        full = jnp.broadcast_to(tile, tuple(max(side, LEAST_SIDE) for side in tile.shape))
        wide.append(_without_padding(full, shape, [axis], 0.0, valid))
    if LANES in shapes[0] and LANES not in shapes[1]:  # [L, n], which is about to be transposed: lanes stay last
        result = _dot(wide[::-1], along[::-1], precision).T
    else:
        result = _dot(wide, along, precision)
    for axis, side in enumerate(made):
        if side == 1:
            first = lax.broadcasted_iota(jnp.int32, result.shape, axis) == 0
            result = lax.expand_dims(jnp.sum(jnp.where(first, result, 0.0), axis=axis), (axis,))
    return result


def _dot(tiles: list[jax.Array], along: list[int], precision: Any) -> jax.Array:
    numbers = (((along[0],), (along[1],)), ((), ()))
    return lax.dot_general(tiles[0], tiles[1], numbers, precision=precision)


def _precision(asked: Any, interpret: bool) -> Any:
    """As exact as XLA's products: TF32, or three such products of halves where the equation asks for more."""
    if asked is None or (isinstance(asked, tuple) and lax.Precision.HIGHEST not in asked):
        return None
    return lax.Precision.HIGHEST if interpret else lax.DotAlgorithmPreset.TF32_TF32_F32_X3
