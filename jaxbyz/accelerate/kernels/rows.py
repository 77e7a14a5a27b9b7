"""An interpreter of jaxprs that works on rows of lanes, as Triton kernels need it.

Inside a kernel, Triton computes with whole rows of lanes, but it cannot index or stack them. So an array `[…, lanes]`
is represented by a *table*: a NumPy array of objects, of the same shape except for a lane axis of length 1, whose
entries are rows `[block]`, or single numbers that all lanes share. Indexing, stacking and broadcasting then become
NumPy operations on tables while the kernel is traced, and only arithmetic on rows remains for Triton.

One difference: the maximum and minimum of NaN and a number are the number in Triton, and NaN in XLA.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jaxbyz.accelerate.jaxprs import CALLS, needed_equations

# Functions are traced with this many lanes. The lane axis is recognised by this length, which no other axis has.
TRACED_LANES = 1_000_003

Table = np.ndarray  # of objects


def table_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the table that represents an array."""
    return tuple(1 if size == TRACED_LANES else size for size in shape)


def count_entries(shapes: Sequence[Any]) -> int:
    """Return the number of entries of the tables that represent arrays of these shapes."""
    return sum(math.prod(table_shape(shape.shape)) for shape in shapes)


def cast(a: jax.Array, dtype: Any) -> jax.Array:
    """Convert a float to the given type."""
    return a != 0 if jnp.issubdtype(dtype, jnp.bool_) else a.astype(dtype)


def make_table(shape: Sequence[int], entries: Sequence[Any]) -> Table:
    """Make a table of its entries."""
    table = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        table[i] = entry
    return table.reshape(table_shape(shape))


def make_tables(shapes: Sequence[Any], entries: Sequence[Any]) -> list[Table]:
    """Build tables from a flat list of float entries, cast to each shape's type."""
    remaining = iter(entries)
    return [
        make_table(shape.shape, [cast(next(remaining), shape.dtype) for _ in range(count_entries([shape]))])
        for shape in shapes
    ]


def entries_of(tables: Sequence[Table]) -> list:
    """Return all entries of some tables: the inverse of `make_tables`."""
    return [entry for table in tables for entry in table.ravel()]


class RowInterpreter:
    """Evaluates jaxprs on tables whose rows have `block` lanes."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.control_flow = {"while": self._while, "scan": self._fori_loop, "cond": self._cond}

    def run(self, traced: core.ClosedJaxpr, args: Sequence[Table]) -> list[Table]:
        """Return the results of the traced function."""
        jaxpr = traced.jaxpr
        consts = [make_table(np.shape(const), list(np.ravel(const))) for const in traced.consts]
        known: dict[Any, Table] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Table:
            return make_table((), [atom.val]) if isinstance(atom, core.Literal) else known[atom]

        for equation in needed_equations(jaxpr):
            outputs = self._equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [self._with_rows(read(atom), atom.aval.shape) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Table]) -> list[Table]:
        name, parameters = equation.primitive.name, equation.params
        shape = equation.outvars[0].aval.shape
        if name in CALLS:
            return self.run(parameters[CALLS[name]], inputs)
        if name in self.control_flow:
            return self.control_flow[name](parameters, inputs)
        if name == "unstack":
            axis = parameters["axis"]
            return [inputs[0].take([i], axis).squeeze(axis) for i in range(inputs[0].shape[axis])]
        if name in _REDUCTIONS:
            return [_reduce(name, inputs[0], parameters["axes"], equation.invars[0].aval.shape)]
        if name == "dot_general":
            return [_matrix_product(parameters["dimension_numbers"][0], *inputs)]
        if name in _REARRANGEMENTS:
            return [self._with_rows(_REARRANGEMENTS[name](parameters, inputs, table_shape(shape)), shape)]
        if name == "round":  # Triton has none; this differs from `jnp.round` at halves
            return [self._element_wise(lambda x: jnp.floor(x + 0.5), inputs, shape)]
        if name == "select_n" and TRACED_LANES not in shape:
            # Triton mistakes constants for booleans here, so select in a row of equal numbers.
            return [self._element_wise(lambda *v: jnp.max(lax.select_n(*map(self._row, v))), inputs, shape)]
        return [self._element_wise(lambda *rows: equation.primitive.bind(*rows, **parameters), inputs, shape)]

    def _element_wise(self, formula: Callable, inputs: list[Table], shape: tuple[int, ...]) -> Table:
        """Apply a formula to corresponding entries."""
        target = table_shape(shape)
        tables = [self._with_rows(np.broadcast_to(table, target), shape).ravel() for table in inputs]
        return make_table(shape, [_apply(formula, *entries) for entries in zip(*tables, strict=True)])

    def _with_rows(self, table: Table, shape: Sequence[int]) -> Table:
        """Replace numbers that all lanes share by rows, if the array has a lane axis."""
        if TRACED_LANES not in shape:
            return table
        rows: dict[int, jax.Array] = {id(entry): self._row(entry) for entry in table.ravel()}
        return make_table(shape, [rows[id(entry)] for entry in table.ravel()])

    def _row(self, entry: Any) -> jax.Array:
        value = jnp.asarray(entry)
        return value if value.shape else jnp.full((self.block,), value)

    def _while(self, parameters: dict, inputs: list[Table]) -> list[Table]:
        condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        split = parameters["cond_nconsts"], parameters["cond_nconsts"] + parameters["body_nconsts"]
        condition_consts, body_consts, start = inputs[: split[0]], inputs[split[0] : split[1]], inputs[split[1] :]
        end = lax.while_loop(
            lambda carry: self.run(condition, condition_consts + _unflatten(carry, start))[0].item(),
            lambda carry: _flatten(self.run(body, body_consts + _unflatten(carry, start))),
            _flatten(start),
        )
        return _unflatten(end, start)

    def _fori_loop(self, parameters: dict, inputs: list[Table]) -> list[Table]:
        """Run a scan without inputs and outputs per iteration, as `lax.fori_loop` makes it."""
        body = parameters["jaxpr"]
        consts = len(inputs) - len(body.jaxpr.outvars)
        start = inputs[consts:]

        def iteration(_: jax.Array, carry: list) -> list:
            return _flatten(self.run(body, inputs[:consts] + _unflatten(carry, start)))

        return _unflatten(lax.fori_loop(0, parameters["length"], iteration, _flatten(start)), start)

    def _cond(self, parameters: dict, inputs: list[Table]) -> list[Table]:
        index, *operands = inputs
        results: list[Table] = []

        def branch(traced: core.ClosedJaxpr) -> list:
            results[:] = self.run(traced, operands)
            return _flatten(results)

        branches = [functools.partial(branch, traced) for traced in parameters["branches"]]
        return _unflatten(lax.switch(index.item(), branches), results)


def _apply(formula: Callable, *entries: Any) -> Any:
    """Evaluate constants now, because Triton's lowering rules only accept traced values."""
    if any(isinstance(entry, jax.core.Tracer) for entry in entries):
        return formula(*entries)
    with jax.ensure_compile_time_eval():
        return np.asarray(formula(*entries))[()]


def _flatten(tables: Sequence[Table]) -> list[jax.Array]:
    """Return all entries as arrays, for loops and branches to carry."""
    return [jnp.asarray(entry) for entry in entries_of(tables)]


def _unflatten(entries: Sequence[Any], like: Sequence[Table]) -> list[Table]:
    """Inverse of `_flatten`."""
    remaining = iter(entries)
    return [make_table(table.shape, [next(remaining) for _ in range(table.size)]) for table in like]


_REDUCTIONS: dict[str, tuple[Callable, Callable]] = {  # of two entries, and of the lanes of a row
    "reduce_and": (operator.and_, lambda row: jnp.min(row.astype(jnp.int32)) != 0),
    "reduce_or": (operator.or_, lambda row: jnp.max(row.astype(jnp.int32)) != 0),
    "reduce_max": (jnp.maximum, jnp.max),
    "reduce_min": (jnp.minimum, jnp.min),
    "reduce_sum": (operator.add, jnp.sum),
}


def _reduce(name: str, table: Table, axes: tuple[int, ...], shape: tuple[int, ...]) -> Table:
    of_two_entries, of_a_row = _REDUCTIONS[name]
    kept = [axis for axis in range(table.ndim) if axis not in axes]
    groups = table.transpose(*kept, *axes).reshape(math.prod(table.shape[axis] for axis in kept), -1)
    entries = [functools.reduce(of_two_entries, group) for group in groups]
    if any(shape[axis] == TRACED_LANES for axis in axes):
        entries = [of_a_row(entry) for entry in entries]
    return make_table([table.shape[axis] for axis in kept], entries)


def _matrix_product(contracted: Any, left: Table, right: Table) -> Table:
    a, b = (np.moveaxis(table, axes[0], 1) for table, axes in zip((left, right), contracted, strict=True))
    entries = [
        functools.reduce(operator.add, [x * y for x, y in zip(row, column, strict=True)]) for row in a for column in b
    ]
    return make_table([len(a), len(b)], entries)


def _broadcast(parameters: dict, inputs: list[Table], shape: tuple[int, ...]) -> Table:
    aligned = [1] * len(shape)
    for size, axis in zip(inputs[0].shape, parameters["broadcast_dimensions"], strict=True):
        aligned[axis] = size
    return np.broadcast_to(inputs[0].reshape(aligned), shape)


def _slice(parameters: dict, inputs: list[Table], shape: tuple[int, ...]) -> Table:
    strides = parameters["strides"] or [1] * len(shape)
    bounds = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
    return inputs[0][tuple(slice(*bound) for bound in bounds)]


def _iota(parameters: dict, _: list[Table], shape: tuple[int, ...]) -> Table:
    aligned = [1] * len(shape)
    aligned[parameters["dimension"]] = -1
    numbers = np.arange(shape[parameters["dimension"]]).astype(parameters["dtype"])
    return np.broadcast_to(make_table(numbers.shape, list(numbers)).reshape(aligned), shape)


_REARRANGEMENTS: dict[str, Callable[[dict, list[Table], tuple[int, ...]], Table]] = {
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "iota": _iota,
    "copy": lambda _, inputs, shape: inputs[0],
    "stop_gradient": lambda _, inputs, shape: inputs[0],
    "squeeze": lambda _, inputs, shape: inputs[0].reshape(shape),
    "reshape": lambda _, inputs, shape: inputs[0].reshape(shape),
    "transpose": lambda parameters, inputs, _: inputs[0].transpose(parameters["permutation"]),
    "stack": lambda parameters, inputs, _: np.stack(inputs, parameters["axis"]),
    "concatenate": lambda parameters, inputs, _: np.concatenate(inputs, parameters["dimension"]),
}
