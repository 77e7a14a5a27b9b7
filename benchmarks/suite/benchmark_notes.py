"""Print the numbers that the sections "Reading the results" of docs/measurements/benchmark.md explain.

python benchmarks/suite/benchmark_notes.py v1-lite benchmarks/results/benchmark/v1-lite.jsonl.gz
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np

from jaxbyz.benchmark.checks import load_results
from jaxbyz.benchmark.entries import ALONE, MEAN, Cell
from jaxbyz.benchmark.leaderboard import leaderboard
from jaxbyz.benchmark.reference_scores import References
from jaxbyz.benchmark.scores import performance
from jaxbyz.benchmark.scoring import score_entries
from jaxbyz.benchmark.suite import load_suite


def scale_notes(board: dict[str, Any]) -> None:
    """The references on the seeds of the entries, and how uncertain the one with score 0 is."""
    for setting in board["settings"]:
        if not setting["on_entry_seeds"]:
            continue
        references, task, federation = References(**setting["references"]), setting["task"], setting["federation"]
        own, zero = setting["on_entry_seeds"], setting["reference_intervals"][ALONE]
        low, high = ((zero[end] - references.alone) / (references.mean - references.alone) for end in ("low", "high"))
        print(
            f"{task} {federation}: on the seeds of entries one agent {own[ALONE]:.2f} and the mean {own[MEAN]:.2f}; "
            f"zero from {low:.2f} to {high:.2f}"
        )


def entry_notes(board: dict[str, Any]) -> str:
    """The score of every entry, and the probability that the best entry beats it; return the best."""
    names = [entry["name"] for entry in board["entries"]]  # the best first
    for entry, beaten in zip(board["entries"], board["improvement"][0], strict=True):
        name, total = entry["name"], entry["overall"]
        if total is None:
            continue
        text = f"{name}: score {total['value']:.2f}"
        better = ""
        if beaten is not None:
            better = f", beaten by {names[0]} {beaten['value']:.2f} ({beaten['low']:.2f} to {beaten['high']:.2f})"
        print(text + better)
    return names[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="name of the suite")
    parser.add_argument("results", help="folder or .jsonl.gz file of the results")
    arguments = parser.parse_args()
    suite = load_suite(arguments.suite)
    results = load_results(arguments.results, suite)
    scores = score_entries(suite, results)
    print(f"seeds that became non-finite: {sum(int((~result.finite).sum()) for result in results.values())}")
    board = leaderboard(suite, results, {})
    scale_notes(board)
    best = entry_notes(board)
    print("worst attacks:", dict(Counter(one.worst for found in scores.values() for one in found.values())))
    for (task, federation), found in scores[best].items():
        if found.worst is not None:
            run = results[Cell(task, federation, best, found.worst)]
            returns = " ".join(f"{value:.3g}" for value in performance(run, suite.statistics.measure))
            print(f"{best} on {task} {federation} under {found.worst}: returns by seed {returns}")
    for task in suite.tasks:
        seconds = [result.seconds for cell, result in results.items() if cell.task == task]
        if seconds:
            longest = f"median {np.median(seconds):.0f} s, at most {max(seconds):.0f} s"
            print(f"{task}: {len(seconds)} trainings, {sum(seconds) / 60:.1f} min, {longest}")


if __name__ == "__main__":
    main()
