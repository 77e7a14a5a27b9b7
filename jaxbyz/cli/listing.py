"""`jaxbyz list`: all components and presets; of one kind also with options and limits."""

from __future__ import annotations

import argparse
import inspect
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fractions import Fraction

    from jaxbyz.registry import Entry, Registry

EVERY_ENVIRONMENT = (
    "Parameters are set with --env-param NAME=VALUE,… Besides its own, every environment has clip=false, whether "
    "actions are clipped before they are charged, hold=1, the number of steps for which an action is held, and "
    "scale=false, whether observations are scaled. Those of gymnasium have "
    "names like gymnasium:Acrobot-v1, and the parameters of gymnasium.make, workers and timeout=60."
)
GIVEN = ("agents", "byzantine", "environment")  # arguments of factories that are not options
EXAMPLE_AGENTS = 13  # for which the largest number of Byzantine agents is shown
WIDEST = 120  # characters per line
LONGEST_COLUMN = 28  # of names; longer ones shift their line
ALIASES = {"rules": ("aggregators", "pre_aggregators")}
COMPONENTS = ("environments", "algorithms", "aggregators", "pre_aggregators", "attacks", "agreements", "schedules",
              "compressions", "policies")  # fmt: skip
KINDS = (*COMPONENTS, "presets")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the kind and --json."""
    choices = [*ALIASES, *(kind.replace("_", "-") for kind in KINDS)]
    plurals = {**{word.removesuffix("s"): word for word in choices}, "policy": "policies"}
    parser.add_argument("kind", nargs="?", metavar="KIND", choices=choices, type=lambda word: plurals.get(word, word),
                        help=f"list this kind with options and limits: {', '.join(choices)}")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def registries() -> dict[str, Registry]:
    """Return the table of every kind of component."""
    from jaxbyz.algorithms import algorithms
    from jaxbyz.attacks import attacks
    from jaxbyz.environments import environments
    from jaxbyz.policies import policies
    from jaxbyz.protocol.agreements import agreements
    from jaxbyz.protocol.compression import compressors
    from jaxbyz.protocol.schedules import schedules
    from jaxbyz.rules import aggregators, pre_aggregators

    tables = (
        environments, algorithms, aggregators, pre_aggregators, attacks, agreements, schedules, compressors, policies,
    )  # fmt: skip
    return dict(zip(COMPONENTS, tables, strict=True))


def bound(limit: Fraction) -> str:
    """Write a limit on the number of Byzantine agents, such as f < K/4."""
    factor = "" if limit.numerator == 1 else str(limit.numerator)
    return f"f < {factor}K" + (f"/{limit.denominator}" if limit.denominator > 1 else "")


def catalogue() -> dict[str, dict[str, str]]:
    """Return the summary of every component by kind and name."""
    from jaxbyz.configuration.presets import PRESETS

    def line(entry: Entry) -> str:
        return entry.summary if entry.limit is None else f"{entry.summary}; {bound(entry.limit)}"

    listed = {kind: {entry.name: line(entry) for entry in registry} for kind, registry in registries().items()}
    return {**listed, "presets": {name: summary for name, (summary, _) in PRESETS.items()}}


def described(kind: str) -> dict[str, dict[str, Any]]:
    """Return summary, limit and options of every component of a kind, or the values of every preset.

    The options of an environment are its parameters, for `--env-param`.
    """
    if kind == "presets":
        from jaxbyz.configuration.presets import PRESETS

        return {name: {"summary": line, "options": values} for name, (line, values) in PRESETS.items()}
    return {
        entry.name: {
            "summary": entry.summary,
            "limit": None if entry.limit is None else bound(entry.limit),
            "most": None if entry.limit is None else entry.most(EXAMPLE_AGENTS),
            "options": _options(kind, entry),
        }
        for entry in registries()[kind]
    }


def _options(kind: str, entry: Entry) -> dict[str, Any]:
    """Return the options of a component and their defaults. Those of an algorithm are the options of `train`."""
    if kind == "environments":
        from jaxbyz.environments import default_parameters

        return default_parameters(entry.name)
    return {} if kind == "algorithms" else options_of(entry)


def options_of(entry: Entry) -> dict[str, Any]:
    """Return the options of a component and their defaults; `…` for one that must be given."""
    parameters = inspect.signature(entry.factory).parameters.values()
    named = (p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in GIVEN)
    return {p.name: "…" if p.default is p.empty else p.default for p in named}


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue, or one kind in detail."""
    from jaxbyz.files import json_text

    if arguments.kind is None:
        listed: dict[str, Any] = catalogue()
    else:
        kind = arguments.kind.replace("-", "_")
        listed = {each: described(each) for each in ALIASES.get(kind, (kind,))}
    if arguments.json:
        print(json_text(listed, indent=2, ensure_ascii=False, default=str))
        return 0
    for kind, entries in listed.items():
        print(kind.replace("_", "-"))
        if kind == "environments" and arguments.kind is not None:
            print_wrapped(EVERY_ENVIRONMENT, 2, 2)
        indent = 4 + min(max(map(len, entries)), LONGEST_COLUMN)
        for name, line in entries.items():
            if arguments.kind is None:
                print_wrapped(f"{name:<{indent - 4}}  {line}", 2, indent)
            else:
                print_details(name, line, "parameters" if kind == "environments" else "options")
    return 0


def print_wrapped(text: str, first: int, others: int) -> None:
    """Print a text in lines as wide as the terminal, indented by these numbers of spaces."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    wrapper = textwrap.TextWrapper(width, " " * first, " " * others, break_on_hyphens=False)
    print(wrapper.fill(text))


def print_details(name: str, entry: dict[str, Any], options: str) -> None:
    """Print one component on two or three lines; `options` is what its options are called."""
    limit = "" if entry.get("limit") is None else f"; {entry['limit']}, so f ≤ {entry['most']} of {EXAMPLE_AGENTS}"
    print_wrapped(f"{name}: {entry['summary']}{limit}", 2, 4)
    if entry["options"]:
        texts = [f"{option}={_shown(value)}" for option, value in entry["options"].items()]
        print_wrapped(f"{options}: {', '.join(texts)}", 4, 6)


def _shown(value: Any) -> str:
    """Return a default as it would be written on the command line, where it can be written there."""
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return "x".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower()
