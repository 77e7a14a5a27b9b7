"""Statistics of finished runs: final returns, smoothed curves, and means over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.report.intervals import FEWEST_FOR_INTERVAL, Estimate, percentile_interval, stratified_iqm

MAX_GRID = 100_000  # points of a curve
FAILURE = 0.25  # of the way from the untrained policy to the best run; a seed that stays below it has failed
FINAL_PART = 0.05  # the last 5 % of a run's trajectories define its final return


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


def of_finite_seeds(metrics: dict[str, np.ndarray], values: np.ndarray) -> np.ndarray:
    """Return values of seeds, `[seeds]`, with NaN for every seed whose honest agents became non-finite."""
    return np.where(metrics["finite"].astype(bool).all(axis=1), values, np.nan)


def average_returns(metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Return the mean honest return over the whole run for every seed, `[seeds]`.

    It is the area under the learning curve, divided by the number of trajectories.
    """
    ends = metrics["trajectories"][:, -1:]
    return window_averages(metrics, np.zeros_like(ends), ends)[:, 0]


def smoothing_width(metrics: dict[str, np.ndarray]) -> int:
    """Return the number of trajectories that a point of a curve averages: a fiftieth of the run, at least a batch."""
    return max(1, int(metrics["batch"].max()), int(metrics["trajectories"][:, -1].min()) // 50)


def failure_level(runs: Sequence[dict[str, np.ndarray]]) -> float:
    """Return the final return below which a seed has failed, from the metrics of all runs that are compared.

    It is a quarter of the way from the untrained policy, the mean return of the first iteration over all runs, to the
    best run, the highest mean final return. It is −∞ if no run is better than the untrained policy.
    """
    untrained = float(np.nanmean([np.mean(metrics["returns"][:, 0]) for metrics in runs]))
    finals = [of_finite_seeds(metrics, final_returns(metrics)).mean() for metrics in runs]
    best = max((final for final in finals if np.isfinite(final)), default=-np.inf)
    return untrained + FAILURE * (best - untrained) if best > untrained else -np.inf


def have_failed(final: np.ndarray, level: float) -> np.ndarray:
    """Return which seeds have failed: those that became non-finite (NaN), and those below the level."""
    return ~(np.isfinite(final) & (final >= level))


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
    """Return the trajectories per agent until the return, averaged over seeds, is at least `level`; NaN if never.

    After every smallest batch, the return is averaged over as many of the last trajectories as the largest batch has,
    or over all before there are so many. The window does not depend on the length of the run.
    """
    smallest, largest = int(metrics["batch"].min()), int(metrics["batch"].max())
    longest = int(metrics["trajectories"][:, -1].min())
    ends = np.arange(smallest, longest + 1, max(smallest, longest // MAX_GRID + 1))
    mean = window_averages(metrics, np.maximum(ends - largest, 0), ends).mean(axis=0)
    return float(first_reached(ends, mean, level))


def mean_and_std(rows: np.ndarray) -> Estimate:
    """Return the mean over seeds of `[seeds, G]`, with an interval of one standard deviation on each side.

    The standard deviation has n − 1 in the denominator. With one seed the interval has length zero.
    """
    mean, std = rows.mean(axis=0), standard_deviation(rows) if len(rows) > 1 else 0.0
    return Estimate(mean, mean - std, mean + std)


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
        first, second = (_how_often_drawn(generator, len(runs), resamples) for runs in (x, y))
        values.append(wins.mean())
        resampled.append(np.sum(first @ wins * second, axis=1) / wins.size)
    return Estimate(np.asarray(np.mean(values)), *percentile_interval(np.mean(resampled, axis=0), confidence))


def _how_often_drawn(generator: np.random.Generator, count: int, resamples: int) -> np.ndarray:
    """Draw `count` of `count` runs with replacement, many times: how often each was drawn, `[resamples, count]`."""
    drawn = generator.integers(count, size=(resamples, count)) + count * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * count).reshape(resamples, count)


def within(estimate: Estimate, rows: np.ndarray, bounds: tuple[float, float]) -> Estimate:
    """Cut the interval of an estimate of `[seeds, G]` at the values that are possible.

    What was measured is possible, even if the bounds do not contain it.
    """
    if not np.isfinite(rows).any():
        return estimate
    least, greatest = min(bounds[0], np.nanmin(rows)), max(bounds[1], np.nanmax(rows))
    return Estimate(estimate.value, *(np.clip(end, least, greatest) for end in estimate[1:]))


# statistic over seeds -> function of [seeds, G], and its description
SEED_STATISTICS = {
    "mean": (mean_and_std, "line: mean over seeds; band: ± one standard deviation (n − 1)"),
    "iqm": (
        lambda rows: stratified_iqm([rows], resamples=2000),
        f"line: interquartile mean over seeds; band: 95 % bootstrap interval (from {FEWEST_FOR_INTERVAL} seeds on)",
    ),
}
