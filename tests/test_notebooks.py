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


# What the test replaces, so that a notebook computes the same with smaller numbers. Every text must be in the notebook.
SMALL_TASK = '"N": 4, "B": 2, "p": 0.5, "horizon": 20, "hidden": (4,), "kappa": "2", "trajectories": 12'
SMALLER = {
    "01": [
        ('"agents": 13, "byzantine": 3', '"agents": 5, "byzantine": 1'),
        ('options["trajectories"] = 1000', f"options |= {{{SMALL_TASK}}}"),
        ('["decbyzpg", "dec-page-pg"]', '["decbyzpg"]'),
        ('"preset": "cartpole", ', '"preset": "cartpole-steady", '),
    ],
    "02": [
        ("hidden=(16, 16)", "hidden=(4,)"),
        ("N, B = 50, 4", "N, B = 2, 2"),
        ("horizon=500", "horizon=20"),
        ('["avg-zero", "large-noise:scale=20", "ipm", "alie"]', '["avg-zero", "ipm"]'),
        ('["mean", "trimmed-mean", "krum", "rfa"]', '["mean", "rfa"]'),
    ],
    "03": [
        ('["mean", "trimmed-mean", "rfa", "majority-direction"]', '["mean", "majority-direction"]'),
        ('["alie", "avg-zero", "undertow"]', '["avg-zero", "undertow"]'),
        ('["majority-direction", "arc+majority-direction", "rfa"]', '["majority-direction"]'),
        ("Budget(starts=384, climbers=16, steps=100)", "Budget(starts=48, climbers=4, steps=5)"),
        ('"trajectories": 500,', '"trajectories": 8, "N": 2, "horizon": 20, "hidden": (4,),'),
        ('["mean", "rfa", "majority-direction"]', '["rfa"]'),
    ],
    "04": [
        ('"seeds": 3, "trajectories": 6000', f'"seeds": 3, {SMALL_TASK}'),
        ("smoothed(run.metrics, 100)", "smoothed(run.metrics, 4)"),
    ],
    "05": [
        ("K, f, T = 13, 3, 40", "K, f, T = 5, 1, 2"),
        ("hidden=(16, 16)", "hidden=(4,)"),
        ("N = 8", "N = 2"),
        ("horizon=500", "horizon=20"),
        ("jax.random.key(0), 4)", "jax.random.key(0), 2)"),
        ("jnp.array([0.1, 10.0, 1000.0])", "jnp.array([0.1, 1000.0])"),
        ("jnp.array([1e-3, 1e-2, 3e-2])", "jnp.array([1e-2])"),
        (', "large-noise": jb.large_noise()}', "}"),
        ('{"mean": jb.mean(), "krum": jb.krum(f), "rfa": jb.rfa()}', '{"rfa": jb.rfa()}'),
    ],
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem[:2] in SLOW)) for path in SOURCES],
)
def test_notebook_runs(path, monkeypatch, registries_restored, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    for full, small in SMALLER[path.stem[:2]]:
        assert full in text, full
        text = text.replace(full, small)
    with matplotlib.rc_context():
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})


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
