"""Benchmark scripts: one that replaces parts of the library runs to its end, and one merges the seeds of files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
def test_the_speed_of_batches_and_iterations_is_measured(tmp_path):
    out = tmp_path / "speed.json"
    command = [sys.executable, str(BENCHMARKS / "speed.py"), "--rounds", "1", "--out", str(out)]
    subprocess.run(command, check=True, timeout=900)
    report = json.loads(out.read_text())
    assert {row["episodes"] for row in report["batches"]} == {"full", "fresh"}
    assert all(len(taken) == 1 and taken[0] > 0 for taken in report["iterations"]["seconds"].values())


def test_the_seeds_of_a_task_are_merged(tmp_path):
    published = json.loads((BENCHMARKS / "results" / "tasks" / "pendulum-avg-zero.json").read_text())

    def write_part(begin: int, end: int) -> Path:
        part = {**published, **{key: published[key][begin:end] for key in ("seeds", "return", "final")}}
        part["config"] = {**published["config"], "seeds": end - begin, "seed": part["seeds"][0]}
        part["reached"] = None
        folder = tmp_path / f"{begin}-{end}"
        folder.mkdir()
        (folder / "pendulum-avg-zero.json").write_text(json.dumps(part))
        return folder

    def merge(*folders: Path) -> subprocess.CompletedProcess:
        options = ["--merge", *map(str, folders), "--out", str(tmp_path / "out")]
        return subprocess.run([sys.executable, str(BENCHMARKS / "tasks.py"), *options], text=True, capture_output=True)

    late, early, overlapping = write_part(4, 10), write_part(0, 4), write_part(3, 10)
    assert merge(late, early).returncode == 0
    whole = json.loads((tmp_path / "out" / "pendulum-avg-zero.json").read_text())
    assert [key for key in published if whole[key] != published[key]] == ["seconds", "command"]
    refused = merge(early, overlapping)
    assert refused.returncode == 1 and "are not consecutive" in refused.stderr
