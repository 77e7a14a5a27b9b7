"""The documentation is correct: Python blocks run as they stand, commands parse, and names, files and links exist."""

from __future__ import annotations

import argparse
import ast
import pkgutil
import re
import shlex
from functools import cache
from pathlib import Path

import jax
import matplotlib
import pytest
from helpers import RESULTS, ROOT

import jaxbyz as jb
from jaxbyz.attacks import attacks
from jaxbyz.cli import COMMANDS, build_parser
from jaxbyz.cli.options import options_given
from jaxbyz.configuration.config import FIELDS
from jaxbyz.configuration.presets import PRESETS
from jaxbyz.configuration.resolving import OTHER_NAMES, resolve
from jaxbyz.environments import make_environment
from jaxbyz.rules import aggregators, pre_aggregators

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
            assert ("N=8" in code) == ("key, 40)" in code), "the numbers that are replaced here"
            code = code.replace("N=8", "N=8, horizon=30").replace("key, 40)", "key, 3)")
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
    """Commands parse, and the presets, rules, attacks and other components that they name exist."""
    words = shlex.split(command.replace("DIR…", "DIR"))[1:]
    if words[0] in ("COMMAND", "--version", "--import") or "--help" in words:
        return
    assert words[0] in COMMANDS, f"{page}: {command}"
    arguments = build_parser(words[0]).parse_args(words)
    assert getattr(arguments, "preset", None) in (None, *PRESETS)
    for name, value in options_given(arguments).items():
        if (registry := FIELDS[name].metadata["registry"]) is not None and isinstance(value, str):
            *first, last = [component for component, _ in registry.parse(value)]
            assert set(first) <= set(pre_aggregators.names())
            assert last.removeprefix("gymnasium:").isupper() or last in registry  # X and NAME stand for any name


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_and_file_names_exist(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose(path))
    named = [path.parent / link for link in links]
    missing = []
    for span in spans(path):
        named += [ROOT / file for file in re.findall(r"^(?:jaxbyz|benchmarks|tests|docs|notebooks)/[\w./-]*\w$", span)]
        for file in re.findall(r"^[a-z][\w/]*\.py$", span):  # within a folder, such as `rules/base.py`
            places = (path for folder in ("jaxbyz", "benchmarks") for path in ROOT.glob(f"{folder}/**/{file}"))
            found = "NAME" in file or (ROOT / file).exists() or any(places)
            missing += [] if found else [file]
    if not RESULTS.exists():  # an sdist does not contain them
        named = [file for file in named if RESULTS not in file.resolve().parents]
    assert [*missing, *(str(file) for file in named if not file.exists())] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_names_of_the_library_exist(path):
    """Names such as `jaxbyz.training.run` and `jb.train` in the text can be imported."""
    for span in spans(path):
        for name in re.findall(r"^(?:jaxbyz|jb)((?:\.\w+)+)", span):
            pkgutil.resolve_name("jaxbyz" + name)


@cache
def classes() -> dict[str, set[str]]:
    """Return the names of the fields and methods of every class of the package, with those of its base classes.

    They are read from the source, so that no optional package is needed. Classes of the same name are merged.
    """
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in sorted((ROOT / "jaxbyz").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                members = [child.target for child in node.body if isinstance(child, ast.AnnAssign)]
                names = {member.id for member in members if isinstance(member, ast.Name)}
                names |= {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
                own.setdefault(node.name, set()).update(names)
                bases.setdefault(node.name, set()).update(base.id for base in node.bases if isinstance(base, ast.Name))

    def members_of(name: str) -> set[str]:
        return own.get(name, set()).union(*(members_of(base) for base in bases.get(name, set()) - {name}))

    return {name: members_of(name) for name in own}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_fields_and_methods_exist(path):
    """Code spans such as `State.parameters` and `Algorithm.step(state, coin)` name a class and a member of it."""
    named = [re.match(r"([A-Z]\w*)\.([a-z_]\w*|[A-Z])\b", span) for span in spans(path) if not (ROOT / span).exists()]
    assert [match[0] for match in named if match and match[2] not in classes().get(match[1], set())] == []


def test_members_are_found_in_classes_and_their_bases():
    found = classes()
    assert {"parameters", "anchor"} <= found["State"] and "previous" not in found["State"]
    assert {"eta", "N", "previous", "delay", "kappa_rounds"} <= found["Settings"] and {"agents", "env"} <= found[
        "Config"
    ]


@pytest.mark.parametrize("path", [*PAGES, ROOT / "Makefile", *sorted(ROOT.glob("notebooks/*.py"))], ids=name_of)
def test_presets_exist(path):
    """Presets that options, Python code or the word "preset" name exist, and so do names that look like a preset's."""
    text = path.read_text()
    named = re.findall(r"""--preset[ =]([\w-]+)|["']?\bpreset["']? ?[:=] ?["']([\w-]+)["']""", text)
    listed = re.findall(r"\bpresets? (`[\w-]+`(?:(?:,| and|, and| or) `[\w-]+`)*)", text)
    names = {name for pair in named for name in pair if name} | set(re.findall(r"`([\w-]+)`", " ".join(listed)))
    tasks = {preset.partition("-")[0] for preset in PRESETS if preset.startswith(("cartpole", "lunarlander"))}
    names |= {span for span in spans(path) if re.fullmatch(rf"({'|'.join(sorted(tasks))})(-[a-z]+)?", span)}
    assert {name for name in names if not name.isupper()} - set(PRESETS) == set()  # NAME stands for any name


@cache
def option_names() -> frozenset[str]:
    """Return the options of all commands and of the scripts in `benchmarks/`."""
    parsers, options = [build_parser()], set()
    while parsers:
        for action in parsers.pop()._actions:
            options |= set(action.option_strings)
            parsers += action.choices.values() if isinstance(action, argparse._SubParsersAction) else []
    scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    return frozenset(options | set(re.findall(r'"(--[\w-]+)"', scripts)))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_options_exist(path):
    others = {"--" + name.replace("_", "-") for name in OTHER_NAMES}  # names of other libraries, which errors explain
    named = {re.match(r"--[\w-]+", span) for span in spans(path)} - {None}
    assert {match[0] for match in named} - option_names() - others == set()


def test_reading_order_of_an_iteration_is_short():
    """CONTRIBUTING names the files that explain one iteration: at most ten, with at most 1,800 lines."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## One iteration in code")[2].partition("\n## ")[0]
    files = re.findall(r"^\| \d+ \| `([\w/]+\.py)`", section, re.MULTILINE)
    assert files[0] == "algorithms/decbyzpg.py" and 5 <= len(files) <= 10
    assert sum(len((ROOT / "jaxbyz" / file).read_text().splitlines()) for file in files) <= 1800
