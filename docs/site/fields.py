"""Docstrings of this project list fields as `name: meaning` lines; the site shows them as lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

# `name: meaning`, `name, other:  meaning`, `name [K, D]: meaning`; what follows, indented or not, goes on with it.
FIELD = re.compile(r"^(?P<names>[\w`, ]+?(?: \[[^\]]*\])?(?: \([^)]*\))?): +(?P<meaning>\S.*)$")


def as_list(text: str) -> str:
    """A paragraph that begins with a field becomes a list of fields; others stay as they are."""
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", text)))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if not FIELD.match(lines[0]) or sum(bool(FIELD.match(line)) for line in lines) < 2:
        return text
    items: list[str] = []
    for line in lines:
        found = FIELD.match(line)
        if found:
            items.append(f"- `{found['names']}`: {found['meaning']}")
        else:
            items[-1] += " " + line.strip()
    return "\n".join(items)


class Fields(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
