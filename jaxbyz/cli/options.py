"""Command-line options made from the fields of `Config`, which hold their names, help texts and defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from jaxbyz.experiments.agent_values import ASSIGNING
from jaxbyz.experiments.config import FIELDS, TYPES, Config, resolve
from jaxbyz.experiments.presets import DEFAULT_PRESET, PRESETS
from jaxbyz.experiments.start_policy import with_task_of_start
from jaxbyz.registry import parse_literal

NAMED_METAVARS = {"kappa": "ROUNDS", "env_agents": "FILE", **dict.fromkeys(ASSIGNING, "NAME=VALUE")}
METAVARS = {int: "INT", float: "FLOAT", int | None: "INT", float | None: "FLOAT", tuple[int, ...]: "SIZES"}


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add --preset and one option per field of `Config`; options that are not given come from the preset."""
    own = " and ".join(DEFAULT_PRESET)
    group = parser.add_argument_group(
        "experiment",
        f"Defaults are those of the preset `default`; a preset overrides them ({own} have their own).",
    )
    group.add_argument(
        "--preset", metavar="NAME", help=f"values to start from: {', '.join(PRESETS)} (default: by environment)"
    )
    for name, field in FIELDS.items():
        flag, help_text = "--" + name.replace("_", "-"), field.metadata["help"].replace("%", "%%")
        if TYPES[name] is bool:
            group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=help_text)
            continue
        if field.metadata["choices"]:
            help_text += f" [{', '.join(field.metadata['choices'])}]"
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        group.add_argument(
            flag, type=_parser_of(TYPES[name]), default=argparse.SUPPRESS,
            action=JoinedWithCommas if name in ASSIGNING else "store",
            metavar=NAMED_METAVARS.get(name) or METAVARS.get(TYPES[name], "NAME"),
            help=f"{help_text} (preset default: {str(default).replace('None', 'none') or 'none'})",
        )  # fmt: skip


class JoinedWithCommas(argparse.Action):
    """Joins the values of an option that is given several times: `--env-param a=1 --env-param b=2` is a=1,b=2."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Add a value."""
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def _parser_of(kind: Any) -> Callable[[str], Any]:
    """Return how a text becomes a value of this type. A text that does not fit stays; `resolve` refuses it."""
    if kind is str:
        return str
    if kind == tuple[int, ...]:
        return parse_widths
    return parse_literal


def parse_widths(text: str) -> Any:
    """Return `16,16` as (16, 16), or the text if it is not a list of whole numbers."""
    widths = tuple(parse_literal(part) for part in text.split(",") if part)
    return widths if all(type(width) is int for width in widths) else text


def options_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Config` that the command line gives."""
    return {name: value for name, value in vars(arguments).items() if name in FIELDS}


def config_from(arguments: argparse.Namespace) -> Config:
    """Return the configuration that the options describe."""
    return resolve(arguments.preset, **with_task_of_start(options_given(arguments)))
