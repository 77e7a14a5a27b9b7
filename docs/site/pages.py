"""Hook of the documentation site: inserts the options of all commands."""

from __future__ import annotations

import argparse
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker `<!-- commands -->` of a page."""
    return markdown.replace("<!-- commands -->", commands()) if "<!-- commands -->" in markdown else markdown


def commands() -> str:
    """Return a section for every command."""
    from jaxbyz.cli import COMMANDS, build_parser

    parser = build_parser()
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join(_command(name, COMMANDS[name][1], group.choices[name]) for name in COMMANDS)


def _command(name: str, line: str, parser: argparse.ArgumentParser) -> str:
    """Return a heading, the summary and a table of the options; a command with actions has a section for each."""
    formatter = argparse.HelpFormatter(parser.prog)
    rows, actions = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            actions += [_command(f"{name} {key}", lines[key], value) for key, value in action.choices.items()]
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        help_text = formatter._expand_help(action) if action.help else ""
        if action.choices is not None:
            help_text += "; one of " + ", ".join(f"`{choice}`" for choice in action.choices)
        rows.append(f"| `{names}` | {help_text.replace('|', '&#124;')} |")
    title = f"## jaxbyz {name}\n\n{line[0].upper()}{line[1:]}."
    if actions:
        return "\n\n".join([title, *actions])
    return "\n".join([f"{title}\n", "| option | meaning |", "| --- | --- |", *rows])
