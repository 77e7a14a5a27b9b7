"""Intervals over seeds, by one method: the bootstrap, with percentiles that are corrected for few seeds.

A plain percentile interval of few values is too short: for normal values, the 95 % interval of their mean contains the
true mean in 83 % of all cases with 5 values. Here the percentiles are moved outwards, as far as a t-interval is longer
than a normal one that uses the standard deviation with n in the denominator (Hesterberg 2015, section 5.3, "expanded
percentile"). An interval still never leaves the range of the data. `benchmarks/learning/seed_intervals.py` measures
how often these intervals contain the truth, and docs/howto/compare.md has the result.

References:
    Hesterberg, What teachers should know about the bootstrap, The American Statistician 69, 2015.
    Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021 (interquartile mean,
        stratified bootstrap).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import nctdtr, ndtr, stdtrit

FEWEST_FOR_INTERVAL = (
    5  # the widest bootstrap interval of 3 values, their range, contains their mean in 76 % of all cases
)
CONFIDENCE = 0.95
POWER = 0.8  # the chance with which `seeds_to_show` wants a difference to be seen
MOST_SEEDS = 1000  # `seeds_to_show` does not look further
MAX_COLUMNS = 100  # of a curve, resampled at once


class Estimate(NamedTuple):
    """A value and the ends of its interval, all of the same shape (`[]` or `[G]`); NaN if there is no interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def without_interval(value: np.ndarray) -> Estimate:
    """Return an estimate without an interval."""
    unknown = np.full_like(value, np.nan)
    return Estimate(value, unknown, unknown)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Average the middle half of `[n, …]` along the first axis: the ⌊n/4⌋ lowest and highest scores are discarded."""
    n = scores.shape[0]
    cut = n // 4
    return np.sort(scores, axis=0)[cut : n - cut].mean(axis=0)


def bootstrap(
    strata: Sequence[np.ndarray],
    statistic: Callable[[list[np.ndarray]], np.ndarray],
    *,
    resamples: int = 10_000,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    together: bool = False,
) -> Estimate:
    """Return a statistic of strata of seeds, with a bootstrap interval that is corrected for few seeds.

    Seeds are resampled within every stratum. There is no interval if a stratum has fewer than `FEWEST_FOR_INTERVAL`
    seeds, or if a value is not finite.

    Args:
        strata: values `[seeds]` or `[seeds, G]` per stratum, for example one stratum per attack.
        statistic: takes strata `[seeds, …]`, and returns what remains without the first axis.
        resamples: the number of bootstrap samples.
        confidence: the nominal coverage of the interval.
        seed: the seed of the random generator.
        together: row i of every stratum is the same seed, and is drawn in all strata or in none.
    """
    if strata[0].ndim > 1 and (columns := strata[0].shape[1]) > MAX_COLUMNS:
        blocks = np.array_split(np.arange(columns), -(-columns // MAX_COLUMNS))
        again = functools.partial(bootstrap, resamples=resamples, confidence=confidence, seed=seed, together=together)
        parts = [again([rows[:, block] for rows in strata], statistic) for block in blocks]
        return Estimate(*map(np.concatenate, zip(*parts, strict=True)))
    value, sizes = np.asarray(statistic(list(strata))), [len(rows) for rows in strata]
    if min(sizes) < FEWEST_FOR_INTERVAL or not all(np.isfinite(rows).all() for rows in strata):
        return without_interval(value)
    generator = np.random.default_rng(seed)
    if together:
        sizes = sizes[:1]
        chosen = [generator.integers(sizes[0], size=(sizes[0], resamples))] * len(strata)
    else:
        chosen = [generator.integers(n, size=(n, resamples)) for n in sizes]
    resampled = statistic([rows[drawn] for rows, drawn in zip(strata, chosen, strict=True)])
    return Estimate(value, *percentile_interval(resampled, confidence, sizes))


def percentile_interval(values: np.ndarray, confidence: float, sizes: Sequence[int] = ()) -> np.ndarray:
    """Return the ends `[2, …]` of the percentile interval of bootstrap values `[resamples, …]`.

    Args:
        values: the statistic of every bootstrap sample.
        confidence: the nominal coverage.
        sizes: how many seeds each stratum has; then the percentiles are corrected for few seeds.
    """
    tail = (1 - confidence) / 2
    if sizes:
        fewest, freedom = min(sizes), sum(sizes) - len(sizes)
        tail = float(ndtr(-np.sqrt(fewest / (fewest - 1)) * stdtrit(freedom, 1 - tail)))
    return np.quantile(values, [tail, 1 - tail], axis=0)


def mean_of_strata(strata: list[np.ndarray]) -> np.ndarray:
    """Average over the seeds of every stratum, then over strata."""
    return np.mean([rows.mean(axis=0) for rows in strata], axis=0)


def bootstrap_mean(values: np.ndarray) -> Estimate:
    """Return the mean of `[n]` with its interval."""
    return bootstrap([values], mean_of_strata)


def stratified_iqm(strata: Sequence[np.ndarray], *, resamples: int = 10_000, together: bool = False) -> Estimate:
    """Return the interquartile mean of all strata together, with its interval (see `bootstrap`)."""
    return bootstrap(
        strata, lambda rows: interquartile_mean(np.concatenate(rows)), resamples=resamples, together=together
    )


def bootstrap_iqms(scores: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """Return the interquartile means `[resamples]` of samples that are drawn with replacement from scores `[n]`."""
    n = len(scores)
    return interquartile_mean(scores[generator.integers(n, size=(n, resamples))])


def difference_of_means(
    first: np.ndarray, second: np.ndarray, *, paired: bool, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the mean of `[n]` minus that of `[m]`, with its interval.

    Args:
        first: the values of one method, one per seed.
        second: the values of another.
        paired: value i of both belongs to the same seed; then the differences of the pairs are resampled.
        confidence: the nominal coverage of the interval.
    """
    if paired:
        return bootstrap([first - second], mean_of_strata, confidence=confidence)
    return bootstrap([first, second], lambda rows: rows[0].mean(axis=0) - rows[1].mean(axis=0), confidence=confidence)


def seeds_to_show(first: np.ndarray, second: np.ndarray, *, paired: bool, confidence: float = CONFIDENCE) -> int | None:
    """Return how many seeds per method would show the observed difference of means, or None if `MOST_SEEDS` do not.

    If the true difference and the true spread are those of the data, then a two-sided t-test with so many seeds finds
    it with probability `POWER`. The observed difference is itself uncertain, so this is an order of magnitude.
    """
    if paired:
        differences = first - second
        size, spread, samples = differences.mean(), differences.std(ddof=1), 1
    else:
        size, spread, samples = first.mean() - second.mean(), np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2), 2
    if size == 0 or not np.isfinite(spread):
        return None
    if spread == 0:
        return 2
    n = np.arange(2, MOST_SEEDS + 1)
    freedom, shift = samples * (n - 1), np.abs(size) / spread * np.sqrt(n / samples)
    critical = stdtrit(freedom, (1 + confidence) / 2)
    # The noncentral distribution function is not computed for large shifts, where the power is 1.
    found = np.where(shift - critical > 5, 1.0, 1 - nctdtr(freedom, np.minimum(shift, 30.0), critical))
    return int(n[np.argmax(found >= POWER)]) if (found >= POWER).any() else None
