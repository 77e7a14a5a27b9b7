"""Names for components: one registry a kind, with a line of description, a limit on f, and nearest-name errors."""

from __future__ import annotations

import difflib
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Collection, Iterator
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple


class UsageError(ValueError):
    """A mistake of the user's: one line that names the option, the value and what is allowed."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """What to say of a name that is not one of the known ones: the nearest, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"{kind}={name!r} is unknown;{hint} known: {', '.join(known)}"


class Entry(NamedTuple):
    """factory: builds the component from keyword options, among them `agents` and `byzantine` if it takes them.
    limit: the rule stands while f < limit·K; None when there is no limit to enforce."""

    name: str
    factory: Callable[..., Any]
    summary: str
    limit: Fraction | None = None

    def most(self, agents: int) -> int:
        """The largest f with f < limit·K."""
        if self.limit is None:
            return agents - 1
        bound = self.limit * agents
        return max(0, int(bound) - (bound.denominator == 1))

    def build(self, agents: int, byzantine: int, /, **options: Any) -> Any:
        """Call the factory with what it takes of `agents` and `byzantine`, and with the options given; an option
        `byzantine` lets a rule defend against another number than the run's."""
        known = inspect.signature(self.factory).parameters
        for option in options:
            if option not in known or option == "agents":
                allowed = ", ".join(p for p in known if p not in ("agents", "byzantine")) or "none"
                raise UsageError(f"{self.name}: unknown option {option!r}; options: {allowed}")
        hints = option_types(self.factory)
        options = {name: typed(f"{self.name}: {name}", hints.get(name, Any), value) for name, value in options.items()}
        if "byzantine" in options and not 0 <= (f := options["byzantine"]) < agents:
            raise UsageError(f"{self.name}: byzantine={f} of agents={agents}: between 0 and {agents - 1}")
        given = {"agents": agents, "byzantine": byzantine}
        try:
            return self.factory(**{k: v for k, v in given.items() if k in known and k not in options}, **options)
        except UsageError:
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(f"{self.name}: {error}") from error


def option_types(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a factory's arguments, those of what a partial wraps; none where they cannot be found out."""
    while isinstance(factory, partial):
        factory = factory.func
    try:
        return typing.get_type_hints(factory)
    except (NameError, TypeError):
        return {}


def typed(name: str, hint: Any, value: Any) -> Any:
    """The value in the type its option has, or a one-line error; a list of sizes becomes a tuple."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind, number = kinds[0], isinstance(value, numbers.Real) and not isinstance(value, bool)
    if number and _beyond_floats(value):
        raise UsageError(f"{name}: the number is too large")
    if kind not in WANTED and typing.get_origin(kind) is not tuple:
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind in (int, float) and number and (kind is float or float(value).is_integer()):
        return kind(value)
    if kind is str and isinstance(value, int) and not isinstance(value, bool):  # kappa=4
        return str(value)
    sizes = value if isinstance(value, list | tuple) else [None]
    if typing.get_origin(kind) is tuple and all(type(size) is not bool and isinstance(size, int) for size in sizes):
        return tuple(sizes)
    raise UsageError(f"{name}={str(value)[:60]!r} is not {WANTED.get(kind, 'a list of sizes like [16, 16]')}")


def _beyond_floats(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return True
    return False


WANTED = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class Registry:
    """A table of components of one kind, by lowercase-with-dashes name.

    revision counts what was added to any table, for caches of what was built by name.
    """

    revision = 0

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def add(
        self,
        name: str,
        factory: Callable[..., Any],
        summary: str | None = None,
        limit: Fraction | None = None,
    ) -> None:
        """Register a component; the summary defaults to the first line of the factory's docstring."""
        line = (summary or inspect.getdoc(factory) or name).strip().splitlines()[0]
        self._entries[name] = Entry(name, factory, line, limit)
        Registry.revision += 1

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise UsageError(unknown(self.kind, name, self._entries))
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def names(self) -> list[str]:
        return list(self._entries)


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """`name` or `name:option=value,option=value` -> (name, options); numbers and booleans are recognised."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UsageError(f"{text!r}: options are written name:option=value,option=value")
        options[key.strip().replace("-", "_")] = _literal(value.strip())
    return name.strip(), options


def _literal(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
