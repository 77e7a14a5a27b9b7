"""What mathematics promises of the rules, on inputs hypothesis makes up."""

from functools import cache
from itertools import combinations

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbyz as jb
from jaxbyz.rules import Receiver, aggregators
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.mda import _by_levels, _by_search
from jaxbyz.rules.selection import lowest, neighbour_sums
from jaxbyz.rules.signguard import SHIFTS, largest_cluster
from jaxbyz.rules.smea import filtered_subset, scatter_values

K, D, F = 9, 3, 2
numbers = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
vectors = arrays.arrays(np.float32, (K, D), elements=numbers)
far = arrays.arrays(np.float32, (F, D), elements=st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False))
few = settings(max_examples=20, deadline=None, derandomize=True)

EVERY = [e.name for e in aggregators]
MOVES = [
    "mean",
    "krum",
    "rfa",
    "mda",
    "monna",
    "median",
    "trimmed-mean",
    "meamed",
    "multi-krum",
    "bulyan",
    "caf",
    "smea",
]
RECOVERS = [name for name in MOVES if name != "mean"]
# The largest distance of the result from the honest mean, in units of the largest honest distance from it.
BOUNDED = dict.fromkeys(["krum", "mda", "monna", "multi-krum", "smea", "caf"], 3.0)
BOUNDED |= dict.fromkeys(["rfa", "meamed", "bulyan"], 2.0) | dict.fromkeys(["median", "trimmed-mean"], D**0.5)


@cache
def rule_of(name):
    entry = aggregators[name]
    rule = entry.build(K, min(F, entry.most(K)), **({"fraction": 1.0} if name == "signguard" else {}))

    @jax.jit
    def call(x, index):
        return rule.apply(jax.random.key(0), x, Receiver(x[index], index), rule.init(K, D)).rows[0]

    return lambda x, index=K - 1: np.asarray(call(jnp.asarray(x, jnp.float32), jnp.int32(index)))


def separated(x):
    """No two messages so alike, and no two distances so nearly equal, that rounding decides between them."""
    gaps = np.sort(((x[:, None] - x[None]) ** 2).sum(axis=2)[np.triu_indices(K, 1)])
    return gaps[0] > 1e-2 and np.all(np.diff(gaps) > 1e-3 * gaps[1:])


spread = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(0, 3, (K, D)).astype(np.float32))


@few
@given(x=spread.filter(separated), order=st.permutations(range(K)))
def check_order_does_not_matter(name, x, order):
    order = np.array(order)
    here = rule_of(name)(x, index=0)
    there = rule_of(name)(x[order], index=int(np.argwhere(order == 0)[0, 0]))
    np.testing.assert_allclose(there, here, rtol=2e-3, atol=2e-3)


@few
@given(x=spread.filter(separated), shift=arrays.arrays(np.float32, D, elements=st.integers(-64, 64)))
def check_moves_with_its_messages(name, x, shift):
    np.testing.assert_allclose(rule_of(name)(x + shift), rule_of(name)(x) + shift, rtol=1e-3, atol=2e-3)


@few
@given(value=arrays.arrays(np.float32, D, elements=numbers), lies=far)
def check_recovers_what_all_honest_say(name, value, lies):
    f = min(F, aggregators[name].most(K))
    x = np.concatenate([lies[:f], np.repeat(value[None], K - f, axis=0)])
    np.testing.assert_allclose(rule_of(name)(x), value, rtol=1e-4, atol=1e-4 * (1 + np.abs(value).max()))


@few
@given(x=vectors, lies=far, scale=st.sampled_from([1e-6, 1.0, 1e6]))
def check_error_is_bounded_by_the_honest_spread(name, x, lies, scale):
    f = min(F, aggregators[name].most(K))
    x = np.concatenate([lies[:f] * scale, x[f:]])
    honest = x[f:].astype(np.float64)
    centre = honest.mean(axis=0)
    radius = np.linalg.norm(honest - centre, axis=1).max()
    error = np.linalg.norm(rule_of(name)(x) - centre)
    assert error <= BOUNDED[name] * radius + 1e-4 * (1 + np.abs(centre).max())


def test_a_pair_that_is_fedpg_brs_whole_crowd_shares_the_middle():
    """Two messages, each the other's farthest of a majority, are equally near to their mean."""
    x = np.random.default_rng(124009).normal(0, 3, (K, D)).astype(np.float32)
    order = np.array([0, 1, 2, 3, 4, 6, 7, 8, 5])
    np.testing.assert_allclose(rule_of("fedpg-br")(x[order], index=0), rule_of("fedpg-br")(x, index=0), rtol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_promises(name):
    """One test a rule, so that it is compiled once."""
    check_order_does_not_matter(name=name)
    for names, check in (
        (MOVES, check_moves_with_its_messages),
        (RECOVERS, check_recovers_what_all_honest_say),
        (BOUNDED, check_error_is_bounded_by_the_honest_spread),
    ):
        if name in names:
            check(name=name)


def least_diameter(squares, f):
    n = len(squares)
    return min(squares[np.ix_(s, s)].max() for s in combinations(range(n), n - f))


@pytest.mark.parametrize("n", range(1, 13))
def test_mda_is_exact(n):
    check_mda(n, range((n + 1) // 2))


@pytest.mark.slow
@pytest.mark.parametrize("n", range(1, 13))
def test_mda_is_exact_for_every_f(n):
    check_mda(n, range((n + 1) // 2, n))


def check_mda(n, fs):
    rng = np.random.default_rng(n)
    clouds = [rng.normal(size=(n, 3)), rng.integers(0, 3, size=(n, 2)), np.repeat(rng.normal(size=(1, 2)), n, axis=0)]
    squares = np.stack([((c[:, None] - c[None]) ** 2).sum(axis=2) for c in clouds]).astype(np.float32)
    for f in fs:
        score = np.sort(squares, axis=2)[:, :, : n - f].sum(axis=2)
        searches = [_by_levels, _by_search] if f in (2, 3) and n % 5 == 0 else [_by_levels if f <= 8 else _by_search]
        for search in searches if f else []:
            kept = np.asarray(jax.jit(jax.vmap(lambda s, t, f=f, search=search: search(s, t, f)))(squares, score))
            for mask, square in zip(kept, squares, strict=True):
                chosen = np.flatnonzero(mask)
                assert len(chosen) == n - f
                assert square[np.ix_(chosen, chosen)].max() == least_diameter(square, f)


def test_both_searches_choose_alike_among_equals():
    n, f = 10, 3
    clouds = np.random.default_rng(3).normal(size=(40, n, 5)).astype(np.float32)

    @jax.jit
    @jax.vmap
    def both(x):
        squares = squared_distances(x)
        score = neighbour_sums(squares, n - f)
        return _by_levels(squares, score, f), _by_search(squares, score, f)

    levels, search = both(clouds)
    np.testing.assert_array_equal(levels, search)
    counts = []
    for square in np.asarray(jax.vmap(squared_distances)(clouds))[:8]:
        diameters = np.array([square[np.ix_(c, c)].max() for c in combinations(range(n), n - f)])
        counts.append((diameters == diameters.min()).sum())
    assert max(counts) > 1  # there were equals to choose among


def test_smea_is_exact():
    n, f = 9, 3
    clouds = np.random.default_rng(4).normal(size=(6, n, 4)).astype(np.float32)
    clouds[1, :3] += 50
    clouds[2, 0], clouds[2, 4] = np.nan, np.inf
    rule = aggregators["smea"].build(n, f)
    call = jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), ()).rows[0])
    for x in clouds:
        subsets = [s for s in map(list, combinations(range(n), n - f)) if np.isfinite(x[s]).all()]
        best = min(subsets, key=lambda s: np.linalg.eigvalsh(np.cov(x[s].T.astype(np.float64), bias=True))[-1])
        np.testing.assert_allclose(call(x), x[best].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_smea_beyond_enumeration_is_a_local_minimum():
    n, f = 12, 4
    x = np.random.default_rng(5).normal(size=(n, 6)).astype(np.float32)
    x[:2] += 20
    rule = aggregators["smea"].build(n, f, subsets=1)
    share = np.asarray(
        jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), ()).shares[0])(x)
    )
    kept = np.flatnonzero(share)
    gram = jnp.asarray(x @ x.T)
    value = lambda s: float(scatter_values(gram, jnp.zeros((1, n)).at[0, jnp.asarray(s)].set(1.0))[0])  # noqa: E731
    start = np.flatnonzero(filtered_subset(gram, jnp.ones(n, bool), f))
    assert len(kept) == n - f and not set(kept) & {0, 1}
    assert value(kept) <= value(start) * (1 + 1e-5)


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


@pytest.mark.parametrize("rule", ["rfa", "rfa:start=zero", "trimmed-mean", "centered-clipping"])
def test_gradients_agree_with_finite_differences(rule):
    """20 messages are more than those for which RFA uses the Gram matrix."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(7).normal(size=(20, 9)))
        aim = jnp.asarray(np.random.default_rng(8).normal(size=9))

        def along(x):
            return jb.aggregate(rule, jax.random.key(0), x, byzantine=4) @ aim

        value, gradient = jax.jit(jax.value_and_grad(along))(x)
        step = 1e-6 * np.random.default_rng(9).normal(size=x.shape)
        slope = (jax.jit(along)(x + step) - jax.jit(along)(x - step)) / 2
        assert np.isfinite(value) and abs(slope) > 0
        np.testing.assert_allclose(jnp.sum(gradient * step), slope, rtol=2e-3)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_of_close_points_far_from_zero(offset):
    """Parameters in agreement are close together and far from zero; liars are farther still."""
    x = np.random.default_rng(2).normal(size=(K, 50)).astype(np.float32) * 1e-2 + np.float32(offset)
    x[:2] = 1e12
    exact = ((x[2:, None].astype(np.float64) - x[None, 2:]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(jnp.asarray(x))[2:, 2:], exact, rtol=1e-3)


@pytest.mark.parametrize("count", [1, 6, 15, 19, 20])
def test_the_lowest_scores_share_the_last_places(count):
    """Sorting with the ties averaged gives the same, infinite scores included."""
    scores = np.random.default_rng(count).integers(0, 8, (3, 20)).astype(np.float32)
    scores[0, :3] = np.inf
    scores[1] = 7.0
    for row in scores:
        kept = (np.argsort(np.argsort(row, kind="stable"), kind="stable") < count).astype(float)
        shared = np.array([kept[row == value].mean() for value in row])
        np.testing.assert_allclose(lowest(jnp.asarray(row), count), shared, rtol=1e-6)


@pytest.mark.parametrize(("n", "f"), [(16, 1), (12, 3)])
@pytest.mark.parametrize("name", ["bucketing+rfa", "bucketing+median", "bucketing+trimmed-mean"])
def test_bad_buckets_stay_a_minority(name, n, f):
    honest = np.random.default_rng(n).standard_normal((n - f, 4)).astype(np.float32)
    messages = np.concatenate([np.full((f, 4), 1e6, np.float32), honest])
    call = jax.jit(jax.vmap(lambda key: jb.aggregate(name, key, messages, byzantine=f)))
    assert np.abs(call(jax.random.split(jax.random.key(0), 16))).max() < 2 * np.abs(honest).max()


def test_behind_bucketing_monna_trusts_no_bucket():
    messages = np.random.default_rng(0).standard_normal((13, 4)).astype(np.float32)
    messages[:2] = 1e6
    call = jax.jit(jax.vmap(lambda key: jb.aggregate("bucketing+monna", key, messages, byzantine=2, own=12)))
    assert np.abs(call(jax.random.split(jax.random.key(0), 30))).max() < 4


def test_smea_does_not_depend_on_the_scale():
    rule = aggregators["smea"].build(10, 3)
    kept = jax.jit(lambda x: rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), ()).shares)
    for seed in range(12):
        x = np.random.default_rng(seed).standard_normal((10, 3))
        x[:3] *= 3
        plain, *others = (kept(jnp.asarray(s * x, jnp.float32)) for s in (1.0, 1e-12, 1e-9, 1e10, 1e14))
        for other in others:
            np.testing.assert_array_equal(plain, other)


@pytest.mark.parametrize("name", ["caf", "rfa", "rfa:rounds=3"])  # few and many messages for their rounds
@pytest.mark.parametrize("scale", [1e-15, 1e-10, 1e12])
def test_gradients_of_small_and_large_messages_are_finite(name, scale):
    x = jnp.asarray(scale * np.random.default_rng(0).standard_normal((9, 3)), jnp.float32)
    slope = jax.jit(jax.grad(lambda x: jb.aggregate(name, jax.random.key(0), x, byzantine=2).sum()))(x)
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0.01


def test_signguard_clips_to_the_median_length():
    messages = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [3.0, 0.0], [3.0, 0.0]])
    out = jb.aggregate("signguard", jax.random.key(0), messages, fraction=1.0)
    np.testing.assert_allclose(out, [1.5, 0.0], atol=1e-6)  # M = 2


@pytest.mark.parametrize("n", [128, 130])
def test_signguards_bandwidth_leaves_unusable_messages_out(n):
    """A cluster of a third within reach of nobody else: with a bandwidth that counts unusable rows it would differ."""
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
    weights = np.asarray(largest_cluster(jnp.asarray(features), jnp.asarray(ok)))
    assert np.all(weights[~ok] == 0) and round(weights.sum()) == members.sum(axis=1).max()
