"""Traced functions of lanes, replayed on tables of rows: what a GPU kernel written with Pallas and Triton can run.

Triton knows rows of lanes but neither indexing nor stacking them. So a function is traced once, with a length for the
lanes that no other axis has, and its equations are replayed on tables: NumPy arrays of objects whose entries are rows
[block], or numbers that all lanes share, with a lane axis of length 1. Indexing, stacking and broadcasting become
NumPy's choice of entries while tracing; only arithmetic on rows is left.
Triton's maximum and minimum of NaN and a number are the number, XLA's are NaN.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

LANES = 1_000_003  # the lanes' length while tracing: no other axis is so long, unless lanes were merged into it
BLOCK = 32  # lanes of one kernel instance: a warp

TYPES = (jnp.float32, jnp.int32, jnp.bool_)  # of what equations may compute with

Table = np.ndarray  # of objects


def table_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if size == LANES else size for size in shape)


def entry_count(shapes: Sequence[Any]) -> int:
    """Entries of tables of these shapes."""
    return sum(math.prod(table_shape(shape.shape)) for shape in shapes)


def as_type(a: jax.Array, dtype: Any) -> jax.Array:
    return a != 0 if jnp.issubdtype(dtype, jnp.bool_) else a.astype(dtype)


def table_of(shape: Sequence[int], entries: Sequence[Any]) -> Table:
    table = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        table[i] = entry
    return table.reshape(table_shape(shape))


def tables_of(shapes: Sequence[Any], entries: Sequence[Any]) -> list[Table]:
    """Floats, or functions that read them, as tables of these shapes and types."""
    rest = iter(entries)

    def typed(entry: Any, dtype: Any) -> Any:
        return (lambda: as_type(entry(), dtype)) if callable(entry) else as_type(entry, dtype)

    return [
        table_of(shape.shape, [typed(next(rest), shape.dtype) for _ in range(entry_count([shape]))]) for shape in shapes
    ]


def value_of(entry: Any) -> Any:
    """The entry's value, from memory if it was left there."""
    return entry() if callable(entry) else entry


def entries_of(tables: Sequence[Table]) -> list:
    return [value_of(entry) for table in tables for entry in table.ravel()]


def live(jaxpr: core.Jaxpr) -> list[Any]:
    """The equations its results need."""
    needed = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, core.Literal))
    return kept[::-1]


def written_out(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Its equations, those of calls included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            yield from written_out(equation.params[_CALLS[equation.primitive.name]].jaxpr)
        else:
            yield equation


def flattened(traced: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The same without calls: what they would compute is written out."""
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in traced.jaxpr.invars]
    return jax.make_jaxpr(lambda *args: called(traced, args))(*shapes)


def called(
    traced: core.ClosedJaxpr, args: Sequence[Any], instead: Mapping[str, Callable] = MappingProxyType({})
) -> list[Any]:
    """Its results for these arguments; see `follow`."""
    jaxpr = traced.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*traced.consts, *args], strict=True))
    follow(jaxpr.eqns, known, instead)
    return [value_at(known, atom) for atom in jaxpr.outvars]


def follow(
    equations: Iterable[Any], known: dict[Any, Any], instead: Mapping[str, Callable] = MappingProxyType({})
) -> None:
    """Add what the equations compute to the known values, as JAX would; instead: functions for primitives by name."""
    for equation in equations:
        given, name = [value_at(known, atom) for atom in equation.invars], equation.primitive.name
        if name in _CALLS:
            made = called(equation.params[_CALLS[name]], given, instead)
        elif name in instead:
            made = [instead[name](*given)]
        else:
            made = equation.primitive.bind(*given, **equation.params)
            made = made if equation.primitive.multiple_results else [made]
        known.update(zip(equation.outvars, made, strict=True))


def value_at(known: dict[Any, Any], atom: Any) -> Any:
    """What a variable or a written-out number of an equation stands for."""
    return atom.val if isinstance(atom, core.Literal) else known[atom]


def one_agent(shared: Any) -> Any:
    """Shapes [A, …] without their agents."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), shared)


def laned(tree: Any, leading: int) -> Any:
    """Shapes [*leading, …, M] as a function of one agent is traced with: […, LANES]."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((*a.shape[leading:-1], LANES), a.dtype), tree)


def replayable(traced: core.ClosedJaxpr) -> bool:
    """Whether a kernel can run this: it keeps lanes apart, and asks for nothing that Triton does not have."""
    if any(isinstance(const, jax.core.Tracer) or LANES in np.shape(const) for const in traced.consts):
        return False
    return all(_replayable(equation) for equation in live(traced.jaxpr))


def _replayable(equation: Any) -> bool:
    name, parameters = equation.primitive.name, equation.params
    if name in _CALLS:
        return replayable(parameters[_CALLS[name]])
    given, made = ([atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars))
    shapes = [value.shape for value in (*given, *made)]
    if any(shape.count(LANES) > 1 or any(size > LANES for size in shape) for shape in shapes):
        return False
    if any(LANES in value.shape for value in given) and not all(LANES in value.shape for value in made):
        return False  # over all lanes, or for one of them
    if name == "iota":
        return LANES not in parameters["shape"]
    if name == "reshape" and _before_lanes(shapes[0]) != _before_lanes(shapes[1]):
        return False
    if not all(value.dtype in TYPES for value in (*given, *made)):
        return False
    if name in ("max", "min", "reduce_max", "reduce_min") and made[0].dtype == jnp.bool_:
        return False
    if name == "round":  # halves go another way
        return False
    others = ("dot_general", "unstack")
    return any(name in known for known in (ARITHMETIC, REWRITTEN, _FOLDS, _STRUCTURE, others))


def _before_lanes(shape: Sequence[int]) -> int:
    """Numbers in front of the lanes' axis; a reshape that keeps it keeps the lanes together."""
    return math.prod(shape[: shape.index(LANES)]) if LANES in shape else -1


class Replay:
    """Evaluates traced equations on tables whose rows have `block` lanes."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.control = {"while": self._while, "scan": self._scan, "cond": self._cond}

    def run(self, traced: core.ClosedJaxpr, args: Sequence[Table]) -> list[Table]:
        """The traced function's results."""
        jaxpr = traced.jaxpr
        consts = [table_of(np.shape(const), list(np.ravel(const))) for const in traced.consts]
        known: dict[Any, Table] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Table:
            return table_of((), [atom.val]) if isinstance(atom, core.Literal) else known[atom]

        for equation in live(jaxpr):
            outputs = self._equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [self._laned(read(atom), atom.aval.shape) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Table]) -> list[Table]:
        name, parameters = equation.primitive.name, equation.params
        shape = equation.outvars[0].aval.shape
        if name in _CALLS:
            return self.run(parameters[_CALLS[name]], inputs)
        if name in self.control:
            return self.control[name](parameters, inputs)
        if name == "unstack":
            axis = parameters["axis"]
            return [inputs[0].take([i], axis).squeeze(axis) for i in range(inputs[0].shape[axis])]
        if name in _FOLDS:
            return [_reduced(name, inputs[0], parameters["axes"], equation.invars[0].aval.shape)]
        if name == "dot_general":
            return [_product(parameters["dimension_numbers"], *inputs)]
        if name in _STRUCTURE:
            return [self._laned(_STRUCTURE[name](parameters, inputs, table_shape(shape)), shape)]
        if name in REWRITTEN:
            return [self._each(REWRITTEN[name], inputs, shape)]
        if name == "select_n" and equation.invars[0].aval.dtype != jnp.bool_:  # Triton selects by truth values
            return [self._each(_selected, inputs, shape)]
        if name == "select_n" and LANES not in shape:
            # Triton takes written-out numbers here for truth values: choose lane by lane
            return [self._each(lambda *v: jnp.max(lax.select_n(*map(self._spread, v))), inputs, shape)]
        return [self._each(lambda *rows: equation.primitive.bind(*rows, **parameters), inputs, shape)]

    def _each(self, formula: Callable, inputs: list[Table], shape: tuple[int, ...]) -> Table:
        """A formula entry by entry."""
        here = table_shape(shape)
        tables = [self._laned(np.broadcast_to(table, here), shape).ravel() for table in inputs]
        return table_of(shape, [_value(formula, *map(value_of, entries)) for entries in zip(*tables, strict=True)])

    def _laned(self, table: Table, shape: Sequence[int]) -> Table:
        """With a row where there is a number that all lanes share, if the array has lanes."""
        if LANES not in shape:
            return table
        rows: dict[int, jax.Array] = {id(entry): self._spread(entry) for entry in table.ravel()}
        return table_of(shape, [rows[id(entry)] for entry in table.ravel()])

    def _spread(self, value: Any) -> jax.Array:
        value = jnp.asarray(value_of(value))
        return value if value.shape else jnp.full((self.block,), value)

    def _while(self, parameters: dict, inputs: list[Table]) -> list[Table]:
        ask, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        asked, used = parameters["cond_nconsts"], parameters["body_nconsts"]
        for_ask, for_body, start = inputs[:asked], inputs[asked : asked + used], inputs[asked + used :]
        end = lax.while_loop(
            lambda carry: self.run(ask, for_ask + _shaped(carry, start))[0].item(),
            lambda carry: _arrays(self.run(body, for_body + _shaped(carry, start))),
            _arrays(start),
        )
        return _shaped(end, start)

    def _scan(self, parameters: dict, inputs: list[Table]) -> list[Table]:
        """A `fori_loop` of fixed length: a scan that carries only."""
        body = parameters["jaxpr"]
        fixed = len(inputs) - len(body.jaxpr.outvars)
        start = inputs[fixed:]

        def once(_: jax.Array, carry: list) -> list:
            return _arrays(self.run(body, inputs[:fixed] + _shaped(carry, start)))

        return _shaped(lax.fori_loop(0, parameters["length"], once, _arrays(start)), start)

    def _cond(self, parameters: dict, inputs: list[Table]) -> list[Table]:
        index, *operands = inputs
        results: list[Table] = []

        def branch(traced: core.ClosedJaxpr) -> list:
            results[:] = self.run(traced, operands)
            return _arrays(results)

        branches = [functools.partial(branch, traced) for traced in parameters["branches"]]
        return _shaped(lax.switch(index.item(), branches), results)


def _value(formula: Callable, *entries: Any) -> Any:
    """Of constants at once: Triton's rules want what is computed, not what is written down."""
    if any(isinstance(entry, jax.core.Tracer) for entry in entries):
        return formula(*entries)
    with jax.ensure_compile_time_eval():
        return np.asarray(formula(*entries))[()]


def _selected(which: jax.Array, *cases: jax.Array) -> jax.Array:
    return functools.reduce(lambda out, k: jnp.where(which == k, cases[k], out), range(1, len(cases)), cases[0])


def _arrays(tables: Sequence[Table]) -> list[jax.Array]:
    """All entries, for loops and branches to carry."""
    return [jnp.asarray(entry) for entry in entries_of(tables)]


def _shaped(entries: Sequence[Any], like: Sequence[Table]) -> list[Table]:
    """The way back."""
    rest = iter(entries)
    return [table_of(table.shape, [next(rest) for _ in range(table.size)]) for table in like]


_FOLDS: dict[str, tuple[Callable, Callable]] = {  # over entries, and over the lanes of a row
    "reduce_and": (operator.and_, lambda row: jnp.min(row.astype(jnp.int32)) != 0),
    "reduce_or": (operator.or_, lambda row: jnp.max(row.astype(jnp.int32)) != 0),
    "reduce_max": (jnp.maximum, jnp.max),
    "reduce_min": (jnp.minimum, jnp.min),
    "reduce_sum": (operator.add, jnp.sum),
}


def _reduced(name: str, table: Table, axes: tuple[int, ...], shape: tuple[int, ...]) -> Table:
    over_entries, over_lanes = _FOLDS[name]
    kept = [axis for axis in range(table.ndim) if axis not in axes]
    groups = table.transpose(*kept, *axes).reshape(math.prod(table.shape[axis] for axis in kept), -1)
    entries = [functools.reduce(over_entries, map(value_of, group)) for group in groups]
    if any(shape[axis] == LANES for axis in axes):
        entries = [over_lanes(entry) for entry in entries]
    return table_of([table.shape[axis] for axis in kept], entries)


def _product(numbers: Any, left: Table, right: Table) -> Table:
    """`dot_general`: a batch, then what is left of the one, then what is left of the other."""
    (left_sum, right_sum), (left_batch, right_batch) = numbers

    def arranged(table: Table, batch: Sequence[int], summed: Sequence[int]) -> tuple[list[int], Table]:
        free = [axis for axis in range(table.ndim) if axis not in (*batch, *summed)]
        size = math.prod(table.shape[axis] for axis in batch)
        count = math.prod(table.shape[axis] for axis in summed)
        return [table.shape[axis] for axis in free], table.transpose(*batch, *free, *summed).reshape(size, -1, count)

    left_free, a = arranged(left, left_batch, left_sum)
    right_free, b = arranged(right, right_batch, right_sum)
    entries = [
        functools.reduce(operator.add, [value_of(x) * value_of(y) for x, y in zip(row, column, strict=True)])
        for rows, columns in zip(a, b, strict=True)
        for row in rows
        for column in columns
    ]
    return table_of([*(left.shape[axis] for axis in left_batch), *left_free, *right_free], entries)


def _broadcast(parameters: dict, inputs: list[Table], shape: tuple[int, ...]) -> Table:
    between = [1] * len(shape)
    for size, axis in zip(inputs[0].shape, parameters["broadcast_dimensions"], strict=True):
        between[axis] = size
    return np.broadcast_to(inputs[0].reshape(between), shape)


def _slice(parameters: dict, inputs: list[Table], shape: tuple[int, ...]) -> Table:
    steps = parameters["strides"] or [1] * len(shape)
    ends = zip(parameters["start_indices"], parameters["limit_indices"], steps, strict=True)
    return inputs[0][tuple(slice(*end) for end in ends)]


def _iota(parameters: dict, _: list[Table], shape: tuple[int, ...]) -> Table:
    between = [1] * len(shape)
    between[parameters["dimension"]] = -1
    numbers = np.arange(shape[parameters["dimension"]]).astype(parameters["dtype"])
    return np.broadcast_to(table_of(numbers.shape, list(numbers)).reshape(between), shape)


_STRUCTURE: dict[str, Callable[[dict, list[Table], tuple[int, ...]], Table]] = {
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


REWRITTEN: dict[str, Callable] = {  # what Triton has no name for
    "add_any": operator.add,
    "one_minus_square": lambda row: 1.0 - row * row,
    "round": lambda row: jnp.floor(row + 0.5),  # to the nearest, however halves go
}
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
ARITHMETIC = frozenset({
    "abs", "add", "and", "atan2", "ceil", "clamp", "convert_element_type", "cos", "div", "eq", "exp", "expm1", "floor",
    "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "pow", "rem", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "sin", "sqrt", "square",
    "sub", "tan", "tanh", "xor",
})  # fmt: skip
