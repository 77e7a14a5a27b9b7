"""Notebooks run top to bottom with small numbers, and what is kept beside them was made from the same text."""

from __future__ import annotations

from pathlib import Path

import jupytext
import matplotlib
import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
LONG = ("02", "03", "05")  # a quarter of a minute each


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_five():
    assert [path.stem[:2] for path in SOURCES] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem[:2] in LONG)) for path in SOURCES],
)
def test_notebook_runs(path, monkeypatch, registries_restored, tmp_path, capsys):
    monkeypatch.setenv("JAXBYZ_QUICK", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxbyz.accelerate.platform.prepare", lambda: None)  # the tests' devices and cache stay
    names = {"__name__": "__main__"}
    with matplotlib.rc_context():
        exec(compile(path.read_text(), str(path), "exec"), names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_kept_outputs_belong_to_the_text(path):
    kept = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    text = jupytext.read(path)
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == [
        (cell.cell_type, cell.source) for cell in text.cells
    ]
    counts = [cell.execution_count for cell in code_cells(kept)]
    assert counts == list(range(1, len(counts) + 1))  # top to bottom, nothing left out
    outputs = [output for cell in code_cells(kept) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [
        o for o in outputs if o.output_type in ("display_data", "execute_result") and "image" in str(o.data.keys())
    ]
    assert pictures, "a notebook without a picture"
