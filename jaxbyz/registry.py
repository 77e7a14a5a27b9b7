"""Tables of named components: each entry has a factory, a summary, a limit on f, and options."""

from __future__ import annotations

import inspect
import numbers
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from jaxbyz.errors import UsageError, unknown

FILE_OPTION, FILE_ENDING = "file", ".npz"  # an option of this name names a file, whose contents may change
OWN = " (`jaxbyz list` names all; a component of your own must be registered first, with `--import FILE`)"
TYPE_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def largest_below(limit: Fraction, agents: int) -> int:
    """Return the largest whole number f with f < limit·K."""
    bound = limit * agents
    return max(0, int(bound) - (bound.denominator == 1))


class Entry(NamedTuple):
    """A registered component.

    Attributes:
        name: its name, in lowercase with dashes.
        factory: builds the component from keyword options, among them `agents` and `byzantine` if it takes them.
        summary: one line for lists and help texts.
        limit: the component tolerates f < limit·K; None if there is no limit.
        traits: other facts about the component, of a type that its kind defines.
        read_if: options that are read only if another option has a certain value: option -> (other option, value).
    """

    name: str
    factory: Callable[..., Any]
    summary: str
    limit: Fraction | None = None
    traits: Any = None
    read_if: Mapping[str, tuple[str, Any]] = types.MappingProxyType({})

    def most(self, agents: int) -> int:
        """Return the largest number of Byzantine agents that the component tolerates."""
        return agents - 1 if self.limit is None else largest_below(self.limit, agents)

    def takes(self, part: str) -> bool:
        """Return whether the factory has an argument of this name, or takes all keyword arguments."""
        parameters = inspect.signature(self.factory).parameters
        return part in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def not_read(self, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield each of these options that is not read, and why."""
        for option, (other, value) in self.read_if.items():
            default = inspect.signature(self.factory).parameters[other].default
            if option in options and (chosen := options.get(other, default)) != value:
                yield option, f"{other}={chosen} does not read it, only {other}={value} does"

    def build(self, agents: int, byzantine: int, /, **options: Any) -> Any:
        """Call the factory with the options, and with `agents` and `byzantine` if it takes them.

        An option `byzantine` lets a rule defend against a different number from the run's.

        Raises:
            UsageError: if an option is unknown or its value does not fit.
        """
        options = self.convert_options(options, ("agents",))
        if "byzantine" in options and not 0 <= (f := options["byzantine"]) < agents:
            raise UsageError(f"{self.name}: byzantine={f} of agents={agents}: must be between 0 and {agents - 1}")
        return self.call({"agents": agents, "byzantine": byzantine}, options)

    def convert_options(self, options: dict[str, Any], reserved: Collection[str] = ()) -> dict[str, Any]:
        """Return the options as the types that the factory declares; those in `reserved` are not for users.

        Raises:
            UsageError: if an option is unknown or its value does not fit.
        """
        parameters = inspect.signature(self.factory).parameters
        for option in options:
            if option not in parameters or option in reserved:
                allowed = ", ".join(p for p in parameters if p not in (*reserved, "byzantine")) or "none"
                raise UsageError(f"{self.name}: unknown option {option!r}; options: {allowed}")
        hints = option_types(self.factory)
        converted = {}
        for name, value in options.items():
            hint = hints.get(name, Any)
            if typing.get_origin(hint) is tuple and type(value) is int:
                value = (value,)  # `channels=16` is a list with one number
            converted[name] = convert(f"{self.name}: {name}", hint, value)
        return converted

    def call(self, offered: dict[str, Any], options: dict[str, Any]) -> Any:
        """Call the factory with the options, and with those of the offered values that it takes.

        Raises:
            UsageError: if the factory refuses a value.
        """
        parameters = inspect.signature(self.factory).parameters
        given = {k: v for k, v in offered.items() if k in parameters and k not in options}
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = [k for k, p in parameters.items() if p.default is p.empty and p.kind not in variable]
        if missing := [k for k in needed if k not in given and k not in options]:
            raise UsageError(
                f"{self.name}: {missing[0]} is missing; what is registered must be a function of its options that "
                "returns the component"
            )
        try:
            return self.factory(**given, **options)
        except UsageError:
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(f"{self.name}: {error}") from error


class Registry:
    """A table of components of one kind, by name.

    Attributes:
        kind: what the components are, for error messages.
        hint: what to add to the error message about an unknown name.
        revision: counts all additions to all tables, so that caches of built components can notice them.
        imported: the files and modules that `--import` named, which may have added to any table; a run folder records
            them, because the run cannot be repeated without them.
    """

    revision = 0
    imported: tuple[str, ...] = ()

    def __init__(self, kind: str, hint: Callable[[str], str] = lambda name: ""):
        self.kind, self.hint = kind, hint
        self._entries: dict[str, Entry] = {}

    def add(
        self,
        name: str,
        factory: Callable[..., Any],
        summary: str | None = None,
        limit: Fraction | None = None,
        traits: Any = None,
        read_if: Mapping[str, tuple[str, Any]] = types.MappingProxyType({}),
    ) -> None:
        """Register a component. The summary defaults to the first line of the factory's docstring."""
        line = (summary or inspect.getdoc(factory) or name).strip().splitlines()[0]
        self._entries[name] = Entry(name, factory, line, limit, traits, read_if)
        Registry.revision += 1

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise UsageError(unknown(self.kind, name, self._entries) + self.hint(name) + OWN)
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def parse(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the names in the value of an option, `name:option=value+…`, and their options."""
        return [parse_spec(part) for part in text.split("+")]

    def files(self, text: str) -> list[str]:
        """Return the files that the components in the value of an option read, by their option `file`."""
        return [str(given[FILE_OPTION]) for _, given in self.parse(text) if given.get(FILE_OPTION) is not None]

    def names(self) -> list[str]:
        """Return all names in the order in which they were added."""
        return list(self._entries)


def import_options(sources: Iterable[str]) -> list[str]:
    """Return the options of the command line that import these files and modules."""
    return [word for source in sources for word in ("--import", source)]


def option_types(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the type annotations of a factory's arguments, or an empty table if they cannot be evaluated."""
    while isinstance(factory, partial):
        factory = factory.func
    try:
        return typing.get_type_hints(factory)
    except (NameError, TypeError):
        return {}


def convert(name: str, hint: Any, value: Any) -> Any:
    """Return a value as the annotated type of its option.

    Whole numbers are accepted for float and string options, and a list of whole numbers for a tuple.

    Raises:
        UsageError: if the value does not fit; the message begins with `name`.
    """
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind = kinds[0]
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        is_whole = is_number and float(value).is_integer()
    except OverflowError:
        raise UsageError(f"{name}: the number is too large") from None
    if kind not in TYPE_NAMES and typing.get_origin(kind) is not tuple:
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind in (int, float) and is_number and (kind is float or is_whole):
        return kind(value)
    if kind is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    sizes = value if isinstance(value, list | tuple) else [None]
    if typing.get_origin(kind) is tuple and all(type(size) is not bool and isinstance(size, int) for size in sizes):
        return tuple(sizes)
    raise UsageError(
        f"{name}={str(value)[:60]!r} is not {TYPE_NAMES.get(kind, 'a list of whole numbers like [16, 16]')}"
    )


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Split `name:option=value,option=value` into the name and its options.

    Numbers, booleans and lists of whole numbers such as `16x32` are recognised. `name:folder/file.npz` is short for
    `name:file=folder/file.npz`.
    """
    name, _, rest = text.partition(":")
    if "=" not in rest and rest.endswith(FILE_ENDING):
        return name.strip(), {FILE_OPTION: rest}
    try:
        return name.strip(), parse_assignments(rest, dashes=True)
    except UsageError:
        raise UsageError(f"{text!r}: options are written name:option=value,option=value") from None


def parse_assignments(text: str, *, dashes: bool = False) -> dict[str, Any]:
    """Return the table that `name=value,name=value` spells; numbers and booleans are recognised.

    Args:
        text: what to parse; an empty text is an empty table.
        dashes: whether dashes in names stand for underscores.

    Raises:
        UsageError: if a part is not an assignment.
    """
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UsageError(f"{text!r}: must be name=value,name=value")
        sizes = value.strip().split("x")
        is_list = len(sizes) > 1 and all(size.isascii() and size.isdigit() for size in sizes)
        literal = tuple(map(int, sizes)) if is_list else parse_literal(value.strip())
        values[key.strip().replace("-", "_") if dashes else key.strip()] = literal
    return values


def parse_literal(text: str) -> Any:
    """Return the number, boolean or None that a text spells, or else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
