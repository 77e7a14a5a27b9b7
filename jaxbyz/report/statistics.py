"""Numbers that stand for many seeds: the interquartile mean with stratified bootstrap intervals.

As Agarwal et al. 2021 (rliable) define them: scores of all strata (here: runs under different attacks, or one run
alone) are pooled and the middle half is averaged; the bootstrap draws seeds anew within every stratum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A value [G] (or []) and the ends of its interval, of the same shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of what is left of [n, …] when ⌊n/4⌋ are cut at either end, along the first axis."""
    n = scores.shape[0]
    cut = n // 4
    return np.sort(scores, axis=0)[cut : n - cut].mean(axis=0)


def stratified_iqm(
    strata: Sequence[np.ndarray], resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Interquartile mean over strata of [seeds] or [seeds, G] scores, with percentile bootstrap intervals.

    Strata may differ in their number of seeds. With one seed each the interval is the point itself.
    """
    generator = np.random.default_rng(seed)
    value = interquartile_mean(np.concatenate(strata))
    drawn = []
    for _ in range(resamples):
        again = [rows[generator.integers(len(rows), size=len(rows))] for rows in strata]
        drawn.append(interquartile_mean(np.concatenate(again)))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.stack(drawn), [tail, 100 - tail], axis=0)
    return Estimate(value, low, high)


def mean_and_std(rows: np.ndarray) -> Estimate:
    """Mean over seeds [seeds, G], one standard deviation either side."""
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    return Estimate(mean, mean - spread, mean + spread)


SPREADS = {
    "mean": (mean_and_std, "mean and standard deviation over seeds"),
    "iqm": (lambda rows: stratified_iqm([rows]), "interquartile mean over seeds, 95 % bootstrap interval"),
}
