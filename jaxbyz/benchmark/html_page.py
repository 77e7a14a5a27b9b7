"""The leaderboard as one HTML page that needs neither a network nor this package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from jaxbyz.errors import UsageError
from jaxbyz.files import write_output_text
from jaxbyz.report.html_report import fill_template, shared_file


def write_page(board: dict[str, Any], out: str | Path) -> Path:
    """Write the page of a leaderboard.

    Args:
        board: what `jaxbyz.benchmark.leaderboard.leaderboard` returns.
        out: the file to write; its name ends in .html.
    """
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"out={path}: the name must end in .html")
    folder = resources.files("jaxbyz.benchmark") / "template"
    text = fill_template(
        {"title": f"jaxbyz benchmark {board['suite']['name']}", **board},
        (folder / "leaderboard.html").read_text("utf-8"),
        shared_file("report.css") + (folder / "leaderboard.css").read_text("utf-8"),
        (folder / "leaderboard.js").read_text("utf-8"),
    )
    write_output_text(path, text)
    return path
