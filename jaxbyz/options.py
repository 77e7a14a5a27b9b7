"""Options: each is declared once, as a field of a record in the file of its idea, with its help text and its limits.

    @dataclass(frozen=True, kw_only=True)
    class Delay:
        delay: int = option(0, "gradients arrive up to this many exchanges late", allowed=NOT_NEGATIVE)

The Python API, the command line, sweep files and run folders all read these declarations, and `check_options` is the
only place that applies them. Records are combined by inheritance: `jaxbyz.configuration.config.Config` is all of them.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Collection
from dataclasses import field
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz.errors import UsageError, check_choice
from jaxbyz.registry import Registry, convert, parse_assignments

MAX_TEXT = 1000
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Allowed(NamedTuple):
    """Which values an option may have.

    Attributes:
        test: whether a value is allowed.
        wording: completes the sentence "must be …" of the error message.
    """

    test: Callable[[Any], bool]
    wording: str


class Need(NamedTuple):
    """A condition under which an option is read. If a condition does not hold, the option has no effect.

    Attributes:
        test: `(configuration, traits of its algorithm) -> bool`.
        otherwise: completes the sentence "… has no effect: …"; `{name}` stands for the value of an option.
    """

    test: Callable[[Any, Any], bool]
    otherwise: str


def option(
    default: Any,
    help: str,
    *,
    allowed: Allowed | None = None,
    choices: Collection[str] = (),
    registry: Registry | None = None,
    needs: Collection[Need] = (),
) -> Any:
    """Return a dataclass field that describes one option.

    Args:
        default: the general default; presets override it.
        help: one line for the command line and the documentation.
        allowed: the condition that a value must satisfy.
        choices: the names that a text may be.
        registry: the table that a component's name must be in.
        needs: the conditions under which the option is read; otherwise it has no effect, and the user is told.
    """
    described = {"help": help, "allowed": allowed, "choices": tuple(choices), "registry": registry}
    return field(default=default, metadata={**described, "needs": tuple(needs)})


def check_options(record: Any) -> None:
    """Refuse values that the declaration of an option does not allow.

    Raises:
        UsageError: one line that names the option, its value and what is allowed.
    """
    kinds = _types_of(record.__class__)
    for declared in dataclasses.fields(record):
        _check_option(declared, kinds[declared.name], getattr(record, declared.name))


@cache
def _types_of(record: type) -> dict[str, Any]:
    """Return the types that a record declares for its options."""
    return typing.get_type_hints(record)


def _check_option(declared: Any, kind: Any, value: Any) -> None:
    if isinstance(value, jax.core.Tracer):
        return  # an input of the program that is being traced, whose values were checked before
    name, rule, optional = declared.name, declared.metadata, declared.default is None
    may_be_object = Any in (kind, *typing.get_args(kind))
    if not may_be_object:
        convert(name, kind, value)
    if isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_TEXT):
        raise UsageError(f"{name}={value[:60]!a}: must be printable text of at most {MAX_TEXT} characters")
    if optional and value is None:
        return
    if rule["choices"] and (isinstance(value, str) or not may_be_object):
        check_choice(name, str(value), rule["choices"])
    if rule["allowed"] is None or rule["allowed"].test(value):
        return
    shown = repr(value[:60]) if isinstance(value, str) else str(value).replace(" ", "").strip("(,)")
    raise UsageError(f"{name}={shown}: must be {rule['allowed'].wording}{', or None' if optional else ''}")


def _assigns(text: str, allowed: Callable[[Any], bool]) -> bool:
    """Return whether a text assigns allowed values to names, or is empty."""
    try:
        return all(map(allowed, parse_assignments(text).values()))
    except UsageError:
        return False


COUNT = Allowed(lambda n: n >= 1, "at least 1")
NOT_NEGATIVE = Allowed(lambda n: n >= 0, "at least 0")
BELOW_1 = Allowed(lambda x: 0 <= x < 1, "in [0, 1)")
UNIT_INTERVAL = Allowed(lambda x: 0 < x <= 1, "in (0, 1]")
FROM_0_TO_1 = Allowed(lambda x: 0 <= x <= 1, "in [0, 1]")
POSITIVE = Allowed(lambda x: 0 < x <= FLOAT32_MAX, "a positive float32 number")
FINITE = Allowed(lambda x: abs(x) <= FLOAT32_MAX, "a finite float32 number")
WIDTHS = Allowed(lambda widths: len(widths) > 0 and min(widths) >= 1, "one or more layer sizes of at least 1")
ASSIGNMENTS = Allowed(lambda text: _assigns(text, lambda value: True), "name=value,name=value")
SPREADS = Allowed(
    lambda text: _assigns(text, lambda s: type(s) in (int, float) and 0 <= s < math.inf),
    "name=spread,name=spread with spreads of at least 0",
)


def reads(name: str) -> Need:
    """The algorithm reads the option of this name."""
    return Need(lambda config, traits: name not in traits.ignores, "{algorithm} does not read it")
