"""Absent agents, late and lost messages: what reaches a rule, what agents keep, and that nothing changes when off."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from channel_helpers import begin, channel_of, everything, heard_at

import jaxbyz as jb
from jaxbyz.algorithms import algorithms, traits_of_algorithm
from jaxbyz.algorithms.metrics import Bytes, Measured, iteration_metrics
from jaxbyz.attacks import View
from jaxbyz.components import make_attack, make_rule
from jaxbyz.options import check_options
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.channel import direct_channel
from jaxbyz.protocol.channel_options import CHANNEL_OPTIONS, ChannelOptions
from jaxbyz.protocol.exchange import Adversary, exchange
from jaxbyz.protocol.participation import only_present
from jaxbyz.rules import Receiver, aggregators
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.page import Sampled

ENV, POLICY, KEY = tabular.environment(), tabular.policy(), jax.random.key(0)
SAMPLING = {"N": 3, "B": 2, "gamma": 0.9, "horizon": tabular.HORIZON}
MASK = np.arange(9) >= 8
EVERYDAY = {"rfa", "monna", "trimmed-mean", "centered-clipping"}
RULES = [pytest.param(e.name, marks=() if e.name in EVERYDAY else pytest.mark.slow) for e in aggregators]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_hears_those_present_only(name):
    """Absent rows may hold anything; shares name the senders by their own numbers."""
    rule, channel = make_rule(name, 6, 1), channel_of(9, participation=0.6)
    messages = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    present = np.array([0, 2, 3, 5, 7, 8])
    spoiled = messages.copy()
    spoiled[[1, 4, 6]] = np.nan

    @jax.jit
    def of_all_and_of_those_present(spoiled, messages, present):
        now = begin(channel, KEY, MASK)._replace(present=present)
        heard, own = channel.hear_gradients(now, rule, ()), messages[3]
        return (
            heard.apply(KEY, spoiled, Receiver(own, jnp.int32(3)), heard.init(9, 4)),
            rule.apply(KEY, messages[present], Receiver(own, jnp.int32(2)), rule.init(6, 4)),
        )

    got, expected = jax.tree.map(np.asarray, of_all_and_of_those_present(spoiled, messages, present))
    np.testing.assert_array_equal(got.rows, expected.rows)
    np.testing.assert_array_equal(got.shares[:, present], expected.shares)
    assert not got.shares[:, [1, 4, 6]].any()


def test_a_lost_message_is_an_unusable_row_and_liars_and_oneself_are_always_heard():
    channel = channel_of(9, drop=0.4)

    @jax.jit
    def losses(keys):
        """What receiver 2 and the server do not hear, for every key."""
        now = begin(channel, KEY, MASK)
        assert channel.hear_gradients(now, everything, ()).random and not everything.random
        hear = lambda receiver, key: heard_at(channel, now, key, jnp.ones((9, 1)), (), receiver)[:, 0]  # noqa: E731
        return [jnp.isnan(jax.vmap(partial(hear, receiver))(keys)) for receiver in (2, -1)]

    lost, lost_at_server = map(np.asarray, losses(jax.random.split(KEY, 4000)))
    rates = lost.mean(axis=0)
    assert rates[2] == 0 and rates[8] == 0
    np.testing.assert_allclose(np.delete(rates, [2, 8]), 0.4, atol=0.04)
    correlation = np.corrcoef(np.delete(lost, [2, 8], axis=1).T)
    assert np.abs(correlation - np.eye(7)).max() < 0.08  # messages are lost independently
    assert 0.3 < lost_at_server[:, 0].mean() < 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"participation": 0.5, "absent": "cached"},
        {"delay": 3},
        {"participation": 0.5, "delay": 2},
        {"participation": 0.5, "absent": "cached", "delay": 2},
    ],
    ids=str,
)
def test_what_arrives_is_one_of_the_last_messages(options):
    """Twenty iterations against a list of everything that was sent, in NumPy. Agent 5 is Byzantine and never late."""
    K, T, delay, cached = 6, 20, options.get("delay", 0), options.get("absent") == "cached"
    channel, mask = channel_of(K, **options), np.arange(K) == 5
    sent = np.random.default_rng(0).normal(size=(T, K, 2)).astype(np.float32)

    def step(memory, inputs):
        t, messages = inputs
        now = begin(channel, KEY, mask, t)
        arrived, following = channel.send(now, messages, memory)
        seen = heard_at(channel, now, KEY, arrived, memory)
        if not cached and now.present is not None:
            seen = jnp.full((K, 2), jnp.nan).at[now.present].set(seen)
        return following, (seen, now.takes_part)

    run = jax.jit(lambda sent: jax.lax.scan(step, channel.init(K, 2), (jnp.arange(T), sent))[1])
    seen, here = map(np.asarray, run(sent))
    assert here.sum(axis=1).tolist() == [channel.present] * T
    assert (len(np.unique(here, axis=0)) > 5) == ("participation" in options)
    ages, last = set(), np.full((T, K, 2), np.nan)
    for t in range(T):
        last[t] = np.where(here[t][:, None], sent[t], last[t - 1] if t else np.nan)
        for k in range(K):
            if k == 5 or not (here[t, k] or cached):
                assert np.isnan(seen[t, k]).all() or (seen[t, k] == sent[t, 5]).all()
            elif not here[: t + 1, k].any():
                assert np.isnan(seen[t, k]).all()  # it has not sent anything yet
            else:
                fits = [age for age in range(min(t, delay) + 1) if (seen[t, k] == last[t - age, k]).all()]
                assert fits, f"iteration {t}: agent {k} never sent what arrives"
                ages.add(fits[0])
    assert ages == set(range(delay + 1))


@pytest.mark.parametrize("arrivals", ["random", "adversarial"])
def test_a_gradient_that_was_never_sent_does_not_arrive_later(arrivals):
    """Agent 2 is absent at first; its gradient of the second iteration is the first that can arrive."""
    channel = channel_of(3, participation=0.6, delay=1, arrivals=arrivals)

    def three_iterations(key):
        memory, arrived = channel.init(3, 1), []
        for t, (value, present) in enumerate(((-1.0, [0, 1]), (1.0, [1, 2]), (2.0, [0, 2]))):
            now = begin(channel, key, np.zeros(3, bool), t)._replace(present=jnp.array(present))
            rows, memory = channel.send(now, jnp.full((3, 1), value), memory)
            arrived.append(rows[jnp.array(present), 0])
        return jnp.stack(arrived)

    found = np.asarray(jax.jit(jax.vmap(three_iterations))(jax.random.split(KEY, 50)))
    chance = arrivals == "random"  # the adversary always delays here
    expected = [[{-1.0}, {-1.0}], [{-1.0, 1.0} if chance else {-1.0}, {1.0}]]
    expected += [[{-1.0, 2.0}, {1.0, 2.0}] if chance else [{-1.0}, {1.0}]]
    assert [[set(found[:, t, i].tolist()) for i in range(2)] for t in range(3)] == expected


def test_metrics_where_no_honest_agent_takes_part_are_those_of_all_honest_agents():
    settings = jb.Settings(agents=3, byzantine=1, N=3, B=2)
    mask = np.array([False, False, True])

    @jax.jit
    def metrics(present, estimates, parameters):
        ones, zero = jnp.ones(3), jnp.int32(0)
        sampled = Sampled(estimates, jnp.array([3.0, 5.0, 100.0]), ones, ones, ones)
        now = begin(direct_channel(3), KEY, mask)._replace(present=present)
        measured = Measured(sampled, ones, jnp.eye(3), jnp.ones(3, bool), parameters, zero, zero)
        return iteration_metrics(settings, now, measured, Bytes(zero, zero))

    usable, useless = np.ones((3, 2), np.float32), np.full((3, 2), np.nan, np.float32)
    nobody, one = np.array([2]), np.array([1, 2])
    alone = metrics(nobody, usable, usable)
    assert (float(alone.returns), float(alone.worst_agent), int(alone.finite)) == (4.0, 3.0, 1)
    assert float(metrics(one, usable, usable).returns) == 5.0
    assert int(metrics(nobody, useless, usable).finite) == 1 and int(metrics(one, useless, usable).finite) == 0
    assert int(metrics(nobody, usable, useless).finite) == 0


def test_agreement_under_loss_still_brings_those_present_together():
    messages = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    channel, agreement = channel_of(9, participation=0.8, drop=0.2), Agreement(jb.mda(3), 6)
    # f = 1, and two lost messages on average

    @jax.jit
    def agree(key, messages, mask):
        now = begin(channel, key, mask)
        heard = agreement._replace(rule=channel.hear_parameters(now, agreement.rule))
        after = run_agreement(key, heard, messages, Adversary(mask)).parameters
        return only_present(now, after, messages), now.takes_part

    after, here = map(np.asarray, agree(KEY, messages, MASK))
    honest = here & ~MASK
    assert np.ptp(after[honest], axis=0).max() < 0.1 * np.ptp(messages[honest], axis=0).max()
    np.testing.assert_array_equal(after[~here], messages[~here])


def test_receivers_lose_different_messages():
    channel = channel_of(9, drop=0.5)

    @jax.jit
    def means(mask):
        heard = channel.hear_gradients(begin(channel, KEY, mask), jb.mean(skip_missing=True), ())
        return exchange(KEY, heard, (), jnp.eye(9), Adversary(mask)).rows

    rows = np.asarray(means(MASK))
    assert np.isfinite(rows).all() and len(np.unique(rows, axis=0)) > 5
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-6)


def decbyzpg(**changes):
    options = {"agents": 5, "byzantine": 1, "aggregator": "rfa", "agreement": "mda", "optimizer": optax.adam(0.1)}
    return jb.decbyzpg(ENV, POLICY, **{**options, **SAMPLING, "p": 0.5, "attack": "large-noise", **changes})


def counting(name):
    """Return an attack that remembers how often it was called."""

    def remember(view: View):
        return view.memory + 1

    return make_attack(name, 7, 1)._replace(init=lambda K, D: jnp.int32(0), remember=remember)


def traced(algorithm):
    state = jax.eval_shape(algorithm.init, KEY)
    return str(jax.make_jaxpr(algorithm.step)(state, jnp.bool_(True)))


def test_everything_off_is_the_same_program():
    off = {"participation": 1.0, "absent": "cached", "delay": 0, "drop": 0.0, "arrivals": "adversarial"}
    default = traced(decbyzpg())
    assert traced(decbyzpg(**off)) == default
    assert traced(decbyzpg(**{**off, "drop": 0.1}, unsafe=True)) != default
    for name in ("byzpg", "fed-page-pg"):
        build = partial(algorithms[name].factory, ENV, POLICY, **SAMPLING, agents=5, p=1.0, optimizer=optax.sgd(0.1))
        assert traced(build()) == traced(build(**off))


@pytest.mark.parametrize("name", ["page-pg", "ensemble"])
def test_algorithms_without_a_channel_do_not_use_its_options(name):
    build = partial(algorithms[name].factory, ENV, POLICY)
    plain = dict(**SAMPLING, agents=5, p=1.0, optimizer=optax.sgd(0.1))
    lossy = jb.Settings(**plain, participation=0.4, absent="cached", delay=2, compression="sign", momentum=0.5)
    assert traced(build(lossy)) == traced(build(jb.Settings(**plain)))
    with pytest.raises(jb.UsageError, match=r"absent=cached: .+ does not read it"):
        build(absent="cached")


def test_messages_of_one_iteration_have_ages_of_their_own():
    keys = begin(channel_of(3, delay=1), KEY, np.zeros(3, bool))
    draws = jax.vmap(lambda m: jax.random.randint(keys.message(m, ()).keys.delivery, (3,), 0, 2))(jnp.arange(8))
    assert len(np.unique(draws, axis=0)) > 1


def test_absent_agents_keep_their_state_in_one_program_for_all_masks():
    algorithm = decbyzpg(agents=7, participation=0.7, absent="cached", delay=2, drop=0.1, unsafe=True)
    state, seen, compiled = jax.jit(algorithm.init)(KEY), set(), []

    def counted(state, coin):
        compiled.append(coin)
        return algorithm.step(state, coin)

    step = jax.jit(counted)
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
    assert len(compiled) == 1 and len(seen) > 2


def test_the_same_agents_are_absent_in_all_messages_of_a_batch():
    algorithm = decbyzpg(agents=7, participation=0.7, epochs=2, p=1.0, unsafe=True, aggregator="mean",
                         attack=counting("large-noise"))  # fmt: skip
    state = jax.jit(algorithm.init)(KEY)
    after, metrics = jax.jit(algorithm.step)(state, np.bool_(True))
    moved = (np.asarray(after.parameters) != np.asarray(state.parameters)).any(axis=1)
    assert moved.sum() == 5  # ⌈0.7 · 7⌉ take part, twice
    assert float(metrics.bytes_sent) == 2 * 5 * 5 * (4 + 1) * POLICY.size * 4
    assert int(after.attack_memory) == 2  # an attack remembers every message


def reads_channel(name):
    return not traits_of_algorithm(name).ignores & set(CHANNEL_OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*filter(reads_channel, algorithms.names())])
def test_every_algorithm_runs_with_absent_agents_and_lost_messages(name):
    build = partial(algorithms[name].factory, ENV, POLICY, agents=7, byzantine=1, attack="avg-zero", unsafe=True,
                    optimizer=optax.sgd(0.01), **SAMPLING)  # fmt: skip
    parts = {"aggregator": "rfa", "p": 0.5}
    parts = {option: value for option, value in parts.items() if option not in traits_of_algorithm(name).ignores}
    some = {"participation": 0.7, "absent": "cached", "delay": 1, "drop": 0.2}
    for options in (some, {"participation": 0.7, "delay": 2}, {**some, "arrivals": "adversarial"}):
        algorithm = build(**parts, **options)
        run = jax.jit(lambda key, algorithm=algorithm: jb.train(algorithm, key, 6, jnp.arange(6) % 2 == 0))
        result = run(KEY)
        assert np.isfinite(result.run.state.parameters).all() and np.asarray(result.metrics.finite).all()


def test_limits_refer_to_those_present():
    attacked = {"agents": 13, "byzantine": 3, "agreement": "none", "aggregator": "rfa"}
    jb.resolve(**attacked, participation=0.6)  # 3 of 8, below the half of RFA
    with pytest.raises(jb.UsageError, match="byzantine=3 of agents=6 exceeds the limit 1/2 of aggregator rfa"):
        jb.resolve(**attacked, participation=0.4)
    jb.resolve(**attacked, participation=0.4, absent="cached")  # all 13 messages count
    with pytest.raises(jb.UsageError, match="limit 1/4 of agreement mda"):
        jb.resolve(agents=13, byzantine=3, participation=0.6, absent="cached")
    with pytest.raises(jb.UsageError, match="exceeds the limit"):
        decbyzpg(agents=9, byzantine=2, participation=0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": 0.0}, r"participation=0\.0: must be in \(0, 1\]"),
        ({"participation": 1.5}, r"participation=1.5: must be in \(0, 1\]"),
        ({"absent": "forget"}, "absent='forget' is unknown"),
        ({"delay": -1}, "delay=-1: must be at least 0"),
        ({"drop": 1.0}, r"drop=1.0: must be in \[0, 1\)"),
        ({"arrivals": "late"}, "arrivals='late' is unknown"),
    ],
)
def test_bad_values_end_in_one_line(options, message):
    with pytest.raises(jb.UsageError, match=message):
        jb.resolve(**options)
    with pytest.raises(jb.UsageError, match=message):
        check_options(ChannelOptions(**options))


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
    with pytest.raises(jb.UsageError, match="local_steps=0: must be at least 1"):
        decbyzpg(local_steps=0)
