"""Accelerated functions against their plain versions, for every platform, alone and under vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.accelerate import gram, sorting_networks
from jaxbyz.accelerate.gram import pairwise_products, pairwise_products_plain
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.accelerate.sorting_networks import (
    comparators,
    count_rows,
    count_rows_plain,
    sum_of_ranks,
    sum_of_ranks_plain,
)
from jaxbyz.accelerate.weighted_sums import mix, mix_plain, sum_weighted_coordinates
from jaxbyz.components import make_rule
from jaxbyz.rules import Receiver

platforms = pytest.mark.parametrize("platform", ["plain", "cpu", "gpu"])


def draw(n, D, seed=0):
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


def checker(platform, function, oracle, rtol=1e-6, atol=1e-6):
    """Return a check that `function`, traced for the platform, gives what `oracle` gives for some arguments.

    It does so for one call and for each member of a batch. All arguments of the same shapes share a program.
    """

    @jax.jit
    def alone_in_a_batch_and_expected(*batch):
        members = [[argument[i] for argument in batch] for i in range(2)]
        return function(*members[1]), jax.vmap(function)(*batch), [oracle(*member) for member in members]

    def check(*arguments):
        with trace_for(platform):
            alone, both, expected = alone_in_a_batch_and_expected(*(np.stack([0.5 * a, a]) for a in arguments))
        np.testing.assert_allclose(alone, expected[1], rtol=rtol, atol=atol)
        np.testing.assert_allclose(both, expected, rtol=rtol, atol=atol)

    return check


@pytest.mark.parametrize("n", [1, 2, 7, 16, 33])
def test_comparators_sort(n):
    """By the zero-one principle, a network that sorts zeros and ones sorts everything."""
    bits = np.random.default_rng(n).integers(0, 2, size=(n, 3000))
    rows = list(bits)
    for i, j in comparators(n, range(n)):
        rows[i], rows[j] = np.minimum(rows[i], rows[j]), np.maximum(rows[i], rows[j])
    np.testing.assert_array_equal(np.stack(rows), np.sort(bits, axis=0))


@platforms
@pytest.mark.parametrize(
    ("n", "ranks"),
    [
        *((1, range(1)), (7, range(3, 4)), (16, range(7, 9)), (19, range(3, 16))),
        pytest.param(33, range(5, 28), marks=pytest.mark.slow),
    ],
)
def test_order_statistics(platform, n, ranks):
    x, centre = draw(n, 9), draw(1, 9, seed=1)[0]
    x[n // 2 + 1 :, 1] = np.inf
    x[: n // 3, 2], x[: n // 3, 3] = -np.inf, 0.0

    def with_and_without_centre(sums):
        return lambda x, centre: jnp.stack([sums(x, ranks), sums(x, ranks, centre)])

    functions = map(with_and_without_centre, (sum_of_ranks, sum_of_ranks_plain))
    checker(platform, *functions, atol=1e-5)(x, centre)


@platforms
def test_more_rows_than_a_network_takes(platform, monkeypatch):
    monkeypatch.setattr(sorting_networks, "CPU_NETWORK_ROWS", 8)
    monkeypatch.setattr(sorting_networks, "GPU_NETWORK_ROWS", 8)
    x = draw(9, 5)
    checker(platform, lambda x: sum_of_ranks(x, range(2, 6)), lambda x: jnp.sort(x, axis=0)[2:6].sum(axis=0))(x)


@platforms
def test_counts(platform):
    x = np.round(draw(20, 6))
    x[0], x[1] = np.inf, np.nan

    def less_and_equal(count):
        return lambda x, bound: jnp.stack([count(condition, x, bound) for condition in (jnp.less, jnp.equal)])

    checker(platform, less_and_equal(count_rows), less_and_equal(count_rows_plain))(x, x[5])


@platforms
@pytest.mark.parametrize("m", [1, 3])
def test_unused_rows_may_hold_anything(platform, m):
    shares, x = np.abs(draw(m, 8)), draw(8, 6, seed=1)
    shares[:, 2:4] = 0.0
    x[2], x[3] = np.nan, np.inf

    @jax.jit
    def mixed(shares, x):
        batch = jax.vmap(mix)(shares[None], x[None])[0]
        slopes = jax.grad(lambda *a: mix(*a).sum(), argnums=(0, 1))(shares, x)
        return mix_plain(shares, x), mix(shares, x), batch, slopes

    with trace_for(platform):
        plain, alone, batch, slopes = mixed(shares, x)
    np.testing.assert_allclose(plain, shares @ np.where(np.isfinite(x), x, 0.0), rtol=1e-5)
    np.testing.assert_allclose(alone, plain, rtol=1e-5)
    np.testing.assert_allclose(batch, plain, rtol=1e-5)
    assert all(np.isfinite(slope).all() for slope in slopes)


@platforms
def test_sums_with_weights_per_coordinate(platform):
    x, weights = draw(7, 5), np.abs(draw(7, 5, seed=1))
    x[3, 2], weights[3, 2] = np.inf, 0.0
    expected = lambda w, x: (w * jnp.where(w == 0, 0, x)).sum(axis=0)  # noqa: E731
    checker(platform, sum_weighted_coordinates, expected)(weights, x)


@platforms
def test_products_in_tiles(platform, monkeypatch):
    """More coordinates than a few tiles, and not a whole number of them; one message may be unusable."""
    monkeypatch.setattr(gram, "TILE_COORDINATES", 8)
    x, centre = draw(5, 21), draw(1, 21, seed=1)[0]
    check = checker(platform, pairwise_products, pairwise_products_plain, rtol=1e-5, atol=1e-5)

    def finite_sum(x):
        products = pairwise_products(x, centre)
        return jnp.where(jnp.isfinite(products), products, 0.0).sum()

    slope_of = jax.jit(jax.grad(finite_sum))
    for bad in (None, np.nan, np.inf, 1e30):
        x[1] = x[1] if bad is None else bad
        check(x, centre)
        with trace_for(platform):
            slope = slope_of(x)
        assert np.isfinite(np.delete(slope, 1, axis=0)).all()


@pytest.mark.parametrize(("n", "f"), [(9, 2), pytest.param(20, 4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        *("median", "trimmed-mean", "meamed", "krum", "rfa", "nnm+mean", "bucketing+mean"),
        pytest.param("bucketing+rfa", marks=pytest.mark.slow),
    ],
)
def test_rules_agree_on_all_platforms(name, n, f):
    """The rule itself is called, because `jb.aggregate` would keep the program of the first platform."""
    x, rule = draw(n, 30), make_rule(name, n, f)
    x[4], x[5] = np.nan, np.inf

    def aggregate(x):
        return rule.apply(jax.random.key(0), x, Receiver(x[0], jnp.int32(0)), rule.init(*x.shape)).rows[0]

    @jax.jit
    def on_all_platforms(x):
        with trace_for("plain"):
            expected, found = aggregate(x), []
        for platform in ("cpu", "gpu"):
            with trace_for(platform):
                found += [aggregate(x), jax.vmap(aggregate)(x[None])[0]]
        return expected, found

    expected, found = on_all_platforms(x)
    for result in found:
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
