"""Command-line options made from the fields of `Config`: one place holds names, help and defaults."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Callable
from typing import Any

from jaxbyz.experiments.config import FIELDS, Config, resolve
from jaxbyz.experiments.presets import PRESETS


def widths(text: str) -> tuple[int, ...]:
    """`16,16` -> (16, 16)."""
    return tuple(int(part) for part in text.split(",") if part)


def _converter(annotation: Any) -> Callable[[str], Any]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner = next(part for part in typing.get_args(annotation) if part is not type(None))
        return lambda text: None if text.lower() == "none" else inner(text)
    return widths if typing.get_origin(annotation) is tuple else annotation


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """--preset and an option for every field of Config; unset ones come from the preset."""
    parser.add_argument("--preset", help=f"numbers to start from: {', '.join(PRESETS)} (default: by environment)")
    annotations = typing.get_type_hints(Config)
    for name, field in FIELDS.items():
        flag = "--" + name.replace("_", "-")
        help_text = field.metadata["help"]
        if annotations[name] is bool:
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=help_text)
            continue
        shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        convert = _named(_converter(annotations[name]), name)
        help_text = f"{help_text} (default {shown})"
        parser.add_argument(flag, type=convert, default=argparse.SUPPRESS, metavar="…", help=help_text)


def _named(convert: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """argparse prints the converter's name when a value does not fit."""

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            kind = getattr(convert, "__name__", "number")
            kinds = {"int": "a whole number", "float": "a number", "widths": "a list of sizes like 16,16"}
            wanted = kinds.get(kind, "a number or none")
            raise argparse.ArgumentTypeError(f"{name}={text!r} is not {wanted}") from None

    return converted


def options_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `Config` on the command line; `none` is a value, too."""
    return {name: value for name, value in vars(arguments).items() if name in FIELDS}


def config_from(arguments: argparse.Namespace) -> Config:
    """The configuration the options describe."""
    return resolve(arguments.preset, **options_given(arguments))
