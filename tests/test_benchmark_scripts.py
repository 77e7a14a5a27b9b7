"""Benchmarks that replace parts of the library run to their end; `make bench` would notice too late."""

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
