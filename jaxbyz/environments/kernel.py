"""A function over lanes as one GPU kernel.

On a GPU, XLA makes a small kernel of every few formulas and of every pass of a loop, and a physics solver of 180 sweeps
becomes a chain of a thousand launches. `one_kernel` runs the whole function inside one kernel instead: a block of lanes
stays in registers from the first formula to the last, and loops and branches are taken by each block on its own.

Triton, which Pallas compiles such kernels with, knows rows of lanes but neither indexing nor stacking them. So the
function is traced once, and its equations are replayed with every array [..., L] taken apart into rows [L]: indexing,
stacking and broadcasting become a choice of rows made while tracing, and only arithmetic on rows is left.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

BLOCK = 32  # lanes of one kernel instance: a warp


class Rows(NamedTuple):
    """An array [*shape, L] as its rows, each [L], in C order."""

    shape: tuple[int, ...]
    items: list[jax.Array]


Value = Any  # Rows, or a number that all lanes share


def one_kernel(function: Callable, *args: Any, interpret: bool = False) -> Any:
    """function(*args) in one kernel. Arrays are [L, ...]; the function sees [..., BLOCK] and may not mix lanes.

    It may ask for all, any or the extreme of its lanes to decide on a branch or a loop. Integers must be below 2²⁴:
    everything travels as one array of floats, since Triton's compile time grows with the number of loads and stores
    times the square of the program's length. `interpret` runs it without a GPU, for tests.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    given, structure = jax.tree.flatten(args)
    shapes = [jax.ShapeDtypeStruct((*a.shape[1:], BLOCK), a.dtype) for a in given]

    def flat(*leaves: jax.Array) -> Any:
        return function(*jax.tree.unflatten(structure, leaves))

    traced, result = jax.make_jaxpr(flat, return_shape=True)(*shapes)
    results, result_structure = jax.tree.flatten(result)
    lanes, inputs, outputs = given[0].shape[0], _count(shapes), _count(results)
    tile = pl.next_power_of_2(max(inputs, outputs)), BLOCK
    # One column more than whole blocks: with an odd stride Triton gives every lane a thread, not four lanes to each.
    spare = (0, -lanes % BLOCK + 1), (0, tile[0] - inputs)
    table = jnp.pad(jnp.concatenate([a.reshape(lanes, -1).astype(jnp.float32) for a in given], axis=1), spare).T

    def kernel(source: Any, target: Any) -> None:
        number = lax.broadcasted_iota(jnp.int32, tile, 0)
        here = source[...]
        rows = iter([jnp.sum(jnp.where(number == i, here, 0.0), axis=0) for i in range(inputs)])
        values: list[Value] = [
            Rows(shape.shape[:-1], [_typed(next(rows), shape.dtype) for _ in range(_count([shape]))])
            for shape in shapes
        ]
        there = jnp.zeros(tile, jnp.float32)
        for i, row in enumerate(_flat(_replay(traced.jaxpr, traced.consts, values))):
            there = jnp.where(number == i, row.astype(jnp.float32)[None], there)
        target[...] = there

    block = pl.BlockSpec(tile, lambda i: (0, i))
    varying = {"vma": jax.typeof(table).vma} if hasattr(jax.typeof(table), "vma") else {}
    stored = pl.pallas_call(
        kernel,
        grid=(table.shape[1] // BLOCK,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(table.shape, jnp.float32, **varying),
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
    )(table).T
    parts, first = [], 0
    for shape in results:
        after = first + _count([shape])
        parts.append(_typed(stored[:lanes, first:after].reshape(lanes, *shape.shape[:-1]), shape.dtype))
        first = after
    return jax.tree.unflatten(result_structure, parts)


def _count(shapes: list[Any]) -> int:
    """Numbers of one lane."""
    return sum(math.prod(shape.shape[:-1]) for shape in shapes)


def _typed(a: jax.Array, dtype: Any) -> jax.Array:
    return a != 0 if jnp.issubdtype(dtype, jnp.bool_) else a.astype(dtype)


def _rows(value: Value, shape: tuple[int, ...]) -> Rows:
    """The value as so many rows: axes of size 1 and shared numbers are repeated."""
    if isinstance(value, Rows):
        return _chosen(value, lambda index: np.broadcast_to(index, shape))
    return Rows(shape, [_spread(value)] * math.prod(shape))


def _spread(value: Any) -> jax.Array:
    value = jnp.asarray(value)
    return value if value.shape else jnp.full((BLOCK,), value)


def _chosen(value: Rows, choose: Callable[[np.ndarray], np.ndarray]) -> Rows:
    """Indexing, reshaping and the like: done to the rows' numbers, then to the rows."""
    index = choose(np.arange(len(value.items)).reshape(value.shape))
    return Rows(index.shape, [value.items[i] for i in index.ravel()])


def _replay(jaxpr: core.Jaxpr, consts: list[Any], args: list[Value]) -> list[Value]:
    """Evaluate equations on rows."""
    known: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Value:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        outputs = _equation(equation, inputs)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, inputs: list[Value]) -> list[Value]:
    name, parameters = equation.primitive.name, equation.params
    shape = equation.outvars[0].aval.shape
    if name in _CONTROL:
        return _CONTROL[name](parameters, inputs)
    if name.startswith("reduce_"):
        return [_reduced(name, inputs[0], parameters["axes"])]
    if name == "unstack":
        return _unstacked(parameters["axis"], inputs[0])
    if name in _STRUCTURE:
        return [_STRUCTURE[name](parameters, inputs, shape[:-1])]
    if name == "select_n" and not shape:  # Triton takes written-out numbers here for truth values: choose lane by lane
        return [jnp.max(lax.select_n(*(_spread(value) for value in inputs)))]
    if name == "round":  # to the nearest, however halves go
        return [_each(lambda row: jnp.floor(row + 0.5), inputs, shape)]
    return [_each(lambda *rows: equation.primitive.bind(*rows, **parameters), inputs, shape)]


def _each(formula: Callable, inputs: list[Value], shape: tuple[int, ...]) -> Value:
    """A formula on numbers that all lanes share, or row by row."""
    if not shape:
        return formula(*inputs)
    laned = [_rows(value, shape[:-1]).items for value in inputs]
    return Rows(shape[:-1], [formula(*rows) for rows in zip(*laned, strict=True)])


_FOLDS: dict[str, tuple[Callable, Callable]] = {  # over rows, and over the lanes of a row
    "reduce_and": (operator.and_, lambda row: jnp.min(row.astype(jnp.int32)) != 0),
    "reduce_or": (operator.or_, lambda row: jnp.max(row.astype(jnp.int32)) != 0),
    "reduce_max": (jnp.maximum, jnp.max),
    "reduce_min": (jnp.minimum, jnp.min),
    "reduce_sum": (operator.add, jnp.sum),
}


def _reduced(name: str, value: Rows, axes: tuple[int, ...]) -> Value:
    over_rows, over_lanes = _FOLDS[name]
    leading = [axis for axis in axes if axis < len(value.shape)]
    kept = [axis for axis in range(len(value.shape)) if axis not in leading]
    index = np.arange(len(value.items)).reshape(value.shape).transpose(*kept, *leading)
    shape = tuple(value.shape[axis] for axis in kept)
    groups = index.reshape(math.prod(shape), -1)
    rows = [functools.reduce(over_rows, [value.items[i] for i in group]) for group in groups]
    return Rows(shape, rows) if len(leading) == len(axes) else over_lanes(rows[0])


def _broadcast(parameters: dict, inputs: list[Value], shape: tuple[int, ...]) -> Rows:
    value = inputs[0]
    if not isinstance(value, Rows):
        return _rows(value, shape)
    between = [1] * len(shape)
    for size, axis in zip(value.shape, parameters["broadcast_dimensions"][:-1], strict=True):
        between[axis] = size
    return _chosen(value, lambda index: np.broadcast_to(index.reshape(between), shape))


def _slice(parameters: dict, inputs: list[Value], shape: tuple[int, ...]) -> Rows:
    steps = parameters["strides"] or [1] * (len(shape) + 1)
    parts = [slice(*ends) for ends in zip(parameters["start_indices"], parameters["limit_indices"], steps, strict=True)]
    return _chosen(inputs[0], lambda index: index[tuple(parts[:-1])])


def _joined(parameters: dict, inputs: list[Value], shape: tuple[int, ...]) -> Rows:
    """`stack` and `concatenate` along a leading axis."""
    stacked = "axis" in parameters
    axis = parameters["axis" if stacked else "dimension"]
    first, parts, items = 0, [], []
    for value in inputs:
        parts.append(first + np.arange(len(value.items)).reshape(value.shape))
        items += value.items
        first += len(value.items)
    index = np.stack(parts, axis) if stacked else np.concatenate(parts, axis)
    return Rows(shape, [items[i] for i in index.ravel()])


def _unstacked(axis: int, value: Rows) -> list[Value]:
    return [_chosen(value, functools.partial(np.take, indices=i, axis=axis)) for i in range(value.shape[axis])]


_STRUCTURE: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "squeeze": lambda _, inputs, shape: _chosen(inputs[0], lambda index: index.reshape(shape)),
    "reshape": lambda _, inputs, shape: _chosen(inputs[0], lambda index: index.reshape(shape)),
    "stack": _joined,
    "concatenate": _joined,
}


def _called(parameters: dict, inputs: list[Value]) -> list[Value]:
    inner = parameters["jaxpr"]
    return _replay(inner.jaxpr, inner.consts, inputs)


def _opened(values: list[Value]) -> tuple[list, Callable[[Any], list[Value]]]:
    """Values as a flat list of arrays, for loops and branches to carry, and the way back."""
    shapes = [value.shape if isinstance(value, Rows) else None for value in values]

    def closed(flat: Any) -> list[Value]:
        rest = iter(flat)
        return [
            next(rest) if shape is None else Rows(shape, [next(rest) for _ in range(math.prod(shape))])
            for shape in shapes
        ]

    return _flat(values), closed


def _flat(values: list[Value]) -> list:
    return [item for value in values for item in (value.items if isinstance(value, Rows) else [jnp.asarray(value)])]


def _while(parameters: dict, inputs: list[Value]) -> list[Value]:
    ask, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    asked, used = parameters["cond_nconsts"], parameters["body_nconsts"]
    for_ask, for_body, start = inputs[:asked], inputs[asked : asked + used], inputs[asked + used :]
    flat, closed = _opened(start)
    end = lax.while_loop(
        lambda carry: _replay(ask.jaxpr, ask.consts, for_ask + closed(carry))[0],
        lambda carry: _flat(_replay(body.jaxpr, body.consts, for_body + closed(carry))),
        flat,
    )
    return closed(end)


def _scan(parameters: dict, inputs: list[Value]) -> list[Value]:
    """A `fori_loop` of fixed length: a scan that carries only."""
    body = parameters["jaxpr"]
    fixed = len(inputs) - len(body.jaxpr.outvars)
    flat, closed = _opened(inputs[fixed:])
    end = lax.fori_loop(
        0,
        parameters["length"],
        lambda _, carry: _flat(_replay(body.jaxpr, body.consts, inputs[:fixed] + closed(carry))),
        flat,
    )
    return closed(end)


def _cond(parameters: dict, inputs: list[Value]) -> list[Value]:
    index, *operands = inputs
    closed: Callable[[Any], list[Value]]

    def branch(jaxpr: core.ClosedJaxpr) -> list:
        nonlocal closed
        flat, closed = _opened(_replay(jaxpr.jaxpr, jaxpr.consts, operands))
        return flat

    flat = lax.switch(index, [functools.partial(branch, jaxpr) for jaxpr in parameters["branches"]])
    return closed(flat)


_CONTROL: dict[str, Callable] = {"jit": _called, "pjit": _called, "while": _while, "scan": _scan, "cond": _cond}
