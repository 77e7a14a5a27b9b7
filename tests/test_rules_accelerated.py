"""Accelerated functions against their plain versions, for every platform, alone and under vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
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

platforms = pytest.mark.parametrize("platform", ["plain", "cpu", "gpu"])


def draw(n, D, seed=0):
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


def check(platform, function, oracle, *arguments, rtol=1e-6, atol=1e-6):
    """`function` traced for the platform gives what `oracle` gives, for one call and for each member of a batch."""
    batch = [jnp.stack([0.5 * jnp.asarray(argument), argument]) for argument in arguments]
    with trace_for(platform):
        alone = jax.jit(lambda *a: function(*a))(*arguments)
        both = jax.jit(jax.vmap(lambda *a: function(*a)))(*batch)
    np.testing.assert_allclose(alone, oracle(*arguments), rtol=rtol, atol=atol)
    for found, *member in zip(both, *batch, strict=True):
        np.testing.assert_allclose(found, oracle(*member), rtol=rtol, atol=atol)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 33])
def test_comparators_sort(n):
    """By the zero-one principle, a network that sorts zeros and ones sorts everything."""
    bits = np.random.default_rng(n).integers(0, 2, size=(n, 3000))
    rows = list(bits)
    for i, j in comparators(n, range(n)):
        rows[i], rows[j] = np.minimum(rows[i], rows[j]), np.maximum(rows[i], rows[j])
    np.testing.assert_array_equal(np.stack(rows), np.sort(bits, axis=0))


@platforms
@pytest.mark.parametrize(("n", "ranks"), [(1, range(1)), (7, range(3, 4)), (16, range(7, 9)), (33, range(5, 28))])
def test_order_statistics(platform, n, ranks):
    x, centre = draw(n, 9), draw(1, 9, seed=1)[0]
    x[n // 2 + 1 :, 1] = np.inf
    x[: n // 3, 2], x[: n // 3, 3] = -np.inf, 0.0
    check(platform, lambda x: sum_of_ranks(x, ranks), lambda x: sum_of_ranks_plain(x, ranks), x, atol=1e-5)
    check(
        platform,
        lambda x, c: sum_of_ranks(x, ranks, c), lambda x, c: sum_of_ranks_plain(x, ranks, c), x, centre, atol=1e-5,
    )  # fmt: skip


@platforms
def test_more_rows_than_a_network_takes(platform, monkeypatch):
    monkeypatch.setattr(sorting_networks, "CPU_NETWORK_ROWS", 8)
    monkeypatch.setattr(sorting_networks, "GPU_NETWORK_ROWS", 8)
    x = draw(9, 5)
    check(platform, lambda x: sum_of_ranks(x, range(2, 6)), lambda x: np.sort(x, axis=0)[2:6].sum(axis=0), x)


@platforms
@pytest.mark.parametrize("condition", [jnp.less, jnp.equal])
def test_counts(platform, condition):
    x = np.round(draw(20, 6))
    x[0], x[1] = np.inf, np.nan
    check(platform, lambda x, b: count_rows(condition, x, b), lambda x, b: count_rows_plain(condition, x, b), x, x[5])


@platforms
@pytest.mark.parametrize("m", [1, 3])
def test_unused_rows_may_hold_anything(platform, m):
    shares, x = np.abs(draw(m, 8)), draw(8, 6, seed=1)
    shares[:, 2:4] = 0.0
    x[2], x[3] = np.nan, np.inf
    np.testing.assert_allclose(mix_plain(shares, x), shares @ np.where(np.isfinite(x), x, 0.0), rtol=1e-5)
    with trace_for(platform):
        alone = jax.jit(lambda *a: mix(*a))(shares, x)
        batch = jax.jit(jax.vmap(lambda *a: mix(*a)))(shares[None], x[None])[0]
        slopes = jax.jit(jax.grad(lambda *a: mix(*a).sum(), argnums=(0, 1)))(shares, x)
    np.testing.assert_allclose(alone, mix_plain(shares, x), rtol=1e-5)
    np.testing.assert_allclose(batch, mix_plain(shares, x), rtol=1e-5)
    assert all(np.isfinite(slope).all() for slope in slopes)


@platforms
def test_sums_with_weights_per_coordinate(platform):
    x, weights = draw(7, 5), np.abs(draw(7, 5, seed=1))
    x[3, 2], weights[3, 2] = np.inf, 0.0
    check(platform, sum_weighted_coordinates, lambda w, x: (w * np.where(w == 0, 0, x)).sum(axis=0), weights, x)


@platforms
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, 1e30])
def test_products_in_tiles(platform, bad, monkeypatch):
    """More coordinates than a few tiles, and not a whole number of them."""
    monkeypatch.setattr(gram, "TILE_COORDINATES", 8)
    x, centre = draw(5, 21), draw(1, 21, seed=1)[0]
    x[1] = x[1] if bad is None else bad
    check(platform, pairwise_products, pairwise_products_plain, x, centre, rtol=1e-5, atol=1e-5)
    with trace_for(platform):
        slope = jax.jit(jax.grad(lambda x: jnp.where(jnp.isfinite(p := pairwise_products(x, centre)), p, 0.0).sum()))(x)
    assert np.isfinite(np.delete(slope, 1, axis=0)).all()


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "meamed", "krum", "rfa", "nnm+mean", "bucketing+rfa"])
def test_rules_agree_on_all_platforms(rule):
    x = draw(20, 30)
    x[4], x[5] = np.nan, np.inf

    def aggregate(x):
        return jb.aggregate(rule, jax.random.key(0), x, byzantine=4)

    with trace_for("plain"):
        expected = jax.jit(lambda x: aggregate(x))(x)
    for platform in ("cpu", "gpu"):
        with trace_for(platform):
            alone, batch = jax.jit(lambda x: aggregate(x))(x), jax.jit(jax.vmap(lambda x: aggregate(x)))(x[None])[0]
        np.testing.assert_allclose(alone, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch, expected, rtol=1e-5, atol=1e-6)
