"""The exception for user errors, and how error messages are worded."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection


class UsageError(ValueError):
    """A user error. The message is one line that names the option, its value and what is allowed."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """Return the message for an unknown name: it suggests the nearest known name and lists all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"{kind}={name!r} is unknown;{hint} known: {', '.join(known)}"


def check_value(option: str, value: object, allowed: bool, wording: str) -> None:
    """Refuse a value that is not allowed; `wording` completes the sentence "must be …"."""
    if not allowed:
        raise UsageError(f"{option}={value}: must be {wording}")


def check_choice(option: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that is not one of the known names."""
    if value not in known:
        raise UsageError(unknown(option, value, known))


def check_ending(out: str | os.PathLike[str], *endings: str) -> None:
    """Refuse the name of a file that has none of these endings, in capitals or not."""
    if not os.fspath(out).lower().endswith(endings):
        *others, last = endings
        raise UsageError(f"out={out}: the name must end in {', '.join(others)}{' or ' if others else ''}{last}")
