"""Command-line options made from the fields of `Config`, which hold their names, help texts and defaults."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbyz.configuration.agent_values import ASSIGNING
from jaxbyz.configuration.config import DEFAULTS, FIELDS, OPTION_GROUPS, TYPES
from jaxbyz.configuration.presets import PRESETS
from jaxbyz.configuration.resolving import Choice, choose
from jaxbyz.errors import UsageError
from jaxbyz.trained.start_from import with_task_of_start

NAMED_METAVARS = {"kappa": "ROUNDS", "env_agents": "FILE", **dict.fromkeys(ASSIGNING, "NAME=VALUE")}
NOT_SHOWN = (None, "", "none")  # values that a help text does not mention
METAVARS = {int: "INT", float: "FLOAT", int | None: "INT", float | None: "FLOAT", tuple[int, ...]: "SIZES"}


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add --preset and one option per field of `Config`, in groups; options that are not given come from the preset.

    The help text shows the values of the preset that the command line chooses, by `--preset` or `--env`.
    """
    group = parser.add_argument_group("preset")
    group.add_argument("--preset", metavar="NAME", help=f"values to start from: {', '.join(PRESETS)}")
    for title, records in OPTION_GROUPS.items():
        group = parser.add_argument_group(title)
        for field in (field for record in records for field in dataclasses.fields(record)):
            _add_option(group, field.name, field.metadata)
    show_values(parser, sys.argv[1:])


def _add_option(group: Any, name: str, described: Mapping[str, Any]) -> None:
    """Add the option of the command line for a field of `Config`."""
    help_text, kind = described["help"].replace("%", "%%"), TYPES[name]
    if kind is bool:
        group.add_argument(_flag(name), action="store_true", default=argparse.SUPPRESS, help=help_text)
        return
    if described["choices"]:
        help_text += f" [{', '.join(described['choices'])}]"
    group.add_argument(
        _flag(name), default=argparse.SUPPRESS,
        action=JoinedWithCommas if name in ASSIGNING else "store",
        metavar=NAMED_METAVARS.get(name) or METAVARS.get(kind, "NAME"), help=help_text,
    )  # fmt: skip


def _flag(name: str) -> str:
    """Return the option of the command line for a field of `Config`."""
    return "--" + name.replace("_", "-")


def show_values(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add to the help texts the values of the preset that a command line chooses, as its algorithm uses them."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("preset", "env", "algorithm", "byzantine"):
        chooser.add_argument(_flag(name), default=argparse.SUPPRESS)
    try:
        chosen = vars(chooser.parse_known_args(words)[0])
        byzantine = chosen.pop("byzantine", 1)  # the rule that a preset has under attack
        choice = choose(chosen.pop("preset", None), byzantine=byzantine, **chosen)
    except (argparse.ArgumentError, UsageError):
        return
    preset, values = choice.preset, dataclasses.asdict(choice.config)
    values["byzantine"] = PRESETS[preset][1].get("byzantine", DEFAULTS["byzantine"])
    for action in parser._actions:
        value = values.get(action.dest)
        if _flag(action.dest) in action.option_strings and not isinstance(value, bool) and value not in NOT_SHOWN:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            action.help = f"{action.help} ({text.replace('%', '%%')})"
    parser.description = (
        f"{parser.description}. Values in parentheses are those of the preset {preset} ({PRESETS[preset][0]}); with "
        "--preset NAME, --env NAME or --algorithm NAME, --help shows those of another."
    )


class JoinedWithCommas(argparse.Action):
    """Joins the values of an option that is given several times: `--env-param a=1 --env-param b=2` is a=1,b=2."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Add a value."""
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def options_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Config` that the command line gives."""
    return {name: value for name, value in vars(arguments).items() if name in FIELDS}


def choice_from(arguments: argparse.Namespace) -> Choice:
    """Return the configuration that the options describe, and what was chosen for it."""
    given = options_given(arguments)
    options = with_task_of_start(given)
    return choose(arguments.preset, **options)
