"""What is shipped: one version everywhere, a light import, and a wheel and an sdist that work by themselves."""

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


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert jb.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE).group(1) == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_import_is_light():
    """`import jaxbyz` loads only itself and the standard library; everything else is imported when it is first used."""
    code = "import sys; before = set(sys.modules); import jaxbyz; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert [name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names] == ["jaxbyz"]


def test_using_the_library_loads_no_optional_package():
    """The public names load no package for pictures, notebooks or logging, except what gymnax imports."""
    code = (
        "import sys, json, gymnax; before = set(sys.modules)\n"
        "import jaxbyz, jaxbyz.runs.run, jaxbyz.cli\n"
        "for name in jaxbyz.__all__: getattr(jaxbyz, name)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert "jaxbyz.algorithms" in loaded
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
    assert {name.split("/")[0] for name in names} == {"jaxbyz", f"jaxbyz-{jb.__version__}.dist-info"}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "jaxbyz").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {name for name in names if "dist-info" not in name}


@pytest.mark.dist
def test_the_sdist_holds_what_builds_and_tests_it(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = ["pyproject.toml", "Makefile", "constraints.txt", "mkdocs.yml", "LICENSE", "CITATION.cff"]
    needed += [path.name for path in ROOT.glob("*.md")]
    folders = [f"{name}/" for name in ("jaxbyz", "tests", "docs", "notebooks", "benchmarks")]
    assert not [name for name in needed if name not in names]
    assert not [folder for folder in folders if not any(name.startswith(folder) for name in names)]
    assert not [
        name for name in names if name.startswith((".venv", "site/", "runs/", "demo/", "carry", "benchmarks/results/"))
    ]


@pytest.mark.dist
@pytest.mark.parametrize("kind", [0, 1], ids=["wheel", "sdist"])
def test_it_installs_and_runs_alone(built, kind, tmp_path):
    """In a clean environment with only the declared dependencies, commands work or name the extra that is missing."""
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
    assert doctor.returncode == 0 and "jaxbyz[tensorboard,wandb,mlflow,federation,flower,onnx]" in doctor.stdout, (
        doctor.stdout + doctor.stderr
    )
    board = jaxbyz("train", *tiny.split(), "--tensorboard", "board")
    assert board.returncode == 2 and "pip install 'jaxbyz[tensorboard]'" in board.stderr
    assert jaxbyz("completion", "bash").returncode == 0
    reported = jaxbyz("report", "run", "--animations", "0", "--out", "report.html")
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "report.html").stat().st_size > 20_000
