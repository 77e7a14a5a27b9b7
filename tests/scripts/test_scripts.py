"""Benchmark scripts: those that replace parts of the library, merge files, or compute what the documentation says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import RESULTS, ROOT, needs_results

from jaxbyz.files import read_rows, write_rows

BENCHMARKS = ROOT / "benchmarks"
TASKS = BENCHMARKS / "learning" / "tasks.py"
sys.path.insert(0, str(BENCHMARKS / "learning"))


@pytest.mark.slow
def test_the_speed_of_batches_and_iterations_is_measured(tmp_path):
    out = tmp_path / "speed.json"
    command = [sys.executable, str(BENCHMARKS / "speed" / "against_plain.py"), "--rounds", "1", "--out", str(out)]
    subprocess.run(command, check=True, timeout=900)
    report = json.loads(out.read_text())
    assert {row["episodes"] for row in report["batches"]} == {"full", "fresh"}
    assert all(len(taken) == 1 and taken[0] > 0 for taken in report["iterations"]["seconds"].values())


@pytest.mark.slow
def test_the_speed_of_kernels_is_measured(tmp_path):
    out = tmp_path / "kernels.json"
    command = [sys.executable, str(BENCHMARKS / "speed" / "kernels_speed.py"), "--small", "--out", str(out)]
    subprocess.run(command, check=True, timeout=900)
    rows = json.loads(out.read_text())["rows"]
    assert rows["caf of one"]["kernels"] == {"with kernels": 1, "without": 0}
    of_two_rules = ("iteration, avg-zero", "iteration, opt-ipm")  # RFA alone and behind memory
    assert all(row["largest difference"] < 1e-4 for group, row in rows.items() if group not in of_two_rules)


@needs_results
def test_the_seeds_of_a_task_are_merged(tmp_path):
    (published,) = (row for row in read_rows(RESULTS / "tasks.jsonl.gz") if row["name"] == "pendulum-random-action")

    def write_part(begin: int, end: int, **options: object) -> Path:
        part = {**published, **{key: published[key][begin:end] for key in ("seeds", "return", "final")}}
        part["config"] = {**published["config"], "seeds": end - begin, "seed": part["seeds"][0], **options}
        part["reached"] = None
        table = tmp_path / f"{begin}-{end}.jsonl.gz"
        write_rows(table, [part])
        return table

    def merge(*tables: Path) -> subprocess.CompletedProcess:
        options = ["--merge", *map(str, tables), "--out", str(tmp_path / "out.jsonl.gz")]
        return subprocess.run([sys.executable, str(TASKS), *options], text=True, capture_output=True)

    del published["config"]["critic_parts"]  # as in a row that is older than this option
    late, early, overlapping = write_part(4, 10, critic_parts=1), write_part(0, 4), write_part(3, 10, critic_parts=2)
    assert merge(late, early).returncode == 0
    (whole,) = read_rows(tmp_path / "out.jsonl.gz")
    assert [key for key in published if whole[key] != published[key]] == ["seconds", "command"]
    for parts, reason in (((late, overlapping), "differ in more than their seeds"), ((late, late), "not consecutive")):
        refused = merge(*parts)
        assert refused.returncode == 1 and reason in refused.stderr


@pytest.mark.slow
def test_rows_of_tasks_are_trained_side_by_side(tmp_path):
    """Two processes write what one writes; rows that exist are skipped, and a process that fails is named."""
    options = ["cartpole", "--rows", "avg-zero,min-max,alone", "--seeds=2", "--trajectories=16", "--label=short"]

    def use_one_core() -> None:  # the number of cores decides how sums are divided, and so how they are rounded
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

    def train(table: Path, *more: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(TASKS), *options, "--out", str(table), *more]
        return subprocess.run(command, text=True, capture_output=True, timeout=900, preexec_fn=use_one_core)

    def curves(table: Path) -> dict[str, list[list[float]]]:
        return {row["name"]: row["return"] for row in read_rows(table)}

    one, two = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    assert train(one).returncode == 0
    assert "3 rows in" in train(two, "--jobs", "2").stdout
    assert len(curves(one)) == 3 and curves(one) == curves(two)
    assert "0 rows in" in train(two, "--jobs", "2").stdout
    (tmp_path / "file").write_text("")  # where a folder is expected
    failed = train(tmp_path / "file" / "table.jsonl.gz", "--jobs", "2")
    assert failed.returncode == 1 and "failed: cartpole avg-zero; cartpole min-max" in failed.stderr


def test_rules_are_compared_by_rank_and_by_intervals():
    """Only results of DecByzPG with large batches count, and only attacks that all rules have met."""
    from what_matters import Standing, compare_rules, ranks

    def entry(name, scores, **options):
        cells = {
            attack: {"score": {"value": value, "low": value - 0.1, "high": value + 0.1}}
            for attack, value in scores.items()
        }
        setting = {"task": "easy", "federation": "k5", "cells": cells, "options": options}
        return {"name": name, "settings": [setting]}

    board = {
        "attacks": ["alie", "ipm"],
        "settings": [{"task": "easy", "federation": "k5"}, {"task": "hard", "federation": "k5"}],
        "entries": [
            entry("decbyzpg-rfa", {"none": 0.9, "alie": 0.5, "ipm": 0.4}),
            entry("decbyzpg-krum", {"none": 0.6, "alie": 0.6, "ipm": 0.4}),
            entry("decbyzpg-median", {"none": 1.0, "alie": 0.55}),
            entry("decbyzpg-page-rfa", {"none": 2.0, "alie": 2.0}, p=0.2),
            entry("naive", {"none": 2.0, "alie": 2.0}),
        ],
    }
    standings = compare_rules(board)
    assert standings == {
        ("easy", "k5"): {
            "rfa": {"none": Standing(0.9, 2, False), "alie": Standing(0.5, 3, False)},
            "krum": {"none": Standing(0.6, 3, True), "alie": Standing(0.6, 1, False)},
            "median": {"none": Standing(1.0, 1, False), "alie": Standing(0.55, 2, False)},
        }
    }
    lines = ranks(standings).splitlines()
    assert "| krum | 3 (0.60) | 1 (0.60) | 3 | no attack |" in lines
    assert lines[-3:] == ["| median | 2 | 1.50 | 1 | 2 | 0 |", "| krum | 2 | 2.00 | 1 | 1 | 1 |",
                          "| rfa | 2 | 2.50 | 0 | 1 | 0 |"]  # fmt: skip
