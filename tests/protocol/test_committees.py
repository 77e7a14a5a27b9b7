"""Agreement within random committees: who meets whom, what they compute, and when committees are safe."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.algorithms.metrics import Measured, decentralised_bytes
from jaxbyz.components import make_agreement, make_attack
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.channel import direct_channel
from jaxbyz.protocol.committees import committee_size, committees, draw_committees, failure_probability
from jaxbyz.protocol.exchange import Adversary, exchange
from jaxbyz.sampling.page import Sampled

KEY = jax.random.key(0)


def test_a_round_is_the_rule_within_each_committee():
    """Against the committees drawn from the same key, one after another; those who sit out keep what they have."""
    rule = committees(23, 2, size=5, rule="trimmed-mean", tolerated=1)
    rows = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)

    @jax.jit
    def one_round(key, rows):
        outcome = exchange(key, rule, (), rows, Adversary(jnp.zeros(23, bool)))
        return outcome, draw_committees(jax.random.split(key)[0], 23, 5)

    outcome, (members, out) = jax.tree.map(np.asarray, one_round(KEY, rows))
    assert members.shape == (4, 5) and sorted([*np.ravel(members), *out]) == list(range(23))
    for committee in members:
        ordered = np.sort(rows[committee], axis=0)[1:-1].mean(axis=0)
        np.testing.assert_allclose(outcome.rows[committee], np.tile(ordered, (5, 1)), atol=1e-6)
        np.testing.assert_allclose(outcome.shares[np.ix_(committee, committee)].sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(outcome.rows[out], rows[out])
    np.testing.assert_allclose(outcome.shares.sum(axis=1), 1.0, rtol=1e-5)
    again, _ = one_round(jax.random.key(7), rows)
    assert np.abs(np.asarray(again.rows) - outcome.rows).max() > 0.01  # other committees


@pytest.mark.parametrize("attack", ["large-noise", pytest.param("equivocating-alie", marks=pytest.mark.slow)])
def test_committees_come_together_under_attack(attack):
    K, f = 60, 3
    rows = np.random.default_rng(0).normal(size=(K, 3)).astype(np.float32)
    agreement = Agreement(committees(K, f, size=12), 6)
    forge = make_attack(f"{attack}:on=parameters" if attack != "large-noise" else attack, K, f)

    @jax.jit
    def agree(rows, mask):
        adversary = Adversary(mask, forge.parameters, forge.equivocates, forge.init(K, 3))
        return run_agreement(KEY, agreement, rows, adversary).parameters

    after = np.asarray(agree(rows, np.arange(K) >= K - f))[: K - f]
    before = rows[: K - f]
    assert np.ptp(after, axis=0).max() < 0.05 * np.ptp(before, axis=0).max()
    assert np.linalg.norm(after.mean(axis=0) - before.mean(axis=0)) < 0.3


def test_failure_probability_is_hypergeometric_and_sizes_grow_like_a_logarithm():
    drawn = np.random.default_rng(0).hypergeometric(6, 24, 9, size=200_000)
    assert math.isclose(failure_probability(30, 6, 9, 2), (drawn > 2).mean(), abs_tol=4e-3)
    assert failure_probability(30, 2, 9, 2) == 0.0
    sizes = [committee_size(K, K // 20) for K in (100, 1000, 10_000, 100_000)]
    assert sizes == sorted(sizes) and sizes[-1] <= 50 and np.diff(sizes).max() <= 12
    for K, size in zip((100, 1000, 10_000, 100_000), sizes, strict=True):
        assert K // size * failure_probability(K, K // 20, size, (size - 1) // 3) <= 1e-3


def test_bytes_are_those_of_a_committee_and_bad_values_end_in_one_line():
    assert make_agreement("committees:size=6,rule=mda", 13, 1, 2).rule.committee == 6
    for options, message in [
        ({"size": 40}, "size=40: a committee of agents=13 must have 2 to 13 members"),
        ({"rule": "centered-clipping"}, "a rule with memory or on a graph"),
        ({"rule": "krumm"}, "aggregator='krumm' is unknown"),
        ({"size": 6, "tolerated": 6}, "tolerated=6: must be between 0 and 5"),
    ]:
        with pytest.raises(jb.UsageError, match=message):
            committees(13, 1, **options)
    with pytest.raises(jb.UsageError, match="needs participation=1 and drop=0"):
        jb.build(jb.resolve(agreement="committees:size=6", drop=0.1))
    twelve = {"agents": 12, "byzantine": 2, "agreement": "committees:size=4,tolerated=1", "unsafe": True}
    with pytest.raises(jb.UsageError, match="agreement=committees: the attack remembers single agents"):
        jb.build(jb.resolve(**twelve, attack="mimic-warmup"))
    for attack in ("mimic-warmup:on=gradients", "mimic"):
        jb.build(jb.resolve(**twelve, attack=attack))
    one_gradient, one_round = 12 * 12 * 100 * 4, 12 * 6 * 100 * 4
    agreement = make_agreement("committees:size=6,rule=mda", 12, 1)
    sampled = Sampled(*[jnp.zeros(12)] * 5)
    two_rounds = Measured(sampled, *[jnp.zeros(12)] * 4, exchanges=jnp.float32(1), rounds=jnp.int32(2))
    assert float(decentralised_bytes(direct_channel(12), agreement, 100, two_rounds)) == one_gradient + 2 * one_round
