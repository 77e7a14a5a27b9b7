"""The exception for user errors, and how error messages are worded."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Sequence
from pathlib import Path


class UsageError(ValueError):
    """A user error. The message is one line that names the option, its value and what is allowed."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def printable(text: str) -> str:
    """Return a text in which characters that control terminals are replaced by question marks."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


MOST_NAMES = 5  # in a message


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """Return the message for an unknown name: it suggests the nearest known names, or lists all if they are few."""
    near = difflib.get_close_matches(name, known, n=MOST_NAMES, cutoff=0.5)
    if len(known) <= MOST_NAMES and not near:
        return f"{kind}={name!r} is unknown; known: {', '.join(known)}"
    return f"{kind}={name!r} is unknown{did_you_mean(near)}"


def did_you_mean(near: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the names that may have been meant, if there are any."""
    *others, last = map(repr, near or [""])
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if near else ""


def install_command(extra: str) -> str:
    """Return the command that installs an extra: from the same clone, or from an index if that is where we are from."""
    root = Path(__file__).parents[1]
    source = f"-e '{root}[{extra}]'" if (root / "pyproject.toml").exists() else f"'jaxbyz[{extra}]'"
    return f"pip install {source}"


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
