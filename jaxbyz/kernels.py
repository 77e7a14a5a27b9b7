"""Functions over lanes as one GPU kernel.

On a GPU, XLA makes a small kernel of every few formulas and of every pass of a loop: a physics solver of 180 sweeps
becomes a chain of a thousand launches, and an episode one of many launches a step. Here the whole function runs inside
one kernel: a block of lanes stays in registers from the first formula to the last, and loops and branches are taken by
each block on its own. `one_kernel` runs a function once, `scan_kernel` a number of steps of many agents.

Triton, which Pallas compiles such kernels with, knows rows of lanes but neither indexing nor stacking them. So the
function is traced once, with a length for the lanes that no other axis has, and its equations are replayed on tables:
NumPy arrays of objects whose entries are rows [block], or numbers that all lanes share, with a lane axis of length 1.
Indexing, stacking and broadcasting become NumPy's choice of entries while tracing; only arithmetic on rows is left.
Triton's maximum and minimum of NaN and a number are the number, XLA's are NaN.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

LANES = 1_000_003  # the lanes' length while tracing: no other axis is so long, unless lanes were merged into it
BLOCK = 32  # lanes of one kernel instance: a warp

TYPES = (jnp.float32, jnp.int32, jnp.bool_)  # of what `scan_kernel` takes

Table = np.ndarray  # of objects


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
    lanes, inputs, outputs = given[0].shape[0], _count(shapes), _count(results)
    height = pl.next_power_of_2(max(inputs, outputs))
    # One column more than whole blocks: with an odd stride Triton gives every lane a thread, not four lanes to each.
    spare = (0, -lanes % BLOCK + 1), (0, height - inputs)
    table = jnp.pad(jnp.concatenate([a.reshape(lanes, -1).astype(jnp.float32) for a in given], axis=1), spare).T

    def kernel(source: Any, target: Any) -> None:
        rows = _rows(source[...], inputs)
        target[...] = _tile(_flat(Replay(BLOCK).run(traced, _tables(shapes, rows))), height, BLOCK)

    block = pl.BlockSpec((height, BLOCK), lambda i: (0, i))
    stored = _launch(kernel, (table.shape[1] // BLOCK,), [block], [block], [table.shape], [table], interpret)[0].T
    parts, first = [], 0
    for shape in results:
        after = first + _count([shape])
        parts.append(_typed(stored[:lanes, first:after].reshape(lanes, *shape.shape[:-1]), shape.dtype))
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

    def shape(a: jax.Array, leading: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*a.shape[leading:-1], LANES), a.dtype)

    ours = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), shared)
    lanes = jax.tree.map(lambda a: shape(a, 1), carry)
    given = jax.tree.map(lambda a: shape(a, 2), inputs)
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
    counts = [_count(shapes) for shapes in (scan.carry, scan.inputs, scan.outputs)]
    held, drawn, told = [pl.next_power_of_2(count) for count in counts]

    def padded(arrays: Sequence[jax.Array], leading: int, height: int) -> jax.Array:
        rows = pack(arrays, leading)
        return jnp.pad(rows, [(0, 0)] * leading + [(0, height - rows.shape[-2]), (0, width - lanes)])

    def unpadded(table: jax.Array, shapes: list[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        return unpack(table[..., :lanes], [(shape.shape[:-1], shape.dtype) for shape in shapes])

    def kernel(numbers: Any, start: Any, source: Any, end: Any, target: Any) -> None:
        # Numbers are read where they are used: all of an agent's at once would not fit into registers.
        mine = _tables(scan.shared, [functools.partial(lambda n: numbers[0, n], n) for n in range(_count(scan.shared))])

        def one(i: jax.Array, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            here = _tables(scan.inputs, _rows(source[i, 0, :, :], counts[1]))
            results = Replay(BLOCK).run(
                scan.jaxpr, [*mine, *_tables(scan.carry, rows), *here, _table((), [i.astype(jnp.int32)])]
            )
            values = [row.astype(jnp.float32) for row in _flat(results)]
            target[i, 0, :, :] = _tile(values[counts[0] :], told, BLOCK)
            return tuple(values[: counts[0]])

        rows = lax.fori_loop(0, length, one, tuple(_rows(start[0, :, :], counts[0])))
        end[0, :, :] = _tile(rows, held, BLOCK)

    def in_time(height: int) -> Any:
        return pl.BlockSpec((length, 1, height, BLOCK), lambda a, b: (0, a, 0, b))

    # A power of two: then the place of a number within an agent's is a constant of the instruction that reads it.
    constants = jnp.concatenate([a.reshape(agents, -1).astype(jnp.float32) for a in jax.tree.leaves(shared)], axis=1)
    constants = jnp.pad(constants, [(0, 0), (0, pl.next_power_of_2(constants.shape[1]) - constants.shape[1])])
    state = pl.BlockSpec((1, held, BLOCK), lambda a, b: (a, 0, b))
    end, target = _launch(
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
        arrays.append(_typed(table[..., first:after, :].reshape(*table.shape[:-2], *shape, table.shape[-1]), dtype))
        first = after
    return arrays


def _rows(tile: jax.Array, count: int) -> list[jax.Array]:
    """The first rows of a tile [height, block]: Triton has no indexing of what is in registers."""
    number = lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return [jnp.sum(jnp.where(number == i, tile, 0.0), axis=0) for i in range(count)]


def _tile(rows: Sequence[jax.Array], height: int, block: int) -> jax.Array:
    """The way back: one store, since each costs Triton's compiler another look at the whole program."""
    number = lax.broadcasted_iota(jnp.int32, (height, block), 0)
    tile = jnp.zeros((height, block), jnp.float32)
    for i, row in enumerate(rows):
        tile = jnp.where(number == i, row.astype(jnp.float32)[None], tile)
    return tile


def _launch(
    kernel: Callable,
    grid: tuple[int, ...],
    in_specs: list,
    out_specs: list,
    shapes: list[tuple[int, ...]],
    tables: list[jax.Array],
    interpret: bool,
) -> list[jax.Array]:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    kinds = [jax.typeof(table) for table in tables]
    varying = {"vma": frozenset().union(*(kind.vma for kind in kinds))} if hasattr(kinds[0], "vma") else {}
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32, **varying) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
    )(*tables)


def _table_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if size == LANES else size for size in shape)


def _count(shapes: Sequence[Any]) -> int:
    """Entries of tables of these shapes."""
    return sum(math.prod(_table_shape(shape.shape)) for shape in shapes)


def _typed(a: jax.Array, dtype: Any) -> jax.Array:
    return a != 0 if jnp.issubdtype(dtype, jnp.bool_) else a.astype(dtype)


def _table(shape: Sequence[int], entries: Sequence[Any]) -> Table:
    table = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        table[i] = entry
    return table.reshape(_table_shape(shape))


def _tables(shapes: Sequence[Any], entries: Sequence[Any]) -> list[Table]:
    """Floats, or functions that read them, as tables of these shapes and types."""
    rest = iter(entries)

    def typed(entry: Any, dtype: Any) -> Any:
        return (lambda: _typed(entry(), dtype)) if callable(entry) else _typed(entry, dtype)

    return [_table(shape.shape, [typed(next(rest), shape.dtype) for _ in range(_count([shape]))]) for shape in shapes]


def _read(entry: Any) -> Any:
    """The entry's value, from memory if it was left there."""
    return entry() if callable(entry) else entry


def _flat(tables: Sequence[Table]) -> list:
    return [_read(entry) for table in tables for entry in table.ravel()]


def _live(jaxpr: core.Jaxpr) -> list[Any]:
    """The equations its results need."""
    needed = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, core.Literal))
    return kept[::-1]


def replayable(traced: core.ClosedJaxpr) -> bool:
    """Whether a kernel can run this: it keeps lanes apart, and asks for nothing that Triton does not have."""
    if any(isinstance(const, jax.core.Tracer) or LANES in np.shape(const) for const in traced.consts):
        return False
    return all(_replayable(equation) for equation in _live(traced.jaxpr))


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
    return name in _ARITHMETIC or name in _FOLDS or name in _STRUCTURE or name in ("dot_general", "unstack")


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
        consts = [_table(np.shape(const), list(np.ravel(const))) for const in traced.consts]
        known: dict[Any, Table] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Table:
            return _table((), [atom.val]) if isinstance(atom, core.Literal) else known[atom]

        for equation in _live(jaxpr):
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
            return [self._laned(_STRUCTURE[name](parameters, inputs, _table_shape(shape)), shape)]
        if name == "round":  # to the nearest, however halves go
            return [self._each(lambda row: jnp.floor(row + 0.5), inputs, shape)]
        if name == "select_n" and equation.invars[0].aval.dtype != jnp.bool_:  # Triton selects by truth values
            return [self._each(_selected, inputs, shape)]
        if name == "select_n" and LANES not in shape:
            # Triton takes written-out numbers here for truth values: choose lane by lane
            return [self._each(lambda *v: jnp.max(lax.select_n(*map(self._spread, v))), inputs, shape)]
        return [self._each(lambda *rows: equation.primitive.bind(*rows, **parameters), inputs, shape)]

    def _each(self, formula: Callable, inputs: list[Table], shape: tuple[int, ...]) -> Table:
        """A formula entry by entry."""
        here = _table_shape(shape)
        tables = [self._laned(np.broadcast_to(table, here), shape).ravel() for table in inputs]
        return _table(shape, [_value(formula, *map(_read, entries)) for entries in zip(*tables, strict=True)])

    def _laned(self, table: Table, shape: Sequence[int]) -> Table:
        """With a row where there is a number that all lanes share, if the array has lanes."""
        if LANES not in shape:
            return table
        rows: dict[int, jax.Array] = {id(entry): self._spread(entry) for entry in table.ravel()}
        return _table(shape, [rows[id(entry)] for entry in table.ravel()])

    def _spread(self, value: Any) -> jax.Array:
        value = jnp.asarray(_read(value))
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
    return [jnp.asarray(entry) for entry in _flat(tables)]


def _shaped(entries: Sequence[Any], like: Sequence[Table]) -> list[Table]:
    """The way back."""
    rest = iter(entries)
    return [_table(table.shape, [next(rest) for _ in range(table.size)]) for table in like]


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
    entries = [functools.reduce(over_entries, map(_read, group)) for group in groups]
    if any(shape[axis] == LANES for axis in axes):
        entries = [over_lanes(entry) for entry in entries]
    return _table([table.shape[axis] for axis in kept], entries)


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
        functools.reduce(operator.add, [_read(x) * _read(y) for x, y in zip(row, column, strict=True)])
        for rows, columns in zip(a, b, strict=True)
        for row in rows
        for column in columns
    ]
    return _table([*(left.shape[axis] for axis in left_batch), *left_free, *right_free], entries)


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
    return np.broadcast_to(_table(numbers.shape, list(numbers)).reshape(between), shape)


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
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
_ARITHMETIC = frozenset({
    "abs", "add", "and", "atan2", "ceil", "clamp", "convert_element_type", "cos", "div", "eq", "exp", "expm1", "floor",
    "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "pow", "rem", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "sin", "sqrt", "square",
    "sub", "tan", "tanh", "xor",
})  # fmt: skip
