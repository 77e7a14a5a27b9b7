"""How often the 95 % intervals of `jaxbyz compare` contain the truth, by simulation, beside plain percentiles.

    python benchmarks/learning/seed_intervals.py

Seeds are drawn many times from a distribution whose mean and interquartile mean are known. The distributions are
returns as they occur: nearly normal; exponentially far below the maximum; cut at the maximum; and good in most seeds
but failed in every fifth. Takes two minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from jaxbyz.report.intervals import (
    CONFIDENCE,
    bootstrap,
    difference_of_means,
    interquartile_mean,
    mean_of_strata,
    percentile_interval,
    stratified_iqm,
)

POPULATION = 2_000_000


def _failing(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    failed = generator.uniform(size=shape) < 0.2
    return np.where(failed, generator.normal(150, 60, shape), generator.normal(480, 10, shape))


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.normal(400, 20, shape),
    "exponential below 500": lambda generator, shape: 500 - generator.exponential(20, shape),
    "normal, cut at 500": lambda generator, shape: np.minimum(generator.normal(490, 20, shape), 500),
    "every fifth seed fails": _failing,
}


def covered(interval: tuple[np.ndarray, np.ndarray], truth: float) -> str:
    """Return the share of intervals that contain the truth, in per cent."""
    low, high = interval
    return f"{100 * np.mean((low <= truth + 1e-9) & (truth - 1e-9 <= high)):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 10, 20])
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    print("| distribution | seeds | mean | plain percentiles | IQM | difference, paired | unpaired |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name, draw in DISTRIBUTIONS.items():
        population = np.sort(draw(generator, (POPULATION,)))
        mean, middle = population.mean(), interquartile_mean(population)
        for n in arguments.seeds:
            rows, others = draw(generator, (n, arguments.draws)), draw(generator, (n, arguments.draws))
            drawn = generator.integers(n, size=(n, 2000))
            plain = [percentile_interval(column[drawn].mean(axis=0), CONFIDENCE) for column in rows.T]
            cells = [
                covered(bootstrap([rows], mean_of_strata, resamples=4000)[1:], mean),
                covered(tuple(np.transpose(plain)), mean),
                covered(stratified_iqm([rows], resamples=4000)[1:], middle),
                *(covered(difference_of_means(rows, others, paired=paired)[1:], 0.0) for paired in (True, False)),
            ]
            print(f"| {name} | {n} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
