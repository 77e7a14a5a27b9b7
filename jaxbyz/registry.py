"""Names for components: one registry a kind, with a line of description, a limit on f, and nearest-name errors."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple


class UsageError(ValueError):
    """A mistake of the user's: one line that names the option, the value and what is allowed."""


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

    def build(self, agents: int, byzantine: int, **options: Any) -> Any:
        """Call the factory with what it takes of `agents` and `byzantine`, and with the options given."""
        known = inspect.signature(self.factory).parameters
        for option in options:
            if option not in known:
                allowed = ", ".join(p for p in known if p not in ("agents", "byzantine")) or "none"
                raise UsageError(f"{self.name}: unknown option {option!r}; options: {allowed}")
        given = {"agents": agents, "byzantine": byzantine}
        try:
            return self.factory(**{k: v for k, v in given.items() if k in known and k not in options}, **options)
        except TypeError as error:
            raise UsageError(f"{self.name}: {error}") from error


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
            near = difflib.get_close_matches(name, self._entries, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{self.kind}={name!r} is unknown{hint} known: {', '.join(self._entries)}")
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
