"""What is shipped: one version everywhere, a light import, and a wheel and an sdist that stand alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import jaxbyz as jb

ROOT = Path(__file__).parents[1]
HEAVY = ("matplotlib", "PIL", "tensorboardX", "IPython", "pandas", "seaborn", "gymnax", "flax", "optax", "rich")


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert jb.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE).group(1) == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_import_is_light():
    """`import jaxbyz` loads nothing but itself: everything else is imported when it is first used."""
    code = "import sys, json, jaxbyz; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not [name for name in HEAVY if name in loaded]
    assert "jax" not in loaded and "jaxbyz.experiments.config" not in loaded


def test_using_the_library_loads_no_optional_package():
    """All public names together: no picture, notebook or logging package, but for what gymnax itself brings."""
    code = (
        "import sys, json, gymnax; before = set(sys.modules)\n"
        "import jaxbyz, jaxbyz.experiments.run, jaxbyz.cli\n"
        "for name in jaxbyz.__all__: getattr(jaxbyz, name)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert "jaxbyz.algorithms.decbyzpg" in loaded
    assert not [
        name for name in loaded if name.split(".")[0] in ("matplotlib", "PIL", "tensorboardX", "IPython", "shtab")
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), built by hatchling in an environment of its own."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.mark.dist
def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = zipfile.ZipFile(built[0]).namelist()
    assert {"jaxbyz/py.typed", "jaxbyz/report/page/page.js", "jaxbyz/report/page/page.html"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"jaxbyz", f"jaxbyz-{jb.__version__}.dist-info"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "jaxbyz").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


@pytest.mark.dist
def test_the_sdist_holds_what_builds_and_tests_it(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    meta = (
        "pyproject.toml Makefile constraints.txt mkdocs.yml README.md LICENSE CHANGELOG.md CONTRIBUTING.md CITATION.cff"
    )
    parts = "tests/conftest.py notebooks/01_quickstart.ipynb docs/tutorial.md benchmarks/learning.py"
    for needed in (meta + " " + parts).split():
        assert needed in names, needed
    assert not [name for name in names if name.startswith((".venv", "site/", "runs/", "demo/", "carry"))]


@pytest.mark.dist
@pytest.mark.parametrize("kind", [0, 1], ids=["wheel", "sdist"])
def test_it_installs_and_runs_alone(built, kind, tmp_path):
    """A clean environment with only the declared dependencies: train, evaluate, list; pictures say what is missing."""
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, built[kind]], check=True, cwd=tmp_path)
    subprocess.run([python, "-m", "pip", "check"], check=True, cwd=tmp_path, capture_output=True)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}

    def jaxbyz(*words):
        command = [tmp_path / "clean" / "bin" / "jaxbyz", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert jaxbyz("--version").stdout.strip() == jb.__version__
    tiny = "--agents 5 --byzantine 1 --attack avg-zero --N 2 --B 2 --horizon 20 --hidden 4 --trajectories 4 --seeds 2"
    trained = jaxbyz("train", *tiny.split(), "--out", "run", "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout.splitlines()[-1])["finite"]
    assert jaxbyz("evaluate", "run", "--episodes", "2").returncode == 0
    doctor = jaxbyz("doctor")
    assert doctor.returncode == 0 and "jaxbyz[tensorboard]" in doctor.stdout, doctor.stdout + doctor.stderr
    board = jaxbyz("train", *tiny.split(), "--tensorboard", "board")
    assert board.returncode == 2 and "pip install 'jaxbyz[tensorboard]'" in board.stderr
    assert jaxbyz("completion", "bash").returncode == 0
    listed = jaxbyz("report", "run", "--animations", "0", "--out", "report.html")
    assert listed.returncode == 0, listed.stderr
    assert (tmp_path / "report.html").stat().st_size > 20_000
