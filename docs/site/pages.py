"""Parts of the site that are made from the code: the command line's help."""

from __future__ import annotations

import argparse
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the options of every command where a page asks for them."""
    return markdown.replace("<!-- commands -->", commands()) if "<!-- commands -->" in markdown else markdown


def commands() -> str:
    """Every command: its line, its usage and a table of its options."""
    from jaxbyz.cli import COMMANDS, build_parser

    parser = build_parser()
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join(_command(name, COMMANDS[name][1], group.choices[name]) for name in COMMANDS)


def _command(name: str, line: str, parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog)
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        help_text = formatter._expand_help(action) if action.help else ""
        if action.choices is not None:
            help_text += "; one of " + ", ".join(f"`{choice}`" for choice in action.choices)
        rows.append(f"| `{names}` | {help_text.replace('|', '&#124;')} |")
    return f"## jaxbyz {name}\n\n{line[0].upper()}{line[1:]}.\n\n| option | meaning |\n| --- | --- |\n" + "\n".join(
        rows
    )
