"""How often the 95 % interval of an overall score contains the true score, by simulation.

    python benchmarks/suite/interval_coverage.py v1 benchmarks/results/benchmark/v1.jsonl.gz --entry decbyzpg-rfa
    python benchmarks/suite/interval_coverage.py v2-lite benchmarks/results/benchmark/v2-lite.jsonl.gz

The measured seeds of every cell are taken as the whole population, so that the true score is known. As many new seeds
per cell are drawn from them many times. For `v1` the interval is computed in two ways each time: under the attack that
the drawn seeds call worst, and with the worst attack chosen again in every bootstrap sample. For suites with paired
scores it is that of `jaxbyz.benchmark.paired_scores`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from jaxbyz.benchmark.checks import load_results
from jaxbyz.benchmark.entries import NO_ATTACK, Cell
from jaxbyz.benchmark.leaderboard import load_leaderboard
from jaxbyz.benchmark.paired_scores import gain, scale, worst_on_other_seeds
from jaxbyz.benchmark.scores import Results, estimate
from jaxbyz.benchmark.suite import Suite, load_suite
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


def simulate_paired(
    populations: list[tuple[np.ndarray, np.ndarray]],
    seeds: int,
    draws: int,
    resamples: int,
    generator: np.random.Generator,
) -> dict[str, float]:
    """Return the true score, the means of its estimates, and the coverage of the interval, for paired scores.

    Args:
        populations: one pair per task: the gains of an entry `[n, attacks]`, and those of the federation without liars
            `[n]`.
        seeds: how many seeds are drawn from each.
        draws: how often they are drawn.
        resamples: the number of bootstrap samples.
        generator: of the random numbers.
    """
    true = np.mean([gains.mean(axis=0).min() / unit.mean() for gains, unit in populations])
    covered, estimates, plain = 0, [], []
    for _ in range(draws):
        values, ends, of_worst = [], [], []
        for gains, unit in populations:
            drawn = generator.integers(0, len(gains), seeds)
            rows, units = gains[drawn], unit[drawn]
            worst = rows[:, rows.mean(axis=0).argmin()]
            crossed = rows[np.arange(seeds), worst_on_other_seeds(rows)]
            again = generator.integers(0, seeds, (resamples, seeds))
            scale = units[again].mean(axis=1)
            ends.append(np.stack([row[again].mean(axis=1) / scale for row in (worst, crossed)]))
            values.append(crossed.mean() / units.mean())
            of_worst.append(worst.mean() / units.mean())
        found = estimate(float(np.mean(values)), np.mean(ends, axis=0), 0.95, seeds)
        covered += bool(found.low <= true <= found.high)
        estimates.append(np.mean(values))
        plain.append(np.mean(of_worst))
    return {
        "true": float(true),
        "estimated": float(np.mean(estimates)),
        "chosen on all seeds": float(np.mean(plain)),
        "coverage": covered / draws,
    }


def paired_populations(suite: Suite, results: Results, entry: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the gains of an entry and of the federation without liars in every ranked setting that is complete."""
    found = []
    for task, federation in suite.settings:
        cells = [Cell(task, federation, entry, attack) for attack in suite.attacks_in(task, federation)]
        if suite.is_ranked(task, federation) and all(cell in results for cell in cells):
            rows = np.stack([gain(suite, results, cell) for cell in cells], axis=1)
            found.append((rows, scale(suite, results, task, federation)))
    return found


def report_paired(suite: Suite, results: Results, names: list[str], arguments: argparse.Namespace) -> None:
    """Print the simulation for entries of a suite with paired scores."""
    for name in names:
        if populations := paired_populations(suite, results, name):
            generator = np.random.default_rng(0)
            found = simulate_paired(populations, suite.seeds.count, arguments.draws, arguments.resamples, generator)
            print(
                f"{name}: true score {found['true']:.2f}, mean estimate {found['estimated']:.2f} (attack chosen on the "
                f"scored seeds: {found['chosen on all seeds']:.2f}); coverage {found['coverage']:.1%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="name of the suite")
    parser.add_argument("results", help="folder or .jsonl.gz file of the results")
    parser.add_argument("--entry", nargs="+", metavar="NAME", help="entries (default: all that are complete)")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=400)
    arguments = parser.parse_args()
    board = load_leaderboard(arguments.suite, arguments.results)
    if board["scoring"] == "paired":
        suite = load_suite(arguments.suite)
        names = arguments.entry or [entry["name"] for entry in board["entries"]]
        report_paired(suite, load_results(arguments.results, suite), names, arguments)
        return
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
