"""Exchange: one computation for all where messages are alike, each receiver its own where they are not."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.protocol import exchange as rounds
from jaxbyz.protocol.agreements import diameter, run_agreement, theorem_rounds
from jaxbyz.protocol.exchange import Adversary
from jaxbyz.protocol.schedules import schedules

K, D, F = 9, 6, 2
KEY = jax.random.key(0)
MESSAGES = np.random.default_rng(0).normal(size=(K, D)).astype(np.float32)
MASK = np.arange(K) >= K - F


def exchange(rule, *lies, agents=K):
    """Exchange the messages of the first agents in one compiled program; `lies` are the other fields of `Adversary`."""

    @jax.jit
    def run(messages, mask):
        return rounds.exchange(KEY, rule, rule.init(agents, D), messages, Adversary(mask, *lies))

    return jax.device_get(run(MESSAGES[:agents], MASK[:agents]))


def test_computing_once_equals_computing_for_everyone():
    attack = jb.avg_zero()
    once = exchange(jb.rfa(), attack.gradients, False)
    each = exchange(jb.rfa(), attack.gradients, True)
    np.testing.assert_allclose(once.rows, each.rows, rtol=1e-5, atol=1e-6)
    assert np.ptp(np.asarray(once.rows), axis=0).max() == 0


def test_equivocation_gives_receivers_different_aggregates():
    out = exchange(jb.mean(), jb.large_noise().gradients, True)
    assert np.unique(np.asarray(out.rows)[:, 0]).size == K


def test_honest_rows_arrive_untouched_and_liars_lie():
    @jax.jit
    def forged(messages, mask):
        return [jb.attack(name, KEY, messages, mask, byzantine=F) for name in ("large-noise", "avg-zero")]

    got, zeroed = jax.device_get(forged(MESSAGES, MASK))
    assert got.shape == (K, K, D)
    np.testing.assert_array_equal(got[:, : K - F], np.broadcast_to(MESSAGES[: K - F], (K, K - F, D)))
    assert np.abs(got[:, K - F :]).mean() > 10
    assert np.unique(got[:, -1, 0]).size == K  # to each receiver another lie
    np.testing.assert_allclose(zeroed.mean(axis=1), 0, atol=1e-6)


def test_a_receiver_trusts_its_own_true_vector():
    """GDA around one's own vector: also a Byzantine agent's state follows the protocol from its true vector."""
    out = exchange(jb.monna(F), jb.large_noise(1e6).parameters, True)
    assert np.abs(np.asarray(out.rows)).max() < 10
    assert np.all(np.diagonal(np.asarray(out.shares)) > 0)


def test_many_receivers_in_turn_equal_all_at_once(monkeypatch):
    def forge(key, view, receiver):
        return (1.0 + receiver) * view.messages

    together = exchange(jb.mean(), forge, True)
    assert np.unique(together.rows[:, 0]).size == K
    monkeypatch.setattr(rounds, "RECEIVERS_AT_ONCE", 4)
    in_turn = exchange(jb.mean(), forge, True)
    np.testing.assert_allclose(together.rows, in_turn.rows, rtol=1e-5, atol=1e-6)


def test_shares_of_a_chain_multiply():
    rule = jb.chain(jb.bucketing(size=2), jb.mean())
    out = exchange(rule, agents=8)
    np.testing.assert_allclose(out.shares, 1 / 8, rtol=1e-6)
    np.testing.assert_allclose(out.rows[0], MESSAGES[:8].mean(0), rtol=1e-5, atol=1e-6)


def test_tolerance_stops_early_and_rounds_are_counted():
    @jax.jit
    def run(messages, mask):
        liars = Adversary(mask, jb.large_noise().parameters, True)
        exact = run_agreement(KEY, jb.Agreement(jb.mda(F), 5), messages, liars)
        loose = run_agreement(KEY, jb.Agreement(jb.mda(F), 50, tolerance=0.5), messages, liars)
        return exact, loose, diameter(loose.parameters, mask), run_agreement(KEY, None, messages, Adversary(mask))

    exact, loose, loose_diameter, none = jax.device_get(run(MESSAGES, MASK))
    assert int(exact.rounds) == 5
    assert 1 <= int(loose.rounds) < 50
    assert loose_diameter <= 0.5
    assert int(none.rounds) == 0
    np.testing.assert_array_equal(none.parameters, MESSAGES)


def test_theorem_rounds():
    assert theorem_rounds(50, 13, 0.2) == 14  # log2(50·13/0.04) = 13.99
    assert theorem_rounds(1, 1, 1.0) == 1


@pytest.mark.parametrize("name", ["fixed", "rotating", "random"])
def test_schedules_mark_f_agents_every_iteration(name):
    schedule = schedules[name].factory(7, 2)
    masks = np.asarray(jax.jit(jax.vmap(lambda t: schedule(jax.random.fold_in(KEY, t), t)))(np.arange(14)))
    assert np.all(masks.sum(axis=1) == 2)
    changes = np.any(masks[1:] != masks[:-1], axis=1)
    assert not changes.any() if name == "fixed" else changes.sum() > 8
    assert masks.any(axis=0).all() == (name != "fixed")


def test_one_call_forms_refuse_bad_input():
    with pytest.raises(jb.UsageError, match=r"must be \[K, D\]"):
        jb.aggregate("mean", KEY, np.ones(3))
    with pytest.raises(jb.UsageError, match="byzantine=3 of 3"):
        jb.aggregate("mean", KEY, np.ones((3, 2)), byzantine=3)
    with pytest.raises(jb.UsageError, match="did you mean 'krum'"):
        jb.aggregate("krumm", KEY, np.ones((3, 2)))
    with pytest.raises(jb.UsageError, match="unknown option 'round'"):
        jb.aggregate("rfa:round=3", KEY, np.ones((3, 2)))
    with pytest.raises(jb.UsageError, match=r"mask has shape"):
        jb.attack("avg-zero", KEY, np.ones((3, 2)), np.ones(2, bool))


def test_the_number_of_liars_is_given_where_it_cannot_be_counted():
    with pytest.raises(jb.UsageError, match="byzantine: must be given"):
        jax.jit(lambda mask: jb.attack("alie", KEY, MESSAGES, mask))(MASK)
    inside = jax.jit(lambda mask: jb.attack("alie", KEY, MESSAGES, mask, byzantine=F))(MASK)
    np.testing.assert_allclose(inside, jb.attack("alie", KEY, MESSAGES, MASK), rtol=1e-6)
