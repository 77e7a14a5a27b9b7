"""The documentation is correct: Python blocks run as they stand, commands parse, and names, files and links exist."""

from __future__ import annotations

import pkgutil
import re
import shlex
from pathlib import Path

import jax
import matplotlib
import pytest
from helpers import RESULTS, ROOT

import jaxbyz as jb
from jaxbyz.attacks import attacks
from jaxbyz.cli import COMMANDS, build_parser
from jaxbyz.configuration.resolving import resolve
from jaxbyz.environments import make_environment
from jaxbyz.rules import aggregators

README, EXTEND = ROOT / "README.md", ROOT / "docs" / "extend.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

jax.devices()  # start JAX now, so that `jb.prepare()` in a code block does not change the devices of the tests


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def spans(path: Path) -> list[str]:
    """Code within the text."""
    return re.findall(r"`([^`]+)`", prose(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run_blocks(path: Path) -> dict:
    """Run the Python blocks of a page one after another, as a reader would type them; return their variables."""
    names: dict = {"__name__": "__main__"}
    for number, code in enumerate(blocks(path, "python")):
        if path == README:
            # Shorter episodes and runs: this test checks that the program runs, benchmarks check that it learns.
            code = code.replace("Estimator(", "Estimator(horizon=30, ").replace("key, 40)", "key, 3)")
        with matplotlib.rc_context():
            exec(compile(code, f"{path.name} block {number}", "exec"), names)
    return names


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python") and path != EXTEND], ids=name_of)
def test_python_blocks_run(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(path)


def test_page_on_extending_is_right(registries_restored, capsys):
    """The rule, the attack, the environment and the network of that page do what it says about them."""
    names = run_blocks(EXTEND)
    printed = capsys.readouterr().out
    assert "| nearest-half |" in printed and "error does not vanish with α" in printed
    assert "| mean |" in printed and "error without bound" in printed
    assert "nearest-half" in aggregators and {"drown", "worst-of-three"} <= set(attacks.names())
    assert resolve(aggregator="nearest-half", attack="drown", byzantine=3).attack == "drown"
    assert float(make_environment("HeavyPole").params.masspole) == 1.0
    assert jb.build(names["config"]).policy.size == 4 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2
    error = names["result"] - names["honest_mean"](names["messages"], names["mask"])
    assert float(names["jnp"].linalg.norm(error)) < 2.0, "the rule is not robust against the attack"


def commands() -> list[tuple[str, str]]:
    """(page, command) of every `jaxbyz …` in a shell block or an unnamed one, and in code spans that have options."""
    found = []
    for path in PAGES:
        shell = "".join(blocks(path, "bash") + blocks(path, "")).replace("\\\n", " ")
        lines = [line.split("#")[0].split("|")[0].strip() for line in shell.splitlines()]
        inline = [span for span in spans(path) if len(span.split()) > 2]
        found += [(name_of(path), line) for line in [*lines, *inline] if line.startswith("jaxbyz ")]
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_parse(page, command):
    words = shlex.split(command.replace("DIR…", "DIR"))[1:]
    if words[0] in ("COMMAND", "--version", "--import") or "--help" in words:
        return
    assert words[0] in COMMANDS, f"{page}: {command}"
    build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_and_file_names_exist(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose(path))
    files = [
        file for span in spans(path) for file in re.findall(r"^(?:jaxbyz|benchmarks|tests|docs)/[\w./-]*\w$", span)
    ]
    named = [(path.parent / link).resolve() for link in links] + [ROOT / file for file in files]
    if not RESULTS.exists():  # an sdist does not contain them
        named = [file for file in named if RESULTS not in file.parents]
    assert [str(file) for file in named if not file.exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_names_of_the_library_exist(path):
    """Names such as `jaxbyz.training.run` and `jb.train` in the text can be imported."""
    for span in spans(path):
        for name in re.findall(r"^(?:jaxbyz|jb)((?:\.\w+)+)", span):
            pkgutil.resolve_name("jaxbyz" + name)
