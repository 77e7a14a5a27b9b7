"""Tools for jaxprs, the lists of equations that JAX makes of a function when it traces it.

Jaxprs are not a stable interface of JAX. This module and `kernels` are tested with JAX 0.10 (CPU) and 0.11 (GPU).
`pyproject.toml` also allows 0.8.1 to 0.9, which are not tested, and excludes 0.12 and later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax.extend import core

# Primitives that call another jaxpr, and the parameter that holds it.
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def needed_equations(jaxpr: core.Jaxpr) -> list[Any]:
    """Return the equations that the results depend on."""
    needed = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, core.Literal))
    return kept[::-1]


def flat_equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Yield all equations, with those of the called jaxprs in place of the calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in CALLS:
            yield from flat_equations(equation.params[CALLS[equation.primitive.name]].jaxpr)
        else:
            yield equation


def evaluate_jaxpr(
    traced: core.ClosedJaxpr, args: Sequence[Any], replacements: Mapping[str, Callable] = MappingProxyType({})
) -> list[Any]:
    """Return the results of a jaxpr; `replacements` are functions to use instead of primitives, by primitive name."""
    jaxpr = traced.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*traced.consts, *args], strict=True))

    def value_of(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs, name = [value_of(atom) for atom in equation.invars], equation.primitive.name
        if name in CALLS:
            outputs = evaluate_jaxpr(equation.params[CALLS[name]], inputs, replacements)
        elif name in replacements:
            outputs = [replacements[name](*inputs)]
        else:
            outputs = equation.primitive.bind(*inputs, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        known.update(zip(equation.outvars, outputs, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]
