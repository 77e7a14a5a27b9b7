"""Notebooks run from top to bottom with small numbers, and the stored outputs belong to the current text."""

from __future__ import annotations

from pathlib import Path

import jax
import jupytext
import matplotlib
import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
jax.devices()  # start JAX now, so that `jb.prepare()` in a notebook does not change the devices of the tests
SLOW = ("02", "03", "05")  # a quarter of a minute each


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem[:2] in SLOW)) for path in SOURCES],
)
def test_notebook_runs(path, monkeypatch, registries_restored, tmp_path, capsys):
    monkeypatch.setenv("JAXBYZ_QUICK", "1")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    with matplotlib.rc_context():
        exec(compile(path.read_text(), str(path), "exec"), names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_stored_outputs_belong_to_the_text(path):
    stored = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    text = jupytext.read(path)
    assert [(cell.cell_type, cell.source) for cell in stored.cells] == [
        (cell.cell_type, cell.source) for cell in text.cells
    ]
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))  # run once, from top to bottom
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
