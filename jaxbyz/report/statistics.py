"""Statistics of finished runs: final returns, smoothed curves, and aggregates over seeds with intervals.

The interquartile mean with stratified bootstrap intervals follows Agarwal et al. (2021) and their package rliable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxbyz.errors import UsageError

MAX_GRID = 100_000  # points of a curve
FINAL_PART = 0.05  # the last 5 % of a run's trajectories define its final return
# A bootstrap interval of fewer values is not shown: that of two or three is their range. For normal values, the 95 %
# interval of their mean contains the true mean in 51 % of all cases with 2 values, 75 % with 3, 83 % with 5, 90 % with
# 10 and 93 % with 20.
FEWEST_FOR_INTERVAL = 5


def final_returns(metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Return the final honest return of every seed, `[seeds]` (see `final_values`)."""
    return final_values(metrics, "returns")


def final_values(metrics: dict[str, np.ndarray], metric: str) -> np.ndarray:
    """Return the final value of a metric for every seed, `[seeds]`: the mean over the last 5 % of the trajectories.

    Every trajectory counts the same, in a small batch as in a large one, and so do those of the whole iteration in
    which the last 5 % begin.
    """
    trajectories, values, batch = metrics["trajectories"], metrics[metric], metrics["batch"]
    weight = np.where(trajectories >= (1 - FINAL_PART) * trajectories[:, -1:], batch, 0)
    return np.sum(np.where(weight > 0, values * weight, 0.0), axis=1) / np.sum(weight, axis=1)


def smoothing_width(metrics: dict[str, np.ndarray]) -> int:
    """Return the number of trajectories that a point of a curve averages: a fiftieth of the run, at least a batch."""
    return max(1, int(metrics["batch"].max()), int(metrics["trajectories"][:, -1].min()) // 50)


def standard_deviation(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation over the first axis, seeds, with n − 1 in the denominator; NaN for one seed."""
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)


def smoothed(
    metrics: dict[str, np.ndarray], width: int = 100, metric: str = "returns", step: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Average a metric over windows of `width` trajectories, on a grid that all seeds share.

    Iterations are weighted by their number of trajectories, so large batches count more than small ones.

    Args:
        metrics: as in `RunData`.
        width: the length of a window.
        metric: the name of the metric.
        step: the distance between the ends of two windows; by default they follow each other without overlap.

    Returns:
        The grid of trajectories per agent `[G]`, and the averages `[seeds, G]`.
    """
    trajectories = metrics["trajectories"].astype(float)
    length, step = trajectories[:, -1].min(), step or width
    if length / step > MAX_GRID:
        raise UsageError(
            f"width={width}: {length:.0f} trajectories give more than {MAX_GRID} points; choose a larger one"
        )
    grid = np.arange(width, length + 1e-9, step)
    if grid.size == 0:
        grid = trajectories[:1, -1]
    return grid, window_averages(metrics, np.maximum(grid - width, 0), grid, metric)


def window_averages(
    metrics: dict[str, np.ndarray], start: np.ndarray, end: np.ndarray, metric: str = "returns"
) -> np.ndarray:
    """Average a metric over windows of trajectories per agent, weighted by the trajectories of each iteration.

    Args:
        metrics: as in `RunData`.
        start: `[G]` or `[seeds, G]`, the trajectories at which each window begins.
        end: `[G]` or `[seeds, G]`, the trajectories at which it ends.
        metric: the name of the metric.

    Returns:
        The averages `[seeds, G]`, of what was sampled in each window; NaN if that is nothing.
    """
    trajectories, values = metrics["trajectories"].astype(float), metrics[metric].astype(float)
    shape = len(trajectories), np.shape(end)[-1]
    starts, ends = np.broadcast_to(start, shape), np.broadcast_to(end, shape)
    rows = []
    for x, y, first, last in zip(trajectories, values, starts, ends, strict=True):
        edges = np.concatenate([[0.0], x])
        integral = np.concatenate([[0.0], np.cumsum(y * np.diff(edges))])
        sampled = np.minimum(last, x[-1]) - np.minimum(first, x[-1])
        total = np.interp(last, edges, integral) - np.interp(first, edges, integral)
        rows.append(np.divide(total, sampled, out=np.full(len(total), np.nan), where=sampled > 0))
    return np.stack(rows)


def first_reached(x: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """Return the first x at which each curve is at least `level`; NaN if it never is.

    Args:
        x: `[G]`.
        y: `[G]` for one curve or `[n, G]` for several. NaN counts as below every level.
        level: the value to reach.
    """
    reached = np.nan_to_num(y, nan=-np.inf) >= level
    return np.where(reached.any(axis=-1), x[np.argmax(reached, axis=-1)], np.nan)


def trajectories_to_level(metrics: dict[str, np.ndarray], level: float) -> float:
    """Return the trajectories per agent until the smoothed return, averaged over seeds, reaches `level`; or NaN.

    The return is averaged over the last 100 trajectories and examined after every smallest batch, at most 100.
    """
    smallest = int(metrics["batch"].min())
    longest = int(metrics["trajectories"][:, -1].min())
    x, y = smoothed(metrics, step=max(min(100, smallest), longest // MAX_GRID + 1))
    return float(first_reached(x, y.mean(axis=0), level))


class Estimate(NamedTuple):
    """A value and the ends of its interval, all of the same shape (`[]` or `[G]`); NaN if there is no interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def without_interval(value: np.ndarray) -> Estimate:
    """Return an estimate without an interval."""
    unknown = np.full_like(value, np.nan)
    return Estimate(value, unknown, unknown)


def mean_and_std(rows: np.ndarray) -> Estimate:
    """Return the mean over seeds of `[seeds, G]`, with an interval of one standard deviation on each side.

    The standard deviation has n − 1 in the denominator. With one seed the interval has length zero.
    """
    mean, std = rows.mean(axis=0), standard_deviation(rows) if len(rows) > 1 else 0.0
    return Estimate(mean, mean - std, mean + std)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Average the middle half of `[n, …]` along the first axis: the ⌊n/4⌋ lowest and highest scores are discarded."""
    n = scores.shape[0]
    cut = n // 4
    return np.sort(scores, axis=0)[cut : n - cut].mean(axis=0)


def stratified_iqm(
    strata: Sequence[np.ndarray], resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """Return the interquartile mean of all strata together, with a percentile bootstrap interval.

    The bootstrap resamples the seeds within every stratum. There is no interval if there are fewer than
    `FEWEST_FOR_INTERVAL` scores in all, or only one in a stratum.

    Args:
        strata: scores `[seeds]` or `[seeds, G]` per stratum, for example one stratum per attack. The number of seeds
            may differ.
        resamples: the number of bootstrap samples.
        confidence: the coverage of the interval.
        seed: the seed of the random generator.
    """
    value = interquartile_mean(np.concatenate(strata))
    if sum(map(len, strata)) < FEWEST_FOR_INTERVAL or min(map(len, strata)) < 2:
        return without_interval(value)
    generator = np.random.default_rng(seed)
    resampled_means = []
    for _ in range(resamples):
        resampled = [rows[generator.integers(len(rows), size=len(rows))] for rows in strata]
        resampled_means.append(interquartile_mean(np.concatenate(resampled)))
    return Estimate(value, *percentile_interval(np.stack(resampled_means), confidence))


def bootstrap_mean(values: np.ndarray, resamples: int = 2000, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Return the mean of `[n]` with a percentile bootstrap interval, if there are at least `FEWEST_FOR_INTERVAL`."""
    mean, n = np.asarray(values.mean()), len(values)
    if n < FEWEST_FOR_INTERVAL:
        return without_interval(mean)
    chosen = np.random.default_rng(seed).integers(0, n, (resamples, n))
    return Estimate(mean, *percentile_interval(values[chosen].mean(axis=1), confidence))


def bootstrap_iqms(scores: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """Return the interquartile means `[resamples]` of samples that are drawn with replacement from scores `[n]`."""
    n = len(scores)
    return interquartile_mean(scores[generator.integers(n, size=(n, resamples))])


def percentile_interval(values: np.ndarray, confidence: float) -> np.ndarray:
    """Return the ends `[2, …]` of the percentile interval of bootstrap values `[resamples, …]`."""
    tail = 50 * (1 - confidence)
    return np.percentile(values, [tail, 100 - tail], axis=0)


def performance_profile(scores: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return for each level `[G]` the share of the scores `[n]` that are at least as high."""
    return np.mean(scores[:, None] >= levels, axis=0)


def probability_of_improvement(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], resamples: int = 200, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """Return the probability that a run of one method beats a run of another, as the mean over problems.

    On each problem this is the Mann–Whitney statistic: the share of pairs of runs in which the first is better, where
    a tie counts one half. The bootstrap resamples the runs of both methods within every problem.

    Args:
        pairs: for every problem the scores `[n]` of the first method and `[m]` of the second.
        resamples: the number of bootstrap samples.
        confidence: the coverage of the interval.
        seed: the seed of the random generator.
    """
    generator = np.random.default_rng(seed)
    values, resampled = [], []
    for x, y in pairs:
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        rows = generator.integers(len(x), size=(resamples, len(x), 1))
        columns = generator.integers(len(y), size=(resamples, 1, len(y)))
        values.append(wins.mean())
        resampled.append(wins[rows, columns].mean(axis=(1, 2)))
    return Estimate(np.asarray(np.mean(values)), *percentile_interval(np.mean(resampled, axis=0), confidence))


# statistic over seeds -> function of [seeds, G], and its description
SEED_STATISTICS = {
    "mean": (mean_and_std, "mean ± standard deviation (n − 1) over seeds"),
    "iqm": (
        lambda rows: stratified_iqm([rows]),
        f"interquartile mean over seeds, 95 % bootstrap interval (from {FEWEST_FOR_INTERVAL} seeds on)",
    ),
}
