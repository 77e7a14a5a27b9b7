"""Single rules against their definitions, and what the mathematics promises of them."""

from functools import cache, partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.rules import Receiver, aggregators, pre_aggregators
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.mda import _by_levels, _by_search
from jaxbyz.rules.selection import lowest
from jaxbyz.rules.signguard import SHIFTS, largest_cluster
from jaxbyz.rules.smea import filtered_subset, scatter_values


def least_diameter(squares, f):
    n = len(squares)
    return min(squares[np.ix_(s, s)].max() for s in combinations(range(n), n - f))


@pytest.mark.parametrize(
    "n", [1, 2, 3, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5, 6, 7, 9, 10, 11, 12))]
)
def test_mda_is_exact(n):
    check_mda(n, range((n + 1) // 2))


@pytest.mark.slow
@pytest.mark.parametrize("n", range(1, 13))
def test_mda_is_exact_for_every_f(n):
    check_mda(n, range((n + 1) // 2, n))


# Numbers of points, and of those left out, for which both kinds of search are checked.
BY_BOTH = {(5, 2), (5, 3), (8, 3), (10, 2), (10, 3)}


@cache
def search_program(search, f):
    return jax.jit(jax.vmap(partial(search, f=f)))


def squares_and_scores(clouds, f):
    """Squared distances of the points of each cloud, and the sums of the n − f smallest of every point."""
    squares = np.stack([((c[:, None] - c[None]) ** 2).sum(axis=2) for c in clouds]).astype(np.float32)
    return squares, np.sort(squares, axis=2)[:, :, : squares.shape[1] - f].sum(axis=2)


def check_mda(n, fs):
    rng = np.random.default_rng(n)
    clouds = [rng.normal(size=(n, 3)), rng.integers(0, 3, size=(n, 2)), np.repeat(rng.normal(size=(1, 2)), n, axis=0)]
    for f in fs:
        squares, score = squares_and_scores(clouds, f)
        searches = [_by_levels, _by_search] if (n, f) in BY_BOTH else [_by_levels if f <= 8 else _by_search]
        for search in searches if f else []:
            kept = np.asarray(search_program(search, f)(squares, score))
            for mask, square in zip(kept, squares, strict=True):
                chosen = np.flatnonzero(mask)
                assert len(chosen) == n - f
                assert square[np.ix_(chosen, chosen)].max() == least_diameter(square, f)


def test_both_searches_choose_the_same_optimal_subset():
    n, f = 8, 3
    counts = []
    for clouds in np.random.default_rng(3).normal(size=(14, 3, n, 5)):
        squares, score = squares_and_scores(clouds, f)
        levels, search = (search_program(by, f)(squares, score) for by in (_by_levels, _by_search))
        np.testing.assert_array_equal(levels, search)
        for square in squares:
            diameters = np.array([square[np.ix_(c, c)].max() for c in combinations(range(n), n - f)])
            counts.append((diameters == diameters.min()).sum())
    assert max(counts) > 1  # there were several optimal subsets


def test_smea_beyond_enumeration_is_a_local_minimum():
    n, f = 12, 4
    x = np.random.default_rng(5).normal(size=(n, 6)).astype(np.float32)
    x[:2] += 20
    rule = aggregators["smea"].build(n, f, subsets=1)
    shares = jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), ()).shares[0])
    kept = np.flatnonzero(shares(x))
    gram = x @ x.T
    start = np.flatnonzero(jax.jit(partial(filtered_subset, f=f))(gram, np.ones(n, bool)))
    members = np.stack([np.isin(np.arange(n), subset) for subset in (kept, start)])
    found, before = np.asarray(jax.jit(scatter_values)(gram, members.astype(np.float32)))
    assert len(kept) == n - f and not set(kept) & {0, 1}
    assert found <= before * (1 + 1e-5)


def test_caf_follows_its_definition():
    n, f = 10, 3
    x = np.random.default_rng(6).normal(size=(n, 5))
    x[:3] += 4
    c, best, least = np.ones(n), None, np.inf
    while c.sum() > n - 2 * f:
        mean = c @ x / c.sum()
        values, directions = np.linalg.eigh((x - mean).T @ ((x - mean) * c[:, None]) / c.sum())
        if values[-1] < least:
            best, least = mean, values[-1]
        tau = np.where(c > 0, (x - mean) @ directions[:, -1], 0.0) ** 2  # of those still counted
        c = c * (1 - tau / tau.max())
    rule = aggregators["caf"].build(n, f)
    with jax.enable_x64(True):
        mine = jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), ()).rows[0])(x)
    np.testing.assert_allclose(mine, best, rtol=1e-6)


def test_bulyan_follows_its_definition():
    n, f = 15, 3  # so that at least two neighbours always count: with one, mutual nearest points are tied
    x = np.random.default_rng(7).normal(size=(n, 4)).astype(np.float32)
    left, taken = list(range(n)), []
    while len(taken) < n - 2 * f:
        squares = ((x[left][:, None] - x[left][None]) ** 2).sum(axis=2)
        scores = np.sort(squares, axis=1)[:, 1 : 1 + max(1, len(left) - f - 2)].sum(axis=1)
        taken.append(left.pop(int(np.argmin(scores))))
    picked = x[taken]
    gaps = np.abs(picked - np.median(picked, axis=0))
    nearest = np.argsort(gaps, axis=0)[: n - 4 * f]
    rule = aggregators["bulyan"].build(n, f)
    mine = jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), ()).rows[0])(x)
    np.testing.assert_allclose(mine, np.take_along_axis(picked, nearest, axis=0).mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "rule",
    [
        "rfa",
        *(
            pytest.param(rule, marks=pytest.mark.slow)
            for rule in ("rfa:start=zero", "trimmed-mean", "centered-clipping")
        ),
    ],
)
def test_gradients_agree_with_finite_differences(rule):
    with jax.enable_x64(True):
        x = np.random.default_rng(7).normal(size=(20, 9))
        aim = np.random.default_rng(8).normal(size=9)

        def along(x):
            return jb.aggregate(rule, jax.random.key(0), x, byzantine=4) @ aim

        value_and_gradient = jax.jit(jax.value_and_grad(along))
        step = 1e-6 * np.random.default_rng(9).normal(size=x.shape)
        (value, gradient), (above, _), (below, _) = map(value_and_gradient, (x, x + step, x - step))
        slope = (float(above) - float(below)) / 2
        assert np.isfinite(value) and abs(slope) > 0
        np.testing.assert_allclose(np.sum(np.asarray(gradient) * step), slope, rtol=2e-3)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_of_close_points_far_from_zero(offset):
    """Parameters in agreement are close together and far from zero; Byzantine ones are farther still."""
    x = np.random.default_rng(2).normal(size=(9, 50)).astype(np.float32) * 1e-2 + np.float32(offset)
    x[:2] = 1e12
    exact = ((x[2:, None].astype(np.float64) - x[None, 2:]) ** 2).sum(axis=2)
    np.testing.assert_allclose(jax.jit(squared_distances)(x)[2:, 2:], exact, rtol=1e-3)


@pytest.mark.parametrize("count", [1, 6, 15, 19, 20])
def test_the_lowest_scores_share_the_last_places(count):
    """Sorting with the ties averaged gives the same, infinite scores included."""
    scores = np.random.default_rng(count).integers(0, 8, (3, 20)).astype(np.float32)
    scores[0, :3] = np.inf
    scores[1] = 7.0
    for row in scores:
        kept = (np.argsort(np.argsort(row, kind="stable"), kind="stable") < count).astype(float)
        shared = np.array([kept[row == value].mean() for value in row])
        np.testing.assert_allclose(jax.jit(lowest, static_argnums=1)(row, count), shared, rtol=1e-6)


@pytest.mark.parametrize(("n", "f"), [(16, 1), (12, 3)])
@pytest.mark.parametrize(
    "name",
    [
        "bucketing+median",
        *(pytest.param(f"bucketing+{rule}", marks=pytest.mark.slow) for rule in ("rfa", "trimmed-mean")),
    ],
)
def test_bad_buckets_stay_a_minority(name, n, f):
    honest = np.random.default_rng(n).standard_normal((n - f, 4)).astype(np.float32)
    messages = np.concatenate([np.full((f, 4), 1e6, np.float32), honest])
    found = [jb.aggregate(name, jax.random.key(seed), messages, byzantine=f) for seed in range(16)]
    assert np.abs(found).max() < 2 * np.abs(honest).max()


def test_behind_bucketing_monna_trusts_no_bucket():
    messages = np.random.default_rng(0).standard_normal((13, 4)).astype(np.float32)
    messages[:2] = 1e6
    found = [jb.aggregate("bucketing+monna", jax.random.key(seed), messages, byzantine=2, own=12) for seed in range(30)]
    assert np.abs(found).max() < 4


@pytest.mark.parametrize("name", ["caf", "rfa", pytest.param("rfa:rounds=3", marks=pytest.mark.slow)])
def test_gradients_of_small_and_large_messages_are_finite(name):
    gradient = jax.jit(jax.grad(lambda x: jb.aggregate(name, jax.random.key(0), x, byzantine=2).sum()))
    for scale in (1e-15, 1e-10, 1e12):
        slope = gradient((scale * np.random.default_rng(0).standard_normal((9, 3))).astype(np.float32))
        assert np.isfinite(slope).all() and np.abs(slope).max() > 0.01, scale


def test_signguard_clips_to_the_median_length():
    messages = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [3.0, 0.0], [3.0, 0.0]])
    out = jb.aggregate("signguard", jax.random.key(0), messages, fraction=1.0)
    np.testing.assert_allclose(out, [1.5, 0.0], atol=1e-6)  # M = 2


@pytest.mark.parametrize("n", [pytest.param(128, marks=pytest.mark.slow), 130])
def test_signguards_bandwidth_leaves_unusable_messages_out(n):
    """A bandwidth that counted unusable rows would give another cluster."""
    rng = np.random.default_rng(n)
    features, ok = rng.random((n, 3)).astype(np.float32), np.arange(n) >= 40
    gaps = np.linalg.norm(features[ok][:, None].astype(float) - features[ok][None], axis=2)
    width = np.sort(gaps, axis=1)[:, n // 2 - 1].mean()
    modes = features.astype(float)
    for _ in range(SHIFTS):
        inside = np.linalg.norm(modes[:, None] - features[ok][None], axis=2) <= width
        means = inside @ features[ok] / np.maximum(inside.sum(axis=1, keepdims=True), 1)
        modes = np.where(inside.any(axis=1, keepdims=True), means, modes)
    members = np.linalg.norm(modes[ok][:, None] - features[ok][None], axis=2) <= width
    weights = np.asarray(jax.jit(largest_cluster)(features, ok))
    assert np.all(weights[~ok] == 0) and round(weights.sum()) == members.sum(axis=1).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e25])
def test_centred_clipping_does_not_count_unusable_messages(bad):
    """Counting them would pull the result towards zero, where it starts."""
    x = np.random.default_rng(0).normal(3.0, 1.0, (9, 4)).astype(np.float32)
    with_bad = np.concatenate([x[:6], np.full((3, 4), bad, np.float32)])
    options = {"radius": 2.0, "rounds": 3}
    expected = jb.aggregate("centered-clipping", jax.random.key(0), x[:6], **options)
    found = jb.aggregate("centered-clipping", jax.random.key(0), with_bad, byzantine=3, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_monna_without_an_own_message_takes_the_shortest_others():
    x = np.array([[np.nan, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 0.0]], np.float32)
    np.testing.assert_allclose(jb.aggregate("monna", jax.random.key(0), x, byzantine=2, unsafe=True), [1.5, 0.0])


BUILT = {entry.name: entry.build(9, 2) for entry in (*aggregators, *pre_aggregators)}
REGISTERED = {
    name: built if isinstance(built, jb.Rule) else built(aggregators["rfa"].build(9, 2))
    for name, built in BUILT.items()
}
COORDINATEWISE = ("median", "trimmed-mean", "meamed", "bulyan", "signguard")


@pytest.mark.parametrize("name", [*(name for name, rule in REGISTERED.items() if rule.rotates), *COORDINATEWISE])
def test_rules_that_rotate(name):
    """If `Rule.rotates`, rotating all messages rotates the result; rules that look at coordinates do not claim it."""
    rule = REGISTERED[name]
    rng = np.random.default_rng(8)
    x = rng.normal(size=(9, 6)).astype(np.float32) + 1
    x[:2] += 5
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0].astype(np.float32)
    apply = jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), rule.init(9, 6)).rows)
    error = np.abs(apply(x @ rotation) - apply(x) @ rotation).max()
    assert error < 1e-5 if rule.rotates else error > 1e-3
