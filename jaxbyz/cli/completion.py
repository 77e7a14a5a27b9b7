"""`jaxbyz completion`: a static completion script, generated from the parser."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")
    parser.epilog = (
        'to enable it in the current session: eval "$(jaxbyz completion bash)", or: jaxbyz completion fish | source'
    )


def script(shell: str) -> str:
    """Return the script; options that take names complete them."""
    import shtab

    from jaxbyz.cli import build_parser
    from jaxbyz.configuration.config import FIELDS
    from jaxbyz.configuration.presets import PRESETS

    parser = build_parser()
    values = {"preset": list(PRESETS)}
    for name, field in FIELDS.items():
        registry = field.metadata["registry"]
        values[name] = list(registry.names() if registry is not None else field.metadata["choices"])
    for command in _commands(parser):
        for action in command._actions:
            if values.get(action.dest) and action.option_strings:
                action.choices = values[action.dest]
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return list(subparsers.choices.values())


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print(script(arguments.shell))
    return 0
