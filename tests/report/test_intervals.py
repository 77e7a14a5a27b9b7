"""Intervals over seeds: they agree with other programs and contain the truth as often as the documentation says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxbyz.report.intervals import (
    bootstrap,
    bootstrap_mean,
    difference_of_means,
    interquartile_mean,
    mean_of_strata,
    percentile_interval,
    seeds_to_show,
    stratified_iqm,
)


@pytest.mark.parametrize("n", [1, 3, 4, 10, 11])
def test_interquartile_mean_is_the_trimmed_mean(n):
    scores = np.random.default_rng(n).normal(size=(n, 5))
    np.testing.assert_allclose(interquartile_mean(scores), stats.trim_mean(scores, 0.25, axis=0))


def test_uncorrected_percentiles_agree_with_rliable():
    """Recorded from rliable 1.2.0: get_interval_estimates of aggregate_iqm, 20000 resamples, the same scores."""
    scores = np.random.default_rng(0).normal(size=(3, 10))  # tasks × seeds
    generator = np.random.default_rng(1)
    drawn = np.concatenate([row[generator.integers(10, size=(10, 4000))] for row in scores])
    low, high = percentile_interval(interquartile_mean(drawn), 0.95)
    assert (low, high) == (pytest.approx(-0.41877, abs=0.02), pytest.approx(0.17185, abs=0.02))
    value, lower, higher = stratified_iqm(list(scores))
    assert value == pytest.approx(-0.14516161, abs=1e-8)
    assert lower < low < value < high < higher  # corrected for few seeds


def test_the_correction_is_that_of_a_t_interval():
    """For many values that are nearly normal, the corrected interval of the mean is the t-interval."""
    values = stats.norm.ppf((np.arange(40) + 0.5) / 40)
    low, high = stats.t.interval(0.95, 39, values.mean(), values.std(ddof=1) / np.sqrt(40))
    found = bootstrap_mean(values)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))


@pytest.mark.parametrize(("n", "at_least"), [(5, 0.89), (10, 0.92)])
def test_intervals_contain_the_mean_of_normal_values(n, at_least):
    """The documentation says 92 % and 94 %; plain percentiles contain it in 83 % and 90 % of all cases."""
    rows = np.random.default_rng(0).normal(size=(n, 600))
    found = bootstrap([rows], mean_of_strata, resamples=3000)
    assert np.mean((found.low <= 0) & (found.high >= 0)) >= at_least


def test_the_bootstrap_resamples_within_strata():
    """Differences between strata do not widen the interval: with constant strata it has length zero."""
    value, low, high = stratified_iqm([np.full(6, 1.0), np.full(6, 9.0)])
    assert value == low == high == 5.0
    opposite = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    value, low, high = bootstrap([opposite, -opposite], mean_of_strata, together=True)
    assert value == low == high == 0.0  # row i is the same seed in both
    assert bootstrap([opposite, -opposite], mean_of_strata).high > 0.5


def test_few_or_non_finite_values_have_no_interval():
    assert np.isnan(bootstrap_mean(np.arange(4.0)).low) and np.isfinite(bootstrap_mean(np.arange(5.0)).low)
    assert np.isnan(stratified_iqm([np.arange(9.0), np.arange(2.0)]).low)
    broken = bootstrap_mean(np.array([1.0, 2.0, 3.0, 4.0, 5.0, np.nan]))
    assert np.isnan(broken.value) and np.isnan(broken.low)


def test_curves_are_resampled_in_blocks():
    rows = np.random.default_rng(0).normal(size=(6, 250))
    whole, part = stratified_iqm([rows], resamples=200), stratified_iqm([rows[:, :50]], resamples=200)
    assert whole.low.shape == (250,)
    np.testing.assert_array_equal(whole.low[:50], part.low)


def test_paired_differences_use_the_pairs():
    generator = np.random.default_rng(0)
    seeds, noise = 50 * generator.normal(size=10), generator.normal(size=10)
    paired = difference_of_means(seeds + 3 + noise, seeds, paired=True)
    apart = difference_of_means(seeds + 3 + noise, seeds, paired=False)
    assert paired.value == pytest.approx(apart.value) and paired.low > 0 > apart.low


@pytest.mark.parametrize(("paired", "seeds"), [(True, 34), (False, 64)])
def test_the_number_of_seeds_is_that_of_tables_of_power(paired, seeds):
    """Cohen (1988): a difference of half a standard deviation, two-sided 5 %, power 80 %."""
    values = np.arange(1000.0)
    values = (values - values.mean()) / values.std(ddof=1)
    second = np.zeros(1000) if paired else values[::-1]
    assert seeds_to_show(values + 0.5, second, paired=paired) == seeds
    assert seeds_to_show(values, second, paired=paired) is None  # no difference
    assert seeds_to_show(values + 1e-4, second, paired=paired) is None  # more than any number that is tried
    assert seeds_to_show(np.full(5, 2.0), np.full(5, 1.0), paired=paired) == 2
