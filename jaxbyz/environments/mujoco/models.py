"""The seven models of gymnasium's planar MuJoCo tasks, version 5, from the numbers in `models.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from jaxbyz.environments.mujoco.bodies import Model


def _as(kind: Any, value: Any) -> Any:
    """Return a value of the file as the type that a field of `bodies` has."""
    if get_origin(kind) is UnionType:  # an optional value
        kind = get_args(kind)[0]
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(**{name: _as(hints[name], part) for name, part in value.items()})
    if get_origin(kind) is tuple:
        items = value.values() if isinstance(value, dict) else value  # limbs have names in the file
        return tuple(_as(get_args(kind)[0], item) for item in items)
    return value


def _read_models() -> dict[str, Model]:
    tables = tomllib.loads(Path(__file__).with_name("models.toml").read_text())
    return {name: _as(Model, {"name": name, **table}) for name, table in tables.items()}


MODELS = _read_models()
