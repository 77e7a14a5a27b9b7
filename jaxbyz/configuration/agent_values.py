"""Options that assign values to names: how Python values and files become the text that `Config` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxbyz.errors import UsageError

ASSIGNING = ("env_param", "env_spread")
PER_AGENT = "env_agents"


def as_text(name: str, value: Any) -> Any:
    """Return an option that may be a table or a file as the text that `Config` holds; other values stay.

    The contents of a file become the value, so that a run folder does not depend on the file.

    Raises:
        UsageError: if a file cannot be read.
    """
    if name in ASSIGNING and isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if name != PER_AGENT:
        return value
    if isinstance(value, Mapping):
        return json.dumps({key: _plain(item) for key, item in value.items()})
    if isinstance(value, Path) or (isinstance(value, str) and value and not value.lstrip().startswith(("{", "["))):
        try:
            value = Path(value).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name}={str(value)!r}: the file cannot be read ({error})") from error
    return json.dumps(values_per_agent(value)) if isinstance(value, str) and value.strip() else value


def values_per_agent(text: str) -> dict[str, list[Any]]:
    """Return the values per agent that a JSON text holds: `{"gravity": [9.1, 9.8]}` or one object per agent.

    Raises:
        UsageError: if the text is neither.
    """
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{PER_AGENT}={text[:60]!r}: not JSON ({error})") from error
    if isinstance(values, list) and values and all(isinstance(item, dict) for item in values):
        if any(item.keys() != values[0].keys() for item in values):
            raise UsageError(f"{PER_AGENT}: every agent must have the same parameters")
        values = {key: [item[key] for item in values] for key in values[0]}
    if not isinstance(values, dict) or not all(isinstance(item, list) for item in values.values()):
        raise UsageError(f'{PER_AGENT}={text[:60]!r}: must be like {{"gravity": [9.1, 9.8]}}, one value per agent')
    return values


def _plain(values: Any) -> Any:
    """Return an array or sequence as nested lists."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
