"""Absent agents, late and lost messages: what reaches a rule, what agents keep, and that nothing changes when off."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxbyz.protocol.delivery import Arrivals, Delivery, Mailbox

import jaxbyz as jb
from jaxbyz.algorithms import algorithms
from jaxbyz.algorithms.metrics import StepResults, iteration_metrics
from jaxbyz.components import make_attack, make_rule
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.exchange import Adversary, exchange
from jaxbyz.rules import Outcome, Receiver, Rule, aggregators
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.page import Sampled

ENV, POLICY, KEY = tabular.environment(), tabular.policy(), jax.random.key(0)
PAGE = jb.Page(N=3, B=2, estimator=jb.Estimator(gamma=0.9, horizon=tabular.HORIZON))
MASK = np.arange(9) >= 8
EVERYDAY = {"rfa", "monna", "trimmed-mean", "centered-clipping"}
RULES = [pytest.param(e.name, marks=() if e.name in EVERYDAY else pytest.mark.slow) for e in aggregators]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_hears_those_present_only(name):
    """Absent rows may hold anything; shares name the senders by their own numbers."""
    rule = make_rule(name, 6, 1)
    messages = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    present = np.array([0, 2, 3, 5, 7, 8])
    spoiled = messages.copy()
    spoiled[[1, 4, 6]] = np.nan

    @jax.jit
    def of_all_and_of_those_present(spoiled, messages, present):
        heard = Arrivals(Delivery(0.6), jnp.asarray(MASK), present).heard(rule)
        own = messages[3]
        return (
            heard.apply(KEY, spoiled, Receiver(own, jnp.int32(3)), heard.init(9, 4)),
            rule.apply(KEY, messages[present], Receiver(own, jnp.int32(2)), rule.init(6, 4)),
        )

    got, expected = jax.tree.map(np.asarray, of_all_and_of_those_present(spoiled, messages, present))
    np.testing.assert_array_equal(got.rows, expected.rows)
    np.testing.assert_array_equal(got.shares[:, present], expected.shares)
    assert not got.shares[:, [1, 4, 6]].any()


def test_a_lost_message_is_an_unusable_row_and_liars_and_oneself_are_always_heard():
    rule = Rule(lambda key, rows, receiver, state: Outcome(rows[:, :1].T, jnp.ones((1, 9)), state))

    @jax.jit
    def losses(keys):
        """What receiver 2 and the server do not hear, for every key."""
        arrivals = Delivery(drop=0.4).draw(KEY, jnp.asarray(MASK), ())
        heard, at_server = arrivals.heard(rule), arrivals.heard(rule, at_server=True)
        assert heard.random and not rule.random
        receive = lambda by, index, key: by.apply(  # noqa: E731
            key, jnp.ones((9, 3)), Receiver(jnp.ones(3), jnp.int32(index)), ()
        ).rows[0]
        return [jnp.isnan(jax.vmap(partial(receive, *who))(keys)) for who in ((heard, 2), (at_server, 0))]

    lost, lost_at_server = map(np.asarray, losses(jax.random.split(KEY, 4000)))
    rates = lost.mean(axis=0)
    assert rates[2] == 0 and rates[8] == 0
    np.testing.assert_allclose(np.delete(rates, [2, 8]), 0.4, atol=0.04)
    correlation = np.corrcoef(np.delete(lost, [2, 8], axis=1).T)
    assert np.abs(correlation - np.eye(7)).max() < 0.08  # messages are lost independently
    assert 0.3 < lost_at_server[:, 0].mean() < 0.5


@pytest.mark.parametrize("delivery", [Delivery(0.5, "cached"), Delivery(delay=3), Delivery(0.5, "ignore", delay=2)])
def test_mail_is_a_ring_of_the_last_messages(delivery):
    """Twenty iterations against a list of everything that was sent, in NumPy."""
    K, T = 6, 20
    mask = np.arange(K) == 5
    sent = np.random.default_rng(0).normal(size=(T, K, 2)).astype(np.float32)

    def step(mail, inputs):
        key, messages = inputs
        arrivals = delivery.draw(key, jnp.asarray(mask), mail)
        arrived, mail = arrivals.collect(messages, mail)
        if arrivals.missing is not None:
            arrived = jnp.where(arrivals.missing[:, None], jnp.nan, arrived)
        here = jnp.ones(K, bool) if arrivals.present is None else arrivals.takes_part
        age = jnp.zeros(K, jnp.int32) if arrivals.age is None else arrivals.age
        return mail, (arrived, here, age)

    @jax.jit
    def iterate():
        start = delivery.no_mail(K, 2)
        assert isinstance(start, Mailbox)
        return jax.lax.scan(step, start, (jax.random.split(KEY, T), sent))[1]

    arrived, here, age = map(np.asarray, iterate())
    assert here.sum(axis=1).tolist() == [delivery.present(K)] * T
    assert (len(np.unique(here, axis=0)) > 5) == (delivery.participation < 1)
    last = np.full((T, K, 2), np.nan)
    for t in range(T):
        last[t] = np.where(here[t][:, None], sent[t], last[t - 1] if t else np.nan)
        for k in range(K):
            expected = sent[t, k] if k == 5 else last[t - age[t, k], k]
            if here[: t + 1, k].any() or delivery.absent == "cached":  # otherwise no rule sees the row
                np.testing.assert_array_equal(arrived[t, k], expected)
    assert delivery.delay == 0 or set(np.unique(age)) == set(range(delivery.delay + 1))


@pytest.mark.parametrize("arrivals", ["random", "adversarial"])
def test_a_gradient_that_was_never_sent_does_not_arrive_later(arrivals):
    """Agent 2 is absent at first; its gradient of the second iteration is the first that can arrive."""
    delivery = Delivery(0.6, delay=1, arrivals=arrivals)

    def three_iterations(key):
        mail, arrived = delivery.no_mail(3, 1), []
        for t, (value, present) in enumerate(((-1.0, [0, 1]), (1.0, [1, 2]), (2.0, [0, 2]))):
            drawn = delivery.draw(jax.random.fold_in(key, t), jnp.zeros(3, bool), mail)
            drawn = drawn._replace(present=jnp.array(present))
            rows, mail = drawn.collect(jnp.full((3, 1), value), mail)
            arrived.append(rows[jnp.array(present), 0])
        return jnp.stack(arrived)

    found = np.asarray(jax.jit(jax.vmap(three_iterations))(jax.random.split(KEY, 50)))
    chance = arrivals == "random"  # the adversary always delays here
    expected = [[{-1.0}, {-1.0}], [{-1.0, 1.0} if chance else {-1.0}, {1.0}]]
    expected += [[{-1.0, 2.0}, {1.0, 2.0}] if chance else [{-1.0}, {1.0}]]
    assert [[set(found[:, t, i].tolist()) for i in range(2)] for t in range(3)] == expected


def test_metrics_where_no_honest_agent_takes_part_are_those_of_all_honest_agents():
    @jax.jit
    def metrics(takes_part, estimates, parameters):
        ones, mask = jnp.ones(3), jnp.array([False, False, True])
        sampled = Sampled(estimates, jnp.array([3.0, 5.0, 100.0]), ones, ones, ones)
        rest = [jnp.int32(0)] * 3
        step = StepResults(ones, jnp.eye(3), jnp.ones(3, bool), parameters, *rest, takes_part=takes_part)
        return iteration_metrics(PAGE, jnp.bool_(True), sampled, mask, step)

    usable, useless = np.ones((3, 2), np.float32), np.full((3, 2), np.nan, np.float32)
    nobody, one = np.array([False, False, True]), np.array([False, True, True])
    alone = metrics(nobody, usable, usable)
    assert (float(alone.returns), float(alone.worst_agent), int(alone.finite)) == (4.0, 3.0, 1)
    assert float(metrics(one, usable, usable).returns) == 5.0
    assert int(metrics(nobody, useless, usable).finite) == 1 and int(metrics(one, useless, usable).finite) == 0
    assert int(metrics(nobody, usable, useless).finite) == 0


def test_agreement_under_loss_still_brings_those_present_together():
    messages = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    agreement = Agreement(jb.mda(3), 6)  # f = 1, and two lost messages on average

    @jax.jit
    def agree(key, messages, mask):
        arrivals = Delivery(0.8, drop=0.2).draw(key, mask, ())
        heard = arrivals.heard_in(agreement)
        after = run_agreement(key, heard, messages, Adversary(mask)).parameters
        return arrivals.only_present(after, messages), arrivals.takes_part

    after, here = map(np.asarray, agree(KEY, messages, MASK))
    honest = here & ~MASK
    assert np.ptp(after[honest], axis=0).max() < 0.1 * np.ptp(messages[honest], axis=0).max()
    np.testing.assert_array_equal(after[~here], messages[~here])


def test_receivers_lose_different_messages():
    @jax.jit
    def means(mask):
        heard = Delivery(drop=0.5).draw(KEY, mask, ()).heard(jb.mean(skip_missing=True))
        return exchange(KEY, heard, (), jnp.eye(9), Adversary(mask)).rows

    rows = np.asarray(means(MASK))
    assert np.isfinite(rows).all() and len(np.unique(rows, axis=0)) > 5
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-6)


def decbyzpg(**changes):
    options = {"agents": 5, "byzantine": 1, "aggregator": "rfa", "agreement": "mda", "optimizer": optax.adam(0.1)}
    return jb.decbyzpg(ENV, POLICY, **{**options, "page": PAGE, "p": 0.5, "attack": "large-noise", **changes})


def counting(name):
    """Return an attack that remembers how often it was called."""
    attack = make_attack(name, 7, 1)
    return attack._replace(init=lambda K, D: jnp.int32(0), remember=lambda view: view.memory + 1)


def traced(algorithm):
    state = jax.eval_shape(algorithm.init, KEY)
    return str(jax.make_jaxpr(algorithm.step)(state, jnp.bool_(True)))


def test_everything_off_is_the_same_program():
    off = Delivery(1.0, "cached", 0, 0.0, arrivals="adversarial")
    default = traced(decbyzpg())
    assert traced(decbyzpg(delivery=off)) == default
    assert traced(decbyzpg(delivery=off._replace(drop=0.1), unsafe=True)) != default
    makes = {"optimizer": optax.sgd(0.1), "page": PAGE, "agents": 5}
    for name in ("byzpg", "fed-page-pg"):
        entry = algorithms[name]
        options = {"p": 1.0, **({"aggregator": "rfa"} if entry.takes("aggregator") else {})}
        assert traced(entry.factory(ENV, POLICY, **options, **makes)) == traced(
            entry.factory(ENV, POLICY, **options, **makes, delivery=off)
        )


def test_absent_agents_keep_their_state_in_one_program_for_all_masks():
    algorithm = decbyzpg(agents=7, delivery=Delivery(0.7, "cached", delay=2, drop=0.1), unsafe=True)
    step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(KEY)
    seen = set()
    for t in range(8):
        after, metrics = step(state, np.bool_(t % 3 == 0))
        rows = (np.asarray(after.parameters) != np.asarray(state.parameters)).any(axis=1)
        moved = (np.asarray(after.optimizer[0].mu) != np.asarray(state.optimizer[0].mu)).any(axis=1)
        assert rows.sum() == moved.sum() == 5  # ⌈0.7 · 7⌉ take part
        np.testing.assert_array_equal(rows, moved)
        anchored = (np.asarray(after.anchor) != np.asarray(state.anchor)).any(axis=1)
        np.testing.assert_array_equal(anchored & ~rows, False)
        assert int(metrics.finite) == 1 and np.isfinite(metrics.returns)
        assert float(metrics.bytes_sent) == 5 * 5 * (4 + 1) * POLICY.size * 4
        seen.add(tuple(rows.tolist()))
        state = after
    assert step._cache_size() == 1 and len(seen) > 2


def test_the_same_agents_are_absent_in_all_messages_of_a_batch():
    algorithm = decbyzpg(agents=7, delivery=Delivery(0.7), page=PAGE._replace(epochs=2), p=1.0, unsafe=True,
                         aggregator="mean", attack=counting("large-noise"))  # fmt: skip
    state = jax.jit(algorithm.init)(KEY)
    after, metrics = jax.jit(algorithm.step)(state, np.bool_(True))
    moved = (np.asarray(after.parameters) != np.asarray(state.parameters)).any(axis=1)
    assert moved.sum() == 5  # ⌈0.7 · 7⌉ take part, twice
    assert float(metrics.bytes_sent) == 2 * 5 * 5 * (4 + 1) * POLICY.size * 4
    assert int(after.attack_memory) == 2  # an attack remembers every message


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in algorithms if entry.takes("delivery")])
def test_every_algorithm_runs_with_absent_agents_and_lost_messages(name):
    entry = algorithms[name]
    parts = {"aggregator": "rfa", "agreement": "mda", "byzantine": 1, "attack": "avg-zero", "p": 0.5, "unsafe": True}
    parts = {key: value for key, value in parts.items() if entry.takes(key)}
    chosen = Delivery(0.7, "cached", 1, 0.2, arrivals="adversarial")
    for delivery in (Delivery(0.7, "cached", 1, 0.2), Delivery(0.7, "ignore", 2, 0.0), chosen):
        algorithm = entry.factory(
            ENV, POLICY, agents=7, optimizer=optax.sgd(0.01), page=PAGE, delivery=delivery, **parts
        )
        run = jax.jit(lambda key, algorithm=algorithm: jb.train(algorithm, key, 6, jnp.arange(6) % 2 == 0))
        result = run(KEY)
        assert np.isfinite(result.run.state.parameters).all() and np.asarray(result.metrics.finite).all()


def test_limits_refer_to_those_present():
    attacked = {"agents": 13, "byzantine": 3, "agreement": "none"}
    jb.resolve(**attacked, participation=0.6)  # 3 of 8, below the half of RFA
    with pytest.raises(jb.UsageError, match="byzantine=3 of agents=6 exceeds the limit 1/2 of aggregator rfa"):
        jb.resolve(**attacked, participation=0.4)
    jb.resolve(**attacked, participation=0.4, absent="cached")  # all 13 messages count
    with pytest.raises(jb.UsageError, match="limit 1/4 of agreement mda"):
        jb.resolve(agents=13, byzantine=3, participation=0.6, absent="cached")
    with pytest.raises(jb.UsageError, match="exceeds the limit"):
        decbyzpg(agents=9, byzantine=2, delivery=Delivery(0.4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": 0}, r"participation=0\.?0?: must be in \(0, 1\]"),
        ({"participation": 1.5}, r"participation=1.5: must be in \(0, 1\]"),
        ({"absent": "forget"}, "absent='forget' is unknown"),
        ({"delay": -1}, "delay=-1: must be at least 0"),
        ({"drop": 1}, r"drop=1.0: must be in \[0, 1\)"),
        ({"arrivals": "late"}, "arrivals='late' is unknown"),
    ],
)
def test_bad_values_end_in_one_line(options, message):
    with pytest.raises(jb.UsageError, match=message):
        jb.resolve(**options)
    with pytest.raises(jb.UsageError, match=message.replace(r"\.?0?", "").replace("drop=1.0", "drop=1")):
        Delivery(**options).check()


def test_local_steps_follow_own_estimates_and_then_messages_are_exchanged():
    algorithm = decbyzpg(optimizer=optax.sgd(0.1), attack=counting("avg-zero"), local_steps=2, p=1.0)
    step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(KEY)
    alone, metrics = step(state, np.bool_(True))
    moved = np.asarray(state.parameters) + 0.1 * np.asarray(alone.estimate)
    np.testing.assert_allclose(alone.parameters, moved, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(alone.estimate), axis=0)) == 5  # every agent has its own
    assert float(metrics.bytes_sent) == 0 and int(metrics.rounds) == 0 and float(metrics.diameter) > 0.01
    np.testing.assert_allclose(metrics.shares, [0.25] * 4 + [0.0])  # honest agents trust themselves
    together, metrics = step(alone, np.bool_(True))
    assert int(alone.attack_memory) == 0 and int(together.attack_memory) == 1  # nothing was sent at first
    assert float(metrics.diameter) < 1e-4 and int(metrics.rounds) == 4
    assert float(metrics.bytes_sent) == 5 * 5 * (4 + 1) * POLICY.size * 4
    assert step._cache_size() == 1
    with pytest.raises(jb.UsageError, match="local_steps=0: must be at least 1"):
        decbyzpg(local_steps=0)
