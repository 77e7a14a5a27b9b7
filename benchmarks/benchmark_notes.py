"""Print the numbers that the section "Reading the results" of docs/benchmark.md explains.

python benchmarks/benchmark_notes.py v1-lite benchmarks/results/benchmark/v1-lite
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from jaxbyz.benchmark.entries import MEAN, NO_ATTACK, Cell
from jaxbyz.benchmark.results import Result, load_results
from jaxbyz.benchmark.scores import (
    Settings,
    improvement,
    normalise,
    overall,
    performance,
    ranked_settings,
    reference_cells,
    references_of,
    score_entries,
)
from jaxbyz.benchmark.suite import Suite, load_suite
from jaxbyz.report.statistics import interquartile_mean, stratified_iqm


def scale_notes(suite: Suite, results: dict[Cell, Result]) -> None:
    """The reference with score 1 on the seeds of the entries, and how uncertain the reference with score 0 is."""
    for task, federation in suite.settings:
        references = references_of(suite, results, task, federation)
        if references is None:
            continue
        mean = performance(results[Cell(task, federation, MEAN, NO_ATTACK)], suite.statistics.measure)
        own = interquartile_mean(normalise(mean[: suite.seeds], references, suite.statistics.floor))
        alone = performance(results[reference_cells(task, federation)[0]], suite.statistics.measure)
        zero = stratified_iqm([alone], suite.statistics.resamples, suite.statistics.confidence)
        low, high = ((end - references.alone) / (references.mean - references.alone) for end in (zero.low, zero.high))
        print(f"{task} {federation}: the mean on the seeds of entries {own:.2f}; zero from {low:.2f} to {high:.2f}")


def entry_notes(suite: Suite, scores: dict[str, Settings]) -> str:
    """Score, median of its bootstrap samples, and the probability that the best entry beats it; return the best."""
    ranked = ranked_settings(suite, scores)
    totals = {name: total for name, found in scores.items() if (total := overall(suite, found, ranked)) is not None}
    names = sorted(totals, key=lambda name: -float(totals[name].value))
    for name in names:
        samples = [found for setting in ranked if (found := scores[name][setting].resampled) is not None]
        text = (
            f"{name}: score {totals[name].value:.2f}, median of bootstrap samples {np.median(np.mean(samples, 0)):.2f}"
        )
        beaten = improvement(suite, scores[names[0]], scores[name]) if name != names[0] else None
        better = f", beaten by {names[0]} {beaten.value:.2f} ({beaten.low:.2f} to {beaten.high:.2f})" if beaten else ""
        print(text + better)
    return names[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="name of the suite")
    parser.add_argument("folder", help="folder of the results")
    arguments = parser.parse_args()
    suite = load_suite(arguments.suite)
    results = load_results(arguments.folder, suite)
    scores = score_entries(suite, results)
    print(f"seeds that became non-finite: {sum(int((~result.finite).sum()) for result in results.values())}")
    scale_notes(suite, results)
    best = entry_notes(suite, scores)
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
