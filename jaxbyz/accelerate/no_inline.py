"""Functions that XLA calls on a CPU instead of inlining them.

On a CPU, XLA fuses a value into each of its consumers and computes it again in every one. In long chains of small
element-wise formulas, such as a physics solver, that multiplies both run time and compile time. The results of a
function that is not inlined are stored instead.

This relies on `jax.experimental.xla_metadata`, an internal of JAX that sets the attribute `inlineable` of calls.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import xla_metadata

from jaxbyz.accelerate.platform import on_cpu

P = ParamSpec("P")
R = TypeVar("R")


def not_inlined(function: Callable[P, R], static_argnames: tuple[str, ...] = ()) -> Callable[P, R]:
    """Decorate a function of arrays so that XLA calls it on a CPU instead of inlining it.

    On other platforms the function is unchanged, because GPUs fuse without computing values repeatedly.
    """
    return _called(function, static_argnames, {"inlineable": "false"})


def one_compiled_function(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of arrays so that XLA on a CPU compiles all of it, with its loops, into one function.

    Otherwise XLA runs a program as a list of small functions, each with a cost of about half a microsecond. The results
    of formulas are stored as with `not_inlined`. Such a function uses one core.

    XLA gets the arguments as one array per type, because it aborts if such a function has an argument that it does not
    use.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not on_cpu():
            return function(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        like = [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]

        def of_vectors(vectors: dict[str, jax.Array]) -> R:
            given = dict(vectors)
            parts = []
            for one in like:
                part, given[str(one.dtype)] = jnp.split(given[str(one.dtype)], [one.size])
                parts.append(part.reshape(one.shape))
            args, kwargs = jax.tree.unflatten(structure, parts)
            return function(*args, **kwargs)

        attributes = {"inlineable": "false", "xla_cpu_small_call": "true"}
        return _called(of_vectors, (), attributes)(_joined(leaves))

    return call


def _joined(leaves: list[Any]) -> dict[str, jax.Array]:
    """Return all elements of arrays as one vector per type."""
    groups: dict[str, list[jax.Array]] = {}
    for leaf in leaves:
        groups.setdefault(str(jnp.result_type(leaf)), []).append(jnp.ravel(leaf))
    return {dtype: jnp.concatenate(group) for dtype, group in groups.items()}


def _called(function: Callable[P, R], static_argnames: tuple[str, ...], attributes: dict[str, str]) -> Callable[P, R]:
    """Make XLA call a function on a CPU, with the given attributes of the call."""
    # Calls inside, as of jnp.where, are inlined. They must say so: where `vmap` traces the function again, equations
    # without attributes of their own take those of the call.
    inside = {name: "true" if value == "false" else "false" for name, value in attributes.items()}

    @functools.wraps(function)
    def body(*args: P.args, **kwargs: P.kwargs) -> R:
        with xla_metadata.set_xla_metadata(**inside):
            return function(*args, **kwargs)

    compiled = jax.jit(body, static_argnames=static_argnames)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not on_cpu():
            return function(*args, **kwargs)
        with xla_metadata.set_xla_metadata(**attributes):
            return compiled(*args, **kwargs)

    return call


def stored(tree: Any) -> Any:
    """Return the same values; on a CPU, XLA computes them once and stores them instead of once per consumer."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    if arrays:
        for i, value in zip(arrays, _identity(*(leaves[i] for i in arrays)), strict=True):
            leaves[i] = value
    return jax.tree.unflatten(structure, leaves)


@not_inlined
def _identity(*values: jax.Array) -> tuple[jax.Array, ...]:
    return values


@not_inlined
def stored_rows(array: jax.Array) -> tuple[jax.Array, ...]:
    """Return the rows `[L]` of an array `[…, L]`, in order.

    On a CPU, XLA compiles a function for every slice that is an argument of a call. Arrays with the same number of rows
    share these functions, and what is computed with their rows.
    """
    return tuple(array.reshape(-1, array.shape[-1]))
