"""The documentation does what it says: Python blocks run as they stand, commands parse, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import matplotlib
import pytest

from jaxbyz.cli import COMMANDS, build_parser

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
RUN_ELSEWHERE = {"extend.md"}  # test_attacks_extend.py runs it and checks what it claims


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


WITH_PYTHON = [path for path in PAGES if blocks(path, "python") and path.name not in RUN_ELSEWHERE]


@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_python_blocks_run(path, capsys, tmp_path, monkeypatch):
    """Blocks of a page run one after another, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for number, code in enumerate(blocks(path, "python")):
        if path == README:
            # The same program with short episodes: the tests check that it runs, the benchmarks that it learns.
            code = code.replace("Estimator(", "Estimator(horizon=30, ").replace("iterations=20", "iterations=3")
            code = code.replace("key, 20, coins", "key, 3, coins")
        with matplotlib.rc_context():
            exec(compile(code, f"{path.name} block {number}", "exec"), names)


def test_the_pages_have_their_blocks():
    found = {path.name: len(blocks(path, "python")) for path in WITH_PYTHON}
    assert found["README.md"] == 2 and "jb.decbyzpg" in blocks(README, "python")[0]
    assert found["tutorial.md"] == 3 and found["logging.md"] == found["pictures.md"] == 1


def commands() -> list[tuple[str, str]]:
    """(page, command) of every `jaxbyz …` in a shell block or an unnamed one, and in code spans that have options."""
    found = []
    for path in PAGES:
        shell = "".join(blocks(path, "bash") + blocks(path, "")).replace("\\\n", " ")
        lines = [line.split("#")[0].split("|")[0].strip() for line in shell.splitlines()]
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        spans = [span for span in re.findall(r"`([^`]+)`", prose) if len(span.split()) > 2]
        found += [(name_of(path), line) for line in [*lines, *spans] if line.startswith("jaxbyz ")]
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_parse(page, command):
    words = shlex.split(command.replace("DIR…", "DIR"))[1:]
    if words[0] in ("COMMAND", "--version") or "--help" in words:
        return
    assert words[0] in COMMANDS, f"{page}: {command}"
    build_parser(words[0]).parse_args(words)


def test_commands_are_found():
    assert len(commands()) > 20


def test_relative_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_fields_of_docstrings_become_lists():
    spec = importlib.util.spec_from_file_location("fields", ROOT / "docs" / "site" / "fields.py")
    fields = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fields)
    text = "One line: not a field.\n\nN, B:   batch sizes,\n        in trajectories\nkeys [seeds]: of runs"
    assert fields.as_list(text) == (
        "One line: not a field.\n\n- `N, B`: batch sizes, in trajectories\n- `keys [seeds]`: of runs"
    )
