"""A small suite with two entries and made-up results, whose scores can be computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxbyz.benchmark.entries import BenchmarkEntry, Cell, cell_config, cells_of, options_of, parse_entries
from jaxbyz.benchmark.records import record_path
from jaxbyz.benchmark.results import write_result
from jaxbyz.benchmark.suite import Suite, load_suite

SUITE = """
name = "tiny"
summary = "two settings, two attacks, eight seeds"
attacks = ["avg-zero", "large-noise"]
[seeds]
first = 0
count = 8
references = 12
[statistics]
measure = "average"
floor = -1.0
resamples = 500
confidence = 0.95
[tuning]
first = 1000
count = 2
attacks = ["none", "avg-zero"]
factors = [0.5, 1.0]
[certificate]
starts = 8
climbers = 2
steps = 2
[settings]
easy = ["k5", "k9"]
[federations.k5]
agents = 5
byzantine = 1
[federations.k9]
agents = 9
byzantine = 2
ranked = false
decentralised = true
[tasks.easy]
threshold = 30.0
[tasks.easy.fixed]
env = "TabularMDP"
trajectories = 6
horizon = 150
hidden = [2]
[tasks.easy.defaults]
N = 2
B = 1
p = 1.0
eta = 0.1
[tasks.easy.alone]
eta = 0.05
"""
ENTRIES = {
    "robust": {"summary": "RFA", "algorithm": "decbyzpg", "aggregator": "rfa", "agreement": "trimmed-mean"},
    "central": {"summary": "ByzPG", "algorithm": "byzpg", "aggregator": "median", "tasks": {"easy": {"eta": 0.2}}},
}
# Returns of all seeds; references are 10 and 30, so the score is (return − 10) / 20.
RETURNS = {
    ("alone", "none"): 10.0,
    ("mean", "none"): 30.0,
    ("robust", "none"): 30.0,
    ("robust", "avg-zero"): 25.0,
    ("robust", "large-noise"): 20.0,
    ("central", "none"): 20.0,
    ("central", "avg-zero"): 40.0,
    ("central", "large-noise"): -100.0,
}


# The same with paired scores: returns of one agent alone, of the mean, and gains of the entries over one agent alone.
PAIRED = SUITE.replace("references = 12", "references = 8").replace("floor = -1.0", 'floor = -1.0\nscoring = "paired"')
ALONE = np.array([10.0, 12.0, 8.0, 10.0, 14.0, 6.0, 10.0, 10.0])
MEAN = ALONE + np.array([20.0, 18.0, 22.0, 20.0, 20.0, 20.0, 16.0, 24.0])  # a gain of 20
GAINS = {
    ("robust", "none"): np.full(8, 20.0),
    ("robust", "avg-zero"): np.array([10.0, 12.0, 8.0, 10.0, 10.0, 14.0, 6.0, 10.0]),
    ("robust", "large-noise"): np.array([18.0, -6.0, 20.0, 20.0, 18.0, 18.0, 20.0, 20.0]),
    ("central", "none"): np.full(8, 10.0),
    ("central", "avg-zero"): np.full(8, -2.0),
    ("central", "large-noise"): np.full(8, 30.0),
}


def write_suite(folder: Path, text: str = SUITE) -> Path:
    """Write the suite file and return its path."""
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def entries() -> dict[str, BenchmarkEntry]:
    """Return both entries."""
    return parse_entries(ENTRIES, "entries.toml")


def result_path(folder: Path, cell: Cell) -> Path:
    """Return the path of the file of a cell."""
    return record_path(folder, cell.name)


def made_up(folder: Path, suite: Suite, cell: Cell, returns: np.ndarray) -> None:
    """Write a result in which every seed has a constant return."""
    options = options_of(suite, entries(), cell)
    config = cell_config(suite, cell, options)
    iterations = 3
    shape = (len(returns), iterations)
    metrics = {
        "returns": np.repeat(returns[:, None], iterations, axis=1),
        "trajectories": np.tile(np.array([2, 4, 6]), (len(returns), 1)),
        "finite": np.repeat(np.isfinite(returns)[:, None], iterations, axis=1),
        "bytes_sent": np.full(shape, 1000.0),
    }
    write_result(folder, suite, cell, options, config, metrics, 1.5)


def make_results(folder: Path) -> tuple[Path, Path]:
    """Write the suite and a folder with results of all cells; return both paths."""
    path = write_suite(folder)
    suite, out = load_suite(path), folder / "results"
    out.mkdir()
    for cell in cells_of(suite, entries()):
        count = suite.seeds.references if cell.entry in ("alone", "mean") else suite.seeds.count
        made_up(out, suite, cell, np.full(count, RETURNS[cell.entry, cell.attack]))
    return path, out


def paired_results(folder: Path, gains: dict = GAINS, text: str = PAIRED) -> tuple[Path, Path]:
    """Write a suite with paired scores and results of all cells; return both paths."""
    path = write_suite(folder, text)
    suite, out = load_suite(path), folder / "results"
    out.mkdir()
    references = {"alone": ALONE, "mean": MEAN, "pooled": ALONE + 30.0}
    for cell in cells_of(suite, entries()):
        returns = references[cell.entry] if cell.entry in references else ALONE + gains[cell.entry, cell.attack]
        made_up(out, suite, cell, returns)
    return path, out
