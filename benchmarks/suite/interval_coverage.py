"""How often the 95 % interval of an overall score contains the true score, by simulation.

    python benchmarks/suite/interval_coverage.py v1 benchmarks/results/benchmark/v1.jsonl.gz --entry decbyzpg-rfa

The measured seeds of every cell are taken as the whole population, so that the true score is known. Ten new seeds per
cell are drawn from them many times, and each time the interval is computed in two ways: under the attack that the drawn
seeds call worst, and with the worst attack chosen again in every bootstrap sample.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from jaxbyz.benchmark.entries import NO_ATTACK
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.report.intervals import interquartile_mean, percentile_interval


def seeds_of_cells(entry: dict[str, Any], ranked: list[list[str]]) -> list[np.ndarray]:
    """Return the scores of the seeds under every attack, `[seeds, attacks]` per ranked setting."""
    return [
        np.array([cell["seeds"] for attack, cell in setting["cells"].items() if attack != NO_ATTACK]).T
        for setting in entry["settings"]
        if [setting["task"], setting["federation"]] in ranked
    ]


def redrawn(cells: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Draw as many seeds as there are, with replacement and within every cell: `[seeds, count, attacks]`."""
    seeds, attacks = cells.shape
    return cells[generator.integers(0, seeds, (seeds, count, attacks)), np.arange(attacks)]


def simulate(cells: list[np.ndarray], draws: int, resamples: int, generator: np.random.Generator) -> dict[str, float]:
    """Return the true score, the mean of its estimates, and the coverage of both kinds of interval."""
    true = np.mean([interquartile_mean(setting).min() for setting in cells])
    estimates, fixed, chosen_again = [], [], []
    for _ in range(draws):
        values, of_worst, of_any = [], [], []
        for setting in cells:
            drawn = redrawn(setting, 1, generator)[:, 0]
            scores = interquartile_mean(drawn)
            again = interquartile_mean(redrawn(drawn, resamples, generator))
            values.append(scores.min())
            of_worst.append(again[:, scores.argmin()])
            of_any.append(again.min(axis=1))
        estimates.append(np.mean(values))
        for found, samples in ((fixed, of_worst), (chosen_again, of_any)):
            low, high = percentile_interval(np.mean(samples, axis=0), 0.95)
            found.append(low <= true <= high)
    return {
        "true": true,
        "estimated": np.mean(estimates),
        "fixed": np.mean(fixed),
        "chosen again": np.mean(chosen_again),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="name of the suite")
    parser.add_argument("results", help="folder or .jsonl.gz file of the results")
    parser.add_argument("--entry", nargs="+", metavar="NAME", help="entries (default: all that are complete)")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=400)
    arguments = parser.parse_args()
    board = load_leaderboard(arguments.suite, arguments.results)
    for entry in board["entries"]:
        if entry["overall"] is not None and entry["name"] in (arguments.entry or [entry["name"]]):
            cells = seeds_of_cells(entry, board["ranked"])
            found = simulate(cells, arguments.draws, arguments.resamples, np.random.default_rng(0))
            print(
                f"{entry['name']}: true score {found['true']:.2f}, mean estimate {found['estimated']:.2f}; coverage "
                f"{found['fixed']:.0%} under the worst attack, {found['chosen again']:.0%} if it is chosen again",
                flush=True,
            )


if __name__ == "__main__":
    main()
