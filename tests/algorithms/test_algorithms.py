"""Algorithms: equalities that the paper states, a single compiled program, correct metrics and outputs."""

from __future__ import annotations

import dataclasses
import re
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz import training
from jaxbyz.accelerate.batching import cond_on_coin
from jaxbyz.algorithms import Metrics, State, ensemble, fedpg_br, res_nharpg, svrpg
from jaxbyz.algorithms.agents import make_optimizer
from jaxbyz.attacks import attacks
from jaxbyz.errors import UsageError
from jaxbyz.protocol.schedules import schedules
from jaxbyz.rules import from_function
from jaxbyz.sampling import tabular_mdp as tabular

ENV = tabular.environment()
POLICY = tabular.policy()
PROGRAMS = {}
PAGE = {"N": 6, "B": 2, "gamma": 0.9, "horizon": tabular.HORIZON}


def common(**changes):
    options = {"agents": 5, "byzantine": 1, "optimizer": optax.adam(1e-2), **PAGE, "p": 0.3}
    return {**options, **changes}


def robust(**changes):
    f = changes.get("byzantine", 1)
    parts = {"aggregator": jb.rfa(), "agreement": jb.Agreement(jb.mda(f), 3)}
    return jb.decbyzpg(ENV, POLICY, **common(**{**parts, **changes}))


def run(algorithm, iterations=8, seed=0):
    coins = jb.common_coins(jax.random.key(5), 0.3, iterations)
    assert 1 < int(coins.sum()) < iterations
    if id(algorithm) not in PROGRAMS:  # keep the algorithm, so that its id stays its own
        PROGRAMS[id(algorithm)] = algorithm, jax.jit(lambda key: jb.train(algorithm, key, iterations, coins))
    return PROGRAMS[id(algorithm)][1](jax.random.key(seed))


def assert_same(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "aggregator",
    [
        jb.rfa(),
        pytest.param(jb.chain(jb.bucketing(size=2), jb.rfa()), marks=pytest.mark.slow),
        pytest.param(jb.krum(0), marks=pytest.mark.slow),
    ],
)
def test_one_agent_is_page_pg_to_the_bit(aggregator):
    alone = run(robust(agents=1, byzantine=0, aggregator=aggregator, agreement=jb.Agreement(jb.mda(0), 3)))
    page = run(jb.page_pg(ENV, POLICY, optimizer=optax.adam(1e-2), **PAGE, p=0.3))
    np.testing.assert_array_equal(alone.run.state.parameters, page.run.state.parameters)
    np.testing.assert_array_equal(alone.metrics.returns, page.metrics.returns)


@pytest.mark.slow
def test_mean_without_agreement_is_dec_page_pg_to_the_bit():
    attack = jb.large_noise()
    ours = run(robust(aggregator=jb.mean(), agreement=None, attack=attack))
    assert_same(ours, run(jb.dec_page_pg(ENV, POLICY, **common(attack=attack))))


@pytest.mark.slow
def test_central_mean_is_fed_page_pg_to_the_bit():
    attack = jb.avg_zero()
    ours = run(jb.byzpg(ENV, POLICY, **common(attack=attack, aggregator=jb.mean())))
    assert_same(ours, run(jb.fed_page_pg(ENV, POLICY, **common(attack=attack))))


@cache
def agreeing_under_noise():
    """Return a federation that agrees well although a Byzantine agent sends everyone other huge numbers."""
    return robust(attack=jb.large_noise(scale=1e6), agreement=jb.Agreement(jb.mda(1), 6))


def test_same_seed_same_bits_and_other_seed_other_bits():
    one = run(agreeing_under_noise())
    assert_same(one, run(agreeing_under_noise()))
    other = run(agreeing_under_noise(), seed=1)
    assert np.abs(np.asarray(one.metrics.returns) - np.asarray(other.metrics.returns)).max() > 0


def test_robust_rules_do_not_hide_that_honest_agents_diverge():
    """Rules replace non-finite messages by zeros, so parameters stay finite; the metric `finite` reports it."""

    def first_step(environment, rate):
        parts = {"aggregator": jb.rfa(), "agreement": jb.Agreement(jb.mda(1), 3), "optimizer": optax.sgd(rate)}
        algorithm = jb.decbyzpg(environment, POLICY, **common(**parts, p=1.0))
        state, metrics = jax.jit(lambda key: algorithm.step(algorithm.init(key), jnp.bool_(True)))(jax.random.key(0))
        assert np.isfinite(state.parameters).all()
        return int(metrics.finite)

    def endless(key, state, action):
        return ENV.step(key, state, action)._replace(reward=jnp.float32(jnp.inf))

    assert first_step(ENV, jnp.inf) == 0  # the proposed parameters overflow
    assert first_step(ENV._replace(step=endless), 1e-2) == 0  # the estimates overflow


@pytest.mark.slow
def test_a_sweep_is_the_runs_it_is_made_of():
    """vmap over seeds merges all lanes into one loop; every run must end as if it had run alone."""
    algorithm = robust(attack=jb.avg_zero())
    coins = jb.common_coins(jax.random.key(5), 0.3, 5)
    keys = jax.random.split(jax.random.key(0), 3)
    sweep = jax.jit(jax.vmap(lambda key: jb.train(algorithm, key, 5, coins)))(keys)
    alone = jax.jit(lambda key: jb.train(algorithm, key, 5, coins))
    for i in range(3):
        one = alone(keys[i])
        np.testing.assert_allclose(sweep.run.state.parameters[i], one.run.state.parameters, atol=1e-5)
        np.testing.assert_allclose(sweep.metrics.returns[i], one.metrics.returns, rtol=1e-6)


def on_the_tabular_mdp(make, **parts):
    """Return an algorithm in an environment whose tables are constants of the program."""
    common = {"agents": 3, "aggregator": jb.rfa(), "optimizer": optax.sgd(0.1), **PAGE, "N": 3, "p": 0.5}
    return make(tabular.environment(), tabular.policy(), **common, **parts)


@pytest.mark.slow
def test_own_coins_under_vmap():
    """Without shared coins every seed follows the coins of its own key and ends as if it had run alone."""
    keys = jax.random.split(jax.random.key(0), 3)
    algorithm = on_the_tabular_mdp(jb.decbyzpg, agreement=None)
    sweep = jax.jit(jax.vmap(lambda key: jb.train(algorithm, key, 8)))(keys)
    coins = np.asarray(sweep.metrics.coin)
    assert coins[:, 0].all() and len(np.unique(coins, axis=0)) > 1
    alone = jax.jit(lambda key: jb.train(algorithm, key, 8))
    for seed in (1, 2):
        one = alone(keys[seed])
        np.testing.assert_array_equal(one.metrics.coin, coins[seed])
        np.testing.assert_allclose(sweep.run.state.parameters[seed], one.run.state.parameters, atol=1e-5)


def test_own_coins_with_a_server():
    """The two branches of ByzPG differ in who samples. The program is only traced here."""
    keys = jax.random.split(jax.random.key(0), 3)
    algorithm = on_the_tabular_mdp(jb.byzpg)
    shapes = jax.eval_shape(jax.vmap(lambda key: jb.train(algorithm, key, 2)), keys)
    assert shapes.run.state.parameters.shape == (3, 1, tabular.policy().size)


@pytest.mark.parametrize("own", [False, True])
def test_cond_on_coin_computes_what_cond_computes(own):
    table = jnp.arange(3.0)  # a constant of both branches
    coin = jnp.array([True, False, True, False]) if own else jnp.bool_(True)
    x = jnp.arange(12.0).reshape(4, 3)
    run = jax.vmap(lambda c, x: cond_on_coin(c, lambda x: x + table, lambda x: x * table, x), (0 if own else None, 0))
    expected = jnp.where(coin[:, None] if own else coin, x + table[None], x * table[None])
    np.testing.assert_array_equal(jax.jit(run)(coin, x), expected)
    branches = str(jax.make_jaxpr(run)(coin, x)).count("cond[")
    assert branches == (0 if own else 1)


@pytest.mark.parametrize(
    "attack",
    [
        jb.avg_zero(),
        *(pytest.param(a(), marks=pytest.mark.slow) for a in (jb.random_action, jb.large_noise, jb.no_attack)),
    ],
)
def test_one_program_for_all_coins_seeds_and_byzantine_sets(attack):
    algorithm = robust(attack=attack, schedule=schedules["random"].factory(5, 1))
    chex.clear_trace_counter()
    init, step = jax.jit(algorithm.init), jax.jit(chex.assert_max_traces(algorithm.step, n=1))
    seen = set()
    for seed in range(2):
        state = init(jax.random.key(seed))
        for coin in (True, False, False, True):
            state, metrics = step(state, jnp.bool_(coin))
            seen.add(int(np.argmax(metrics.byzantine)))
    assert len(seen) > 1
    text = jax.jit(algorithm.step).lower(state, jnp.bool_(True)).as_text()
    assert "callback" not in text and "infeed" not in text and "outfeed" not in text


def test_a_shared_coin_stays_a_branch_under_vmap():
    """The program of a sweep holds a conditional, not a select between both batches."""
    algorithm = robust()
    keys = jax.random.split(jax.random.key(0), 3)
    states = jax.eval_shape(jax.vmap(algorithm.init), keys)
    shared = jax.make_jaxpr(jax.vmap(algorithm.step, in_axes=(0, None)))(states, jnp.bool_(True))
    own = jax.make_jaxpr(jax.vmap(algorithm.step, in_axes=(0, 0)))(states, jnp.ones(3, bool))
    assert "cond[" in str(shared)
    assert str(own).count("cond[") < str(shared).count("cond[")


@pytest.mark.slow
def test_small_batch_uses_the_previous_parameters_and_estimate():
    """After one large step, a small step at B trajectories reproduces ṽ computed by hand from the state."""
    from jaxbyz.sampling.page import sampler
    from jaxbyz.sampling.scoring import SamplingInputs

    algorithm = robust(agents=1, byzantine=0, aggregator=jb.mean(), agreement=None)
    state = algorithm.init(jax.random.key(3))
    first, _ = algorithm.step(state, jnp.bool_(True))
    np.testing.assert_array_equal(first.anchor, state.parameters)
    second, _ = algorithm.step(first, jnp.bool_(False))
    keys = jax.random.split(jax.random.fold_in(first.key, first.step), 4)[:1]
    small = sampler(ENV, POLICY, jb.Sampling(**PAGE)).small
    inputs = SamplingInputs(first.parameters, first.anchor, first.estimate, keys, jnp.zeros(1, bool), {})
    expected = small(inputs).sampled
    np.testing.assert_allclose(second.estimate, expected.estimate, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_realized_equals_aggregated_under_plain_ascent_without_agreement():
    """(θ_t − θ_{t−1})/η is v_{t−1} when θ_t = θ_{t−1} + η v_{t−1}."""
    plain = {"optimizer": "sgd", "eta": 1e-3, "aggregator": jb.mean(), "agreement": None}
    kept = run(robust(**plain, previous="aggregated"))
    realized = run(robust(**plain, previous="realized"))
    np.testing.assert_allclose(kept.run.state.parameters, realized.run.state.parameters, rtol=1e-3, atol=1e-4)


def test_agreement_brings_honest_agents_together_under_equivocation():
    apart = run(robust(attack=jb.large_noise(scale=1e6), agreement=None)).metrics.diameter
    together = run(agreeing_under_noise()).metrics.diameter
    assert float(apart[-1]) > 1e-2
    assert float(together[-1]) < 2**-6 * float(apart[-1])


def test_byzantine_state_is_never_altered():
    """Every agent, Byzantine or not, ends each iteration with the parameters that the protocol gave it."""
    parameters = np.asarray(run(agreeing_under_noise()).run.state.parameters)
    assert np.abs(parameters - parameters[0]).max() < 1e-4
    assert np.abs(parameters).max() < 10


def test_server_samples_alone_when_the_coin_is_zero():
    algorithm = jb.byzpg(ENV, POLICY, **common(aggregator=jb.rfa(), attack=jb.large_noise(scale=1e4)))
    out = run(algorithm)
    coins, shares = np.asarray(out.metrics.coin), np.asarray(out.metrics.shares)
    assert np.all(shares[coins == 0] == 0) and np.allclose(shares[coins == 1].sum(axis=1), 1, atol=1e-5)
    assert out.run.state.parameters.shape == (1, POLICY.size)
    K, D = 5, POLICY.size
    np.testing.assert_allclose(out.metrics.bytes_sent, np.where(coins, 2, 1) * K * D * 4)


def test_metrics_count_what_was_sent_and_sampled():
    out = run(robust(attack=jb.avg_zero()))
    coins = np.asarray(out.metrics.coin)
    np.testing.assert_array_equal(out.metrics.batch, np.where(coins, 6, 2))
    np.testing.assert_allclose(out.metrics.bytes_sent, (1 + 3) * 5 * 5 * POLICY.size * 4)
    assert np.all(np.asarray(out.metrics.byzantine).sum(axis=1) == 1)
    assert np.all(np.asarray(out.metrics.ess)[coins == 1] == 1)
    assert 0 <= float(out.metrics.byzantine_weight.mean()) < 0.1
    mean = run(jb.dec_page_pg(ENV, POLICY, **common(attack=jb.avg_zero())))
    np.testing.assert_allclose(mean.metrics.byzantine_weight, 0.2, rtol=1e-5)
    np.testing.assert_allclose(mean.metrics.gradient_norm, 0.0, atol=1e-3)


@pytest.mark.parametrize("algorithm", ["decbyzpg", "byzpg"])
def test_a_program_for_thousands_of_agents_is_no_longer_than_for_hundreds(algorithm):
    """No part of the program is unrolled over agents, and byte counts may exceed an int32."""

    def lines(agents: int) -> int:
        options = {"agents": agents, "byzantine": agents // 6, "attack": "avg-zero", "hidden": (300, 300)}
        built = jb.build(jb.resolve(algorithm=algorithm, agreement="gda", **options))
        state = jax.eval_shape(built.init, jax.random.key(0))
        return str(jax.make_jaxpr(built.step)(state, True)).count("\n")

    assert lines(6000) < 2 * lines(600)  # the stages of a sorting network: log² K


def test_a_users_own_rule_attack_and_environment():
    def middle(messages):
        return jnp.sort(messages, axis=0)[messages.shape[0] // 2]

    def loud(key, messages, mask):
        return 100.0 * jax.random.normal(key, messages.shape)

    from jaxbyz.attacks import from_function as attack_from

    algorithm = robust(aggregator=from_function(middle), attack=attack_from(loud))
    out = run(algorithm)
    assert np.isfinite(np.asarray(out.metrics.returns)).all()
    assert np.isnan(np.asarray(out.metrics.byzantine_weight)).all()  # the shares of a plain function are unknown
    with pytest.raises(ValueError, match="must return one vector"):
        jb.aggregate(lambda messages: messages, jax.random.key(0), jnp.ones((3, 2)))


@pytest.mark.parametrize(("p", "period"), [(1.0, None), (0.3, 1), (0.3, 3), (0.3, 10**9), (0.3, None)])
def test_coins_last_as_long_as_the_trajectories(p, period):
    """Only as many coins as needed are drawn, and they are a prefix of the longest sequence."""
    algorithm, key = robust(p=p, period=period), jax.random.key(2)
    longest = np.asarray(training.common_coins(key, p, 200) if period is None else np.arange(200) % period == 0)
    for trajectories in (1, 6, 7, 8, 100):
        T = int(np.searchsorted(np.cumsum(np.where(longest, 6, 2)), trajectories)) + 1
        np.testing.assert_array_equal(training.coins_for(algorithm, key, trajectories), longest[:T])
    drawn = training.most_iterations(algorithm, 6 * 10**6)
    assert drawn <= {(1.0, None): 10**6, (0.3, 1): 10**6, (0.3, 3): 1.8 * 10**6}.get((p, period), 3 * 10**6)


def test_a_run_has_iterations():
    with pytest.raises(UsageError, match="iterations=0: must be at least 1"):
        jb.train(robust(), jax.random.key(0), 0)


def counting(returns):
    """Return an algorithm whose parameters equal the iteration t and whose honest return is `returns[t]`."""
    zeros = Metrics(*[jnp.float32(0)] * len(Metrics._fields))

    def state_at(t, key):
        theta = jnp.full((2, 3), t, jnp.float32)
        return State(jnp.int32(t), key, theta, theta, theta, (), (), ())

    def step(state, coin, places):
        return state_at(state.step + 1, state.key), zeros._replace(returns=jnp.asarray(returns)[state.step])

    settings = jb.Settings(agents=2, p=0.3, **PAGE)
    return jb.Algorithm(lambda key, places: state_at(0, key), step, settings, POLICY, ENV)


def test_outputs_are_the_last_the_best_and_the_iterate_that_common_sample_names():
    """θ_T̂ is the parameters before iteration T̂, for seeds whose T̂ differ."""
    returns, named = [3.0, np.nan, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], set()  # one NaN does not freeze the best
    algorithm, T = counting(returns), len(returns)
    train = jax.jit(lambda key: jb.train(algorithm, key, T).run)
    for seed in range(6):
        out, at = train(jax.random.key(seed)), training.sampled_iteration(training.common_seed(jax.random.key(seed)), T)
        np.testing.assert_array_equal(out.outputs.sampled, np.full((2, 3), int(at)))
        np.testing.assert_array_equal(out.outputs.best, np.full((2, 3), 5))
        np.testing.assert_array_equal(out.state.parameters, np.full((2, 3), T))
        assert float(out.outputs.best_return) == 9.0
        named.add(int(at))
    assert len(named) > 2


def test_limits_of_named_rules_hold_in_python():
    options = {**common(agents=13, byzantine=6), "agreement": None}
    with pytest.raises(UsageError, match="exceeds the limit 1/4 of aggregator krum: at most 3") as refused:
        jb.decbyzpg(ENV, POLICY, **options, aggregator="krum")
    assert "--" not in str(refused.value)
    jb.decbyzpg(ENV, POLICY, **options, aggregator="krum", unsafe=True)
    with pytest.raises(UsageError, match="byzantine=6 of agents=13 exceeds the limit 1/4 of aggregator krum"):
        jb.decbyzpg(ENV, POLICY, **options, aggregator="krum", assumed_byzantine=1)  # f counts, not what is assumed
    with pytest.raises(UsageError, match="exceeds the limit 1/4 of agreement mda"):
        jb.decbyzpg(ENV, POLICY, **{**options, "agreement": "mda"}, aggregator="rfa")
    with pytest.raises(UsageError, match="exceeds the limit 1/2 of the server"):
        jb.byzpg(ENV, POLICY, **common(agents=4, byzantine=2), aggregator=jb.rfa())


def test_all_broken_limits_are_named_at_once():
    both = "byzantine=7 of agents=13 exceeds the limit 1/2 of aggregator rfa: at most 6, and the limit 1/2 of "
    both += "pre-aggregator nnm: at most 6, and the limit 1/4 of agreement mda: at most 3 (the option unsafe "
    for build in (
        lambda: jb.decbyzpg(ENV, POLICY, **common(agents=13, byzantine=7), aggregator="nnm+rfa", agreement="mda"),
        lambda: jb.resolve(agents=13, byzantine=7, aggregator="rfa", pre_aggregator="nnm", agreement="mda"),
    ):
        with pytest.raises(UsageError, match=re.escape(both)):
            build()
    with pytest.raises(UsageError, match=r"agents=4 exceeds the limit 1/2 of the server: at most 1, and .* krum"):
        jb.byzpg(ENV, POLICY, **common(agents=4, byzantine=2), aggregator="krum")
    delayed = jb.resolve(agents=13, byzantine=3, participation=0.6, aggregator="krum", unsafe=True)
    with pytest.raises(UsageError, match=r"of agents=8 exceeds the limit 1/4 of aggregator krum: at most 1, and"):
        delayed.traits.check(dataclasses.replace(delayed, unsafe=False))


def test_wrong_arguments_of_algorithms_are_refused_in_one_line():
    class Gymnasium:  # has neither gymnax's interface nor that of an `Environment`
        observation_space = action_space = None

    options = {**common(), "aggregator": "mean"}
    for build, message in (
        (lambda: jb.mlp_policy(Gymnasium()), "env=Gymnasium is not a gymnax environment, .* step_env"),
        (lambda: jb.cnn_policy("CartPole-v1"), "environment='CartPole-v1': must be an Environment, .*make_environment"),
        (lambda: jb.decbyzpg(Gymnasium(), POLICY, **options, agreement=None), "env=Gymnasium is not a gymnax"),
        (
            lambda: jb.byzpg(jb.make_environment("CartPole-v1").raw, POLICY, **options),
            "environment=CartPole: must be an Environment",
        ),
        (lambda: jb.byzpg(ENV, "mlp", **options), r"policy='mlp': must be a Policy, such as jaxbyz\.mlp_policy"),
        (lambda: jb.page_pg(ENV, POLICY, optimizer=0.01), r"optimizer=0\.01: must be a name, or an optax optimizer"),
        (
            lambda: res_nharpg(ENV, POLICY, agents=5, aggregator="mean", optimizer=optax.sgd),
            "optimizer=function: must be a name, or an optax",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            build()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": 0, "byzantine": 0}, "agents=0: must be at least 1"),
        ({"byzantine": -1}, "byzantine=-1: must be at least 0"),
        ({"agents": 4, "byzantine": 7, "unsafe": True}, "byzantine=7 of agents=4: at least one agent must be honest"),
        ({"assumed_byzantine": -1}, "assumed_byzantine=-1: must be at least 0"),
        ({"p": 0.0}, "p=0.0: must be in (0, 1]"),
        ({"p": 2}, "p=2: must be in (0, 1]"),
        ({"period": 0}, "period=0: must be at least 1, or None"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0: must be a positive float32 number"),
        ({"ratio_clip": 0.0}, "ratio_clip=0.0: must be a positive float32 number"),
        ({"local_eta": float("nan")}, "local_eta=nan: must be a positive float32 number"),
        ({"entropy": float("inf")}, "entropy=inf: must be a finite float32 number"),
        ({"epochs": 2}, "epochs=2, minibatches=1 with small batches: a small batch corrects the estimate of one step"),
        ({"horizon": 0}, "horizon=0: must be at least 1"),
        ({"gamma": 1.5}, "gamma=1.5: must be in (0, 1]"),
        ({"weight_clip": -1.0}, "weight_clip=-1.0: must be a positive float32 number"),
        ({"gae_lambda": 2.0}, "gae_lambda=2.0: must be in [0, 1]"),
        ({"critic_hidden": ()}, "critic_hidden=: must be one or more layer"),
        ({"batch_spread": 2}, "batch_spread=2: "),
        ({"page": 3}, "option='page' is unknown"),
    ],
)
def test_numbers_out_of_range_are_refused_by_every_algorithm(changes, message):
    options = {**common(), "aggregator": "mean", **changes}
    for build in (partial(jb.decbyzpg, agreement=None), jb.byzpg, partial(ensemble, groups=1)):
        with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
            build(ENV, POLICY, **options)


def test_numbers_that_single_algorithms_and_attacks_cannot_use_are_refused():
    options = {"agents": 5, "optimizer": optax.sgd(0.1)}
    for build, message in (
        (lambda: svrpg(ENV, POLICY, period=0, **options), "period=0: must be at least 1"),
        (lambda: fedpg_br(ENV, POLICY, aggregator="mean", N=0, **options), "N=0: must be at"),
        (lambda: res_nharpg(ENV, POLICY, aggregator="mean", momentum=1.0, **options), r"momentum=1.0: must be in \[0,"),
        (lambda: robust(batch_spread=2), "batch_spread=2: decbyzpg does not read it"),
        (lambda: fedpg_br(ENV, POLICY, baseline="leave-one-out", batch_spread=2, **options), "needs baseline=none"),
        (lambda: jb.dec_page_pg(ENV, POLICY, aggregator="rfa", **options), "dec_page_pg does not read it"),
        (lambda: attacks["gradient-found"].build(5, 1, reach=-1.0), "reach=-1.0: must be positive and finite"),
        (lambda: attacks["gradient-found"].build(5, 1, steps=-1), "steps=-1: must be at least 0"),
    ):
        with pytest.raises(UsageError, match=message):
            build()


@pytest.mark.parametrize("function", [lambda: 0, lambda key, messages, mask: 0, lambda *, messages: 0, 7])
def test_a_rule_with_other_arguments_is_refused_at_once(function):
    with pytest.raises(UsageError, match=r"must be a function of \(messages\) or \(key, messages\)"):
        from_function(function)
    assert not from_function(lambda messages, trim=1: messages[0]).random
    assert from_function(lambda key, messages, trim=1: messages[0]).random


def test_an_agreement_by_name_is_the_agreement_itself():
    by_name = run(robust(agreement="mda:rounds=6", attack="large-noise:scale=1e6"))
    assert_same(by_name, run(agreeing_under_noise()))
    with pytest.raises(UsageError, match="rounds must be a whole number"):
        robust(agreement="mda:rounds=0")
    with pytest.raises(UsageError, match="agreement='mdaa' is unknown; did you mean 'mda'"):
        robust(agreement="mdaa")


@pytest.mark.parametrize(("iterations", "expected"), [(None, [0.4, 0.4, 0.4]), (4, [0.4, 0.35, 0.3])])
def test_the_step_size_decays_over_a_run_of_known_length(iterations, expected):
    optimizer = make_optimizer(jb.resolve(optimizer="sgd", eta=0.4, eta_end=0.2), iterations)
    state, sizes = optimizer.init(jnp.zeros(1)), []
    for _ in range(3):
        update, state = optimizer.update(jnp.ones(1), state)
        sizes.append(-float(update[0]))
    assert sizes == pytest.approx(expected)


def test_a_step_size_that_decays_needs_the_length_of_the_run():
    with pytest.raises(UsageError, match=r"eta_end=0\.1: the length of the run is not known here"):
        robust(optimizer="sgd", eta=0.4, eta_end=0.1)
