"""FedPG-BR, SVRPG and Byz-VR-MARINA-PG differ from ByzPG where their papers say so."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz.algorithms import Metrics, byz_vr_marina_pg, fedpg_br, svrpg
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.rules import Receiver, fltrust
from jaxbyz.rules import fedpg_br as fedpg_br_filter
from jaxbyz.runs.history import environment_steps
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.estimators import check_estimator, estimate, mean_ratio, whitened_coefficients
from jaxbyz.sampling.random_batches import random_size_batches
from jaxbyz.sampling.rollout import collect
from jaxbyz.sampling.scoring import SamplingInputs
from jaxbyz.training import algorithm_coins

ENV, POLICY = tabular.environment(), tabular.policy()
PAGE = {"N": 6, "B": 2, "gamma": 0.9, "horizon": tabular.HORIZON}
OPTIONS = {"agents": 5, "byzantine": 1, "optimizer": optax.sgd(0.1), **PAGE, "attack": jb.large_noise()}
WHITENED = {"estimator": "whitened", "weights": "per-step", "gamma": 0.9, "horizon": tabular.HORIZON}
CONSTANT = {"baseline": "constant", "baseline_value": 0.3, "gamma": 0.9, "horizon": tabular.HORIZON}


@cache
def eight_episodes():
    """The parameters of one agent, the keys with which it samples, and eight episodes, all as NumPy arrays."""

    @jax.jit
    def sampled():
        theta, keys = POLICY.init(jax.random.key(1))[None], jax.random.split(jax.random.key(2), 1)
        return theta, keys, collect(ENV, POLICY, theta, keys, 8, tabular.HORIZON)

    theta, keys, episodes = sampled()
    return np.asarray(theta), keys, jax.tree.map(np.asarray, episodes)


@pytest.mark.slow
def test_marina_aggregates_small_batches_too():
    algorithm = byz_vr_marina_pg(ENV, POLICY, **OPTIONS, aggregator=jb.rfa())
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)), jnp.bool_(True))
    _, metrics = algorithm.step(state, jnp.bool_(False))
    np.testing.assert_allclose(metrics.shares.sum(), 1, rtol=1e-5)
    assert float(metrics.byzantine_weight) < 0.05
    assert float(metrics.bytes_sent) == 2 * 5 * POLICY.size * 4


@pytest.mark.slow
def test_svrpg_keeps_its_snapshot_between_large_batches():
    algorithm = svrpg(ENV, POLICY, **{**OPTIONS, "attack": None, "byzantine": 0})
    assert algorithm.settings.period == 4
    coins = algorithm_coins(algorithm, jax.random.key(0), 9)
    np.testing.assert_array_equal(np.flatnonzero(coins), [0, 4, 8])
    state = algorithm.init(jax.random.key(0))
    snapshots, memories, thetas = [], [], []
    for coin in coins[:6]:
        thetas.append(np.asarray(state.parameters))
        state, _ = algorithm.step(state, coin)
        snapshots.append(np.asarray(state.anchor))
        memories.append(np.asarray(state.estimate))
    for t in (1, 2, 3):
        np.testing.assert_array_equal(snapshots[t], thetas[0])
        np.testing.assert_array_equal(memories[t], memories[0])
    np.testing.assert_array_equal(snapshots[4], thetas[4])
    assert np.abs(memories[4] - memories[0]).max() > 0


@pytest.mark.slow
def test_fedpg_br_takes_its_coin_from_the_batch_sizes():
    algorithm = fedpg_br(ENV, POLICY, **{**OPTIONS, **WHITENED}, aggregator=fedpg_br_filter(sigma=1.0, batch=6))
    assert algorithm.settings.p == pytest.approx(2 / 8)
    assert algorithm.settings.anchor == "snapshot"
    state = algorithm.init(jax.random.key(0))
    for coin in (True, False, False, True):
        state, metrics = algorithm.step(state, jnp.bool_(coin))
        assert np.isfinite(np.asarray(state.parameters)).all()
    assert float(metrics.byzantine_weight) == 0.0


@pytest.mark.parametrize("options", [WHITENED, pytest.param(CONSTANT, marks=pytest.mark.slow)])
def test_a_batch_of_random_size_is_the_batch_of_that_size(options):
    """The estimate, the return and the length are those of the first episodes, however many were sampled."""
    settings = jb.Sampling(N=5, B=2, **options)
    theta, keys, episodes = eight_episodes()
    large = jax.jit(random_size_batches(ENV, POLICY, settings, None, most=8))
    first = {
        size: episodes._replace(
            **{name: getattr(episodes, name)[..., :size] for name in episodes._fields if name != "chunks"}
        )
        for size in (2, 5, 8)
    }

    @jax.jit
    def expected_of(first):
        return {
            size: (estimate(settings, POLICY, theta, episodes), episodes.returns.mean(), episodes.lengths.mean())
            for size, episodes in first.items()
        }

    for size, expected in expected_of(first).items():
        sampled = large(SamplingInputs(theta, theta, theta, keys, np.zeros(1, bool), {}), np.array([size])).sampled
        np.testing.assert_allclose(sampled.estimate, expected[0], rtol=1e-4)
        np.testing.assert_allclose(np.asarray(sampled.returns)[0], expected[1], rtol=1e-6)
        np.testing.assert_allclose(np.asarray(sampled.lengths)[0], expected[2], rtol=1e-6)
    assert large._cache_size() == 1


def test_mean_ratio_against_numpy():
    theta, _, episodes = eight_episodes()

    @jax.jit
    def ratio_and_logits(episodes):
        other = POLICY.init(jax.random.key(4))[None]
        steps = episodes.observations[0, 0].reshape(ENV.observation_size, -1)
        logits = [POLICY.apply(POLICY.unravel(parameters[0]), steps) for parameters in (theta, other)]
        return mean_ratio(POLICY, other, episodes), logits

    found, logits = ratio_and_logits(episodes)
    shape = episodes.actions.shape[2:]  # steps and episodes
    exponentials = [np.exp(np.asarray(x, np.float64)) for x in logits]
    before, after = ((e / e.sum(axis=0)).reshape(-1, *shape) for e in exponentials)
    ratios = []
    for i, n in enumerate(episodes.lengths[0]):
        for t in range(n):
            action = int(episodes.actions[0, 0, t, i])
            ratios.append(after[action, t, i] / before[action, t, i])
    np.testing.assert_allclose(np.asarray(found)[0], np.mean(ratios), rtol=1e-5)


@pytest.mark.slow
def test_the_inner_loop_of_fedpg_br_ends_early_until_the_next_large_batch():
    """The server waits: no step, no trajectories. A window that nothing leaves changes no number."""
    options = {**OPTIONS, **WHITENED, "aggregator": fedpg_br_filter(sigma=1.0, batch=6), "batch_spread": 2}
    thetas, sizes = {}, {}
    for window in (1e-9, 1e9, None):
        algorithm = fedpg_br(ENV, POLICY, **options, ratio_window=window)
        state, step = algorithm.init(jax.random.key(0)), jax.jit(algorithm.step)
        thetas[window], sizes[window] = [], []
        for coin in (True, False, False, True, False):
            state, metrics = step(state, jnp.bool_(coin))
            thetas[window].append(np.asarray(state.parameters))
            sizes[window].append(int(metrics.batch))
        assert step._cache_size() == 1
    np.testing.assert_array_equal(thetas[1e9], thetas[None])
    first, *stopped = thetas[1e-9]
    np.testing.assert_array_equal(first, thetas[None][0])
    np.testing.assert_array_equal(stopped[0], first)
    np.testing.assert_array_equal(stopped[1], first)
    assert np.abs(stopped[2] - first).max() > 0 and np.array_equal(stopped[3], stopped[2])
    assert sizes[1e9] == sizes[None] and sizes[None][1:3] == [2, 2] and sizes[1e-9][1:3] == [2, 0]
    assert all(4 <= n <= 8 for n in (sizes[None][0], sizes[None][3]))


def test_the_filter_knows_the_size_that_was_drawn():
    messages = 0.05 * np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
    messages[9:] = 0.13

    def of(rule, batch):
        return rule.apply(jax.random.key(0), messages, Receiver(messages[0], jnp.int32(0), batch), ()).shares

    @jax.jit
    def shares(size):
        """For a size that was drawn, by a rule built for another size; and by rules built for 4 and 16."""
        drawn = [of(fedpg_br_filter(batch=9), size), of(fedpg_br_filter(), size)]
        return drawn, {built: of(fedpg_br_filter(batch=built), None) for built in (4, 16)}

    default = []
    for size in (4, 16):
        (found, by_default), expected = shares(np.int32(size))
        np.testing.assert_array_equal(found, expected[size])
        default.append(by_default)
    assert not np.array_equal(*default)


def test_whitened_coefficients_against_numpy():
    settings = jb.Sampling(**WHITENED)
    theta, _, episodes = eight_episodes()
    q, gradient = jax.jit(lambda e: (whitened_coefficients(settings, e), estimate(settings, POLICY, theta, e)))(
        episodes
    )
    q, rewards, lengths = np.asarray(q), episodes.rewards[0, 0], episodes.lengths[0]
    for i, n in enumerate(lengths):
        to_go = np.array([sum(0.9 ** (h - t) * rewards[h, i] for h in range(t, n)) for t in range(n)])
        expected = (to_go - to_go.mean()) / (to_go.std() + 1e-8) / lengths.mean()
        np.testing.assert_allclose(q[0, 0, :n, i], expected, rtol=1e-4, atol=1e-5)
        assert np.all(q[0, 0, n:, i] == 0)
    assert 0 < np.linalg.norm(gradient) < 2


def test_filter_drops_what_is_far_from_the_majority():
    key = jax.random.key(0)
    messages = np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32)
    close = 0.01 * messages + 1.0
    close[9:] = -3.0
    got = jb.aggregate("fedpg-br:sigma=0.06,batch=16", key, close)
    np.testing.assert_allclose(got, close[:9].mean(axis=0), rtol=1e-5)
    messages[9:] = 1e6  # the others are farther from each other than σ allows
    assert np.abs(jb.aggregate("fedpg-br", key, messages)).max() < 10


@pytest.mark.parametrize(("kind", "weights"), [("whitened", "trajectory"), ("gpomdp", "per-step")])
def test_estimates_and_weights_that_do_not_go_together(kind, weights):
    with pytest.raises(jb.UsageError, match="need each other"):
        check_estimator(jb.Sampling(estimator=kind, weights=weights))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(algorithm="svrpg", previous="realized"), "anchor='snapshot'"),
        (dict(algorithm="fedpg-br", previous="realized"), "anchor='snapshot'"),
        (dict(previous="realized", anchor="proposed"), "anchor='proposed'"),
    ],
)
def test_the_realized_estimate_needs_the_previous_parameters(options, message):
    with pytest.raises(UsageError, match=message):
        resolve(optimizer="sgd", eta_end=None, p=0.5, agents=3, **options)


@pytest.mark.parametrize("factory", [svrpg, fedpg_br])
def test_factories_refuse_the_realized_estimate_at_a_snapshot(factory):
    with pytest.raises(UsageError, match="anchor='snapshot'"):
        factory(ENV, POLICY, **OPTIONS, previous="realized")
    with pytest.raises(UsageError, match="anchor='proposed'"):
        factory(ENV, POLICY, **OPTIONS, previous="realized", anchor="proposed")


@pytest.mark.parametrize(
    ("anchor", "rule"),
    [
        ("proposed", "rfa"),
        pytest.param("previous", "rfa", marks=pytest.mark.slow),
        pytest.param("proposed", None, marks=pytest.mark.slow),
    ],
)
def test_a_server_of_the_published_code_computes_what_all_would(anchor, rule):
    """If all workers sample small batches and nobody equivocates, all compute the server's aggregate themselves.

    ByzPG is then DecByzPG without agreement, and Fed-PAGE-PG is Dec-PAGE-PG.
    """
    options = {**OPTIONS, "previous": "own", "anchor": anchor, "weights": "published"}
    options["attack"] = "avg-zero" if rule else "random-action"
    if rule is None:
        server = jb.fed_page_pg(ENV, POLICY, **options, small_batches="workers")
        without = jb.dec_page_pg(ENV, POLICY, **options)
    else:
        server = jb.byzpg(ENV, POLICY, **options, aggregator=rule, small_batches="workers")
        without = jb.decbyzpg(ENV, POLICY, **options, aggregator=rule, agreement=None)
    steps = [jax.jit(algorithm.step) for algorithm in (server, without)]
    states = [jax.jit(algorithm.init)(jax.random.key(3)) for algorithm in (server, without)]
    for coin in (True, False, False, True, False):
        (one, measured), (all_, expected) = (f(s, jnp.bool_(coin)) for f, s in zip(steps, states, strict=True))
        np.testing.assert_allclose(np.tile(one.parameters, (5, 1)), all_.parameters, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one.private.estimate, all_.estimate, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(measured.shares, expected.shares, atol=1e-4)
        states = [one, all_]
    assert steps[0]._cache_size() == 1 and np.ptp(np.asarray(one.private.estimate), axis=0).max() > 0.01


@pytest.mark.parametrize(
    ("algorithm", "samplers"), [("byzpg", 1), ("svrpg", 1), ("fedpg-br", 1), ("byz-vr-marina-pg", 5), ("decbyzpg", 5)]
)
def test_steps_of_a_small_batch_are_those_of_whoever_samples_it(algorithm, samplers):
    few = Metrics(*[np.zeros((2, 3))] * len(Metrics._fields))
    few = few._replace(length=np.full((2, 3), 7.0), batch=np.array([[6, 2, 2]] * 2), coin=np.array([[1, 0, 0]] * 2))
    assert environment_steps(resolve(algorithm=algorithm, agents=5), few) == 2 * 7 * (6 * 5 + 4 * samplers)
    workers = resolve(algorithm=algorithm, agents=5, p=0.5, small_batches="workers")
    reads_it = algorithm == "byzpg"
    assert environment_steps(workers, few) == 2 * 7 * (6 * 5 + 4 * (5 if reads_it else samplers))
    assert workers.small_batches == ("workers" if reads_it else None)


def test_fltrust_follows_the_trusted_direction_whatever_is_sent():
    """Against NumPy, and with six of seven messages Byzantine."""
    rng = np.random.default_rng(0)
    trusted, messages = (rng.normal(size=shape).astype(np.float32) for shape in (5, (7, 5)))
    messages[1] *= 1e6
    messages[2] = -trusted
    lengths = np.linalg.norm(messages, axis=1, keepdims=True)
    weights = np.maximum(messages @ trusted / lengths[:, 0], 0.0)
    expected = np.linalg.norm(trusted) * (weights / weights.sum()) @ (messages / lengths)

    @jax.jit
    def apply(messages):
        return fltrust().apply(jax.random.key(0), messages, Receiver(jnp.asarray(trusted), jnp.int32(-1)), ())

    outcome = apply(messages)
    np.testing.assert_allclose(np.asarray(outcome.rows)[0], expected, rtol=1e-4)
    assert np.asarray(outcome.shares)[0, 2] == 0
    messages[:6] = np.nan
    row = np.asarray(apply(messages).rows)[0]
    assert np.isfinite(row).all() and row @ trusted >= 0


@pytest.mark.slow
def test_a_server_with_its_own_batch_learns_against_a_majority():
    page = {"N": 20, "B": 10, "gamma": tabular.GAMMA, "horizon": tabular.HORIZON}
    options = {"agents": 7, "byzantine": 4, "attack": "ipm:epsilon=3", **page, "p": 1.0, "unsafe": True}
    found = {}
    for rule in ("fltrust", "rfa"):
        algorithm = jb.byzpg(ENV, POLICY, aggregator=rule, optimizer=optax.sgd(0.3), **options)
        result = jax.jit(lambda key, algorithm=algorithm: jb.train(algorithm, key, 150))(jax.random.key(0))
        found[rule] = float(tabular.value(result.run.state.parameters[0]))
    assert found["fltrust"] > 2.3 > 1.5 > found["rfa"]
