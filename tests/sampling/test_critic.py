"""Critics and batches that are used several times: equal to float64 NumPy, and local to their agent."""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import StopAt, assert_same_run
from sampling_helpers import sampling_inputs

import jaxbyz as jb
from jaxbyz import make_environment, mlp_policy
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.configuration.building import build
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.policies.networks import MLP
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.run import resume, run
from jaxbyz.sampling import critic as critics
from jaxbyz.sampling.page import sampler
from jaxbyz.sampling.reuse import Reuse, clipped_estimate, deal, keep, local_estimate, minibatch
from jaxbyz.sampling.rollout import collect
from jaxbyz.sampling.settings import Sampling, check_sampling

A, M, HORIZON, GAMMA, LAMBDA = 2, 6, 40, 0.97, 0.9
ENVIRONMENT = make_environment("CartPole-v1")
POLICY = mlp_policy(ENVIRONMENT, (4,))
SETTINGS = critics.CriticSettings(critic_hidden=(5, 4), critic_steps=3)
SAMPLING = {"N": M, "B": M, "gamma": GAMMA, "horizon": HORIZON, "p": 1.0}
RUN = dict(env="CartPole-v1", agents=5, byzantine=1, attack="avg-zero", N=4, B=4, p=1.0, horizon=16, hidden=(3,),
           kappa="2", baseline="critic", advantages="normalised", epochs=2, minibatches=2, critic_hidden=(4,),
           critic_steps=2, trajectories=24, seeds=2)  # fmt: skip


@pytest.fixture(scope="module")
def batch():
    """Parameters, episodes of which some are cut by the horizon, and trained critics whose values are far from 0.

    All of them are NumPy arrays.
    """
    own = critics.critic(4, SETTINGS)

    @jax.jit
    def sample():
        theta = jnp.tile(POLICY.init(jax.random.key(0)), (A, 1))
        episodes = collect(ENVIRONMENT, POLICY, theta, jax.random.split(jax.random.key(3), A), M, HORIZON)
        states = jax.vmap(own.init)(jax.random.split(jax.random.key(1), A))
        train = jax.jit(lambda states: own.train(states, episodes, 5.0 + episodes.rewards))
        return theta, episodes, train(train(states))

    theta, episodes, states = jax.device_get(sample())
    assert episodes.terminated.any() and not episodes.terminated.all()
    return theta, episodes, own, states


def numpy_values(states, agent: int, observations: np.ndarray) -> np.ndarray:
    """V of observations `[steps, O]` in float64."""
    layers = jax.tree.map(lambda leaf: np.asarray(leaf[agent], np.float64), states.network["params"])
    x = observations.astype(np.float64).T
    for i in range(3):
        x = layers[f"Layer_{i}"]["kernel"] @ x + layers[f"Layer_{i}"]["bias"][:, None]
        x = np.tanh(x) if i < 2 else x
    return float(states.shift[agent]) + float(states.scale[agent]) * x[0]


def in_time(x: np.ndarray, agent: int) -> np.ndarray:
    """`[n, A, C, M]` to `[steps, M]`."""
    x = np.asarray(x)[:, agent]
    return x.reshape(-1, x.shape[-1])


def numpy_advantages(episodes, states, agent: int) -> np.ndarray:
    """GAE of every episode, with a loop backwards in time, `[steps, M]`."""
    observations = np.asarray(episodes.observations)[:, agent].transpose(0, 2, 3, 1).reshape(-1, M, 4)
    rewards, result = in_time(episodes.rewards, agent), np.zeros((len(observations), M))
    for i in range(M):
        T = int(in_time(episodes.alive, agent)[:, i].sum())
        last = np.asarray(episodes.final_observations)[agent, :, i]
        values = numpy_values(states, agent, np.vstack([observations[:T, i], last]))
        if episodes.terminated[agent, i]:
            values[T] = 0.0
        running = 0.0
        for t in reversed(range(T)):
            running = float(rewards[t, i]) + GAMMA * values[t + 1] - values[t] + GAMMA * LAMBDA * running
            result[t, i] = running
    return result


@pytest.fixture(scope="module")
def ours(batch):
    """Values, advantages and normalised advantages of the batch."""
    _, episodes, own, states = batch

    @jax.jit
    def compute(states, episodes):
        values, final_values = own.values(states, episodes)
        q = critics.advantages(episodes, values, final_values, GAMMA, LAMBDA)
        return values, q, critics.normalised(q, episodes.alive)

    return jax.device_get(compute(states, episodes))


@jax.jit
def clipped(theta, episodes, q):
    return clipped_estimate(POLICY, theta, keep(episodes, q), 0.1)


def test_the_last_observation_is_the_one_after_the_last_step(batch):
    """CartPole is deterministic: the state of a cut episode is inside its bounds, that of a fallen one is outside."""
    _, episodes, _, _ = batch
    x, angle = np.abs(episodes.final_observations[:, 0]), np.abs(episodes.final_observations[:, 2])
    fallen = (x > 2.4) | (angle > 12 * np.pi / 180)
    np.testing.assert_array_equal(fallen, episodes.terminated)


def test_advantages_equal_numpy(batch, ours):
    _, episodes, _, states = batch
    values, got, scaled = ours
    for agent in range(A):
        expected = numpy_advantages(episodes, states, agent)
        np.testing.assert_allclose(in_time(got, agent), expected, rtol=1e-4, atol=1e-4)
        alive = in_time(episodes.alive, agent)
        mean, deviation, length = expected[alive].mean(), expected[alive].std(), alive.sum() / M
        expected = np.where(alive, (expected - mean) / deviation / length, 0.0)
        np.testing.assert_allclose(in_time(scaled, agent), expected, rtol=1e-4, atol=1e-6)
    assert np.abs(values[episodes.alive]).min() > 1.0  # the critic matters


def test_rescaling_changes_no_value_and_training_lowers_the_error(batch):
    _, episodes, own, states = batch
    targets = np.where(episodes.alive, 40.0 + 3.0 * episodes.observations[:, :, 0], 0.0)
    still = critics.critic(4, replace(SETTINGS, critic_eta=1e-12, critic_steps=1))
    longer = critics.critic(4, replace(SETTINGS, critic_steps=100, critic_eta=1e-2))

    @jax.jit
    def values_after(states, episodes, targets):
        fitted = jax.lax.fori_loop(0, 20, lambda _, now: longer.train(now, episodes, targets), states)
        trained = states, still.train(states, episodes, targets), fitted
        return [own.values(now, episodes)[0] for now in trained]

    before, unchanged, fitted = jax.device_get(values_after(states, episodes, targets))
    np.testing.assert_allclose(unchanged, before, rtol=2e-4, atol=2e-4)
    assert np.mean((fitted - targets) ** 2) < 0.1


def test_local_steps_of_a_critic_use_the_parts_in_turn(batch):
    """Step i follows the mean squared error of the chunks c with c mod 2 = i mod 2; with one chunk, always of it."""
    _, episodes, _, states = batch
    targets = np.where(episodes.alive, 3.0 * episodes.observations[:, :, 0] - 1.0, 0.0)
    settings = replace(SETTINGS, critic_parts=2)
    mlp, adam = MLP(settings.critic_hidden, 1, "tanh", "identity", "lecun"), optax.adam(settings.critic_eta)

    @jax.jit
    def train_and_rescale(*batch):
        return [critics.critic(4, replace(settings, critic_steps=steps)).train(*batch) for steps in (3, 0)]

    @jax.jit
    def step(state, observations, goals, taken):
        def error(network):
            outputs = mlp.apply(network, observations)[0]
            return (
                0.5 * jnp.sum(jnp.where(taken, outputs - (goals - state.shift) / state.scale, 0.0) ** 2) / taken.sum()
            )

        updates, optimizer = adam.update(jax.grad(error)(state.network), state.optimizer)
        return state._replace(network=optax.apply_updates(state.network, updates), optimizer=optimizer)

    assert episodes.chunks == 3
    first_chunk = np.arange(3).reshape(3, 1, 1, 1) == 0
    short = episodes._replace(alive=episodes.alive & first_chunk, chunks=np.int32(1))
    for sampled, parts in ((episodes, (0, 1, 0)), (short, (0, 0, 0))):
        found, start = jax.device_get(train_and_rescale(states, sampled, targets))
        observations = np.asarray(sampled.observations).transpose(1, 2, 0, 3, 4).reshape(A, 4, -1)
        for agent in range(A):
            expected = jax.tree.map(lambda leaf, agent=agent: leaf[agent], start)
            for part in parts:
                taken = np.asarray(sampled.alive[:, agent]) & (np.arange(3) % 2 == part)[:, None, None]
                goals = np.asarray(targets[:, agent]).ravel()
                expected = step(expected, observations[agent], goals, taken.ravel())
            jax.tree.map(
                lambda a, b, agent=agent: np.testing.assert_allclose(a[agent], b, rtol=1e-4, atol=1e-5),
                found.network, expected.network,
            )  # fmt: skip


def numpy_log_probs(theta: np.ndarray, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    leaves, structure = jax.tree.flatten(jax.eval_shape(POLICY.unravel, np.zeros(POLICY.size, np.float32)))
    cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(theta, cuts), leaves, strict=True)]
    layers, x = jax.tree.unflatten(structure, parts)["params"], observations.astype(np.float64).T
    for i in range(2):
        x = np.tanh(layers[f"Layer_{i}"]["kernel"] @ x + layers[f"Layer_{i}"]["bias"][:, None])
    return (x - np.log(np.exp(x).sum(0)))[actions, np.arange(len(actions))]


def numpy_clipped(theta: np.ndarray, episodes, q: np.ndarray, agent: int, clip: float) -> np.ndarray:
    """The gradient of (1/M) Σ min(r q, clip(r) q) by central differences in float64."""
    observations = np.asarray(episodes.observations)[:, agent].transpose(0, 2, 3, 1).reshape(-1, 4)
    steps = np.asarray(episodes.alive)[:, agent].reshape(-1)
    actions, old = (np.asarray(x)[:, agent].reshape(-1)[steps] for x in (episodes.actions, episodes.log_probs))
    q = q.reshape(-1)[steps]

    def objective(theta):
        ratio = np.exp(numpy_log_probs(theta, observations[steps], actions) - old.astype(np.float64))
        return np.minimum(ratio * q, np.clip(ratio, 1 - clip, 1 + clip) * q).sum() / M

    unit = 1e-6 * np.eye(len(theta))
    return np.array([(objective(theta + e) - objective(theta - e)) / 2e-6 for e in unit])


def test_clipped_estimate_equals_numpy(batch, ours):
    theta, episodes, _, states = batch
    moved = theta + 0.3 * np.random.default_rng(5).normal(size=theta.shape).astype(np.float32)
    got = clipped(moved, episodes, ours[1])
    for agent in range(A):
        expected = numpy_clipped(
            np.asarray(moved[agent], np.float64), episodes, numpy_advantages(episodes, states, agent), agent, 0.1
        )
        unclipped = numpy_clipped(
            np.asarray(moved[agent], np.float64), episodes, numpy_advantages(episodes, states, agent), agent, 1e9
        )
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got[agent], expected, rtol=1e-3, atol=1e-3 * scale)
        assert np.abs(expected - unclipped).max() > 0.05 * scale  # clipping matters


def test_local_steps_equal_numpy(batch, ours):
    """The message is the way that an agent has gone, divided by the number and the size of its steps."""
    theta, episodes, _, states = batch
    eta, epochs = 0.02, 3

    @jax.jit
    def run_local(theta, episodes, q):
        return local_estimate(POLICY, theta, keep(episodes, q), Reuse(ratio_clip=0.1, epochs=epochs, local_eta=eta))

    local = np.asarray(run_local(theta, episodes, ours[1]))
    for agent in range(A):
        advantages, now = numpy_advantages(episodes, states, agent), np.asarray(theta[agent], np.float64)
        for _ in range(epochs):
            now = now + eta * numpy_clipped(now, episodes, advantages, agent, 0.1)
        expected = (now - np.asarray(theta[agent])) / (epochs * eta)
        np.testing.assert_allclose(local[agent], expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    plain = np.asarray(clipped(theta, episodes, ours[1]))
    assert np.abs(local - plain).max() > 0.05 * np.abs(plain).max()


@pytest.mark.slow
def test_local_steps_need_one_message_and_visit_all_minibatches(batch):
    """Steps of size zero along all minibatches of one epoch average to the plain estimate."""
    theta = batch[0]
    settings = Sampling(**SAMPLING, minibatches=3, local_eta=1e-12)
    assert settings.messages == 1 and settings.uses == 3
    inputs = sampling_inputs(theta, jax.random.split(jax.random.key(3), A))
    parts, whole = (sampler(ENVIRONMENT, POLICY, one) for one in (settings, replace(settings, minibatches=1)))
    found, expected = (jax.jit(s.large)(inputs).sampled.estimate for s in (parts, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    with pytest.raises(UsageError, match="minibatches=3 with small batches"):
        check_sampling(replace(settings, p=0.5))


def test_minibatches_of_steps_have_every_step_once_and_the_estimate_of_the_batch_as_their_mean(batch, ours):
    theta, episodes, *_ = batch
    P = 7
    numbered = np.arange(1.0, episodes.alive.size + 1, dtype=np.float32).reshape(episodes.alive.shape)
    marked = episodes._replace(log_probs=np.where(episodes.alive, numbered, 0.0))

    def estimates(theta, episodes, marked, q):
        parts = deal(keep(episodes, q), P)
        one = jax.lax.map(lambda i: clipped_estimate(POLICY, theta, minibatch(parts, i, P), 1e9), jnp.arange(P))
        return deal(keep(marked, q), P), one, clipped_estimate(POLICY, theta, keep(episodes, q), 1e9)

    for platform in ("cpu", "gpu"):
        with trace_for(platform):
            dealt, found, expected = jax.device_get(jax.jit(partial(estimates))(theta, episodes, marked, ours[1]))
        np.testing.assert_allclose(found.mean(0), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        assert np.abs(found - expected).max() > 0.1 * np.abs(expected).max()
    for agent in range(A):
        marks = [part[part > 0] for part in np.split(dealt.log_probs[agent], P, axis=-1)]
        np.testing.assert_array_equal(
            np.sort(np.concatenate(marks)), np.sort(numbered[:, agent][episodes.alive[:, agent]])
        )
        assert max(map(len, marks)) - min(map(len, marks)) <= 1
        last = np.flatnonzero(dealt.alive[agent].any(axis=(1, 2)))[-1]
        assert dealt.chunks[agent] == last + 1 and (dealt.alive[agent] == (dealt.log_probs[agent] > 0)).all()


def test_minibatches_of_steps_are_refused_where_gradients_need_whole_episodes():
    with pytest.raises(UsageError, match="minibatch_of=steps: a policy with a memory"):
        build(resolve(**{**RUN, "policy": "gru", "minibatch_of": "steps", "minibatches": 5}), 6)


def test_the_sampler_sends_the_sum_of_advantages_times_scores(batch, monkeypatch):
    """The message of an agent with a critic equals NumPy's; a use of the kept batch at the same θ is the same."""
    theta, episodes, _, states = batch
    settings = Sampling(**SAMPLING, **{**asdict(SETTINGS), "baseline": "critic", "gae_lambda": LAMBDA})
    inputs = sampling_inputs(theta, jax.random.split(jax.random.key(3), A), private=states)
    once, twice = (sampler(ENVIRONMENT, POLICY, one) for one in (settings, replace(settings, epochs=2)))
    drawn = jax.device_get(jax.jit(once.large)(inputs))
    for agent in range(A):
        advantages = numpy_advantages(episodes, states, agent)
        expected = numpy_clipped(np.asarray(theta[agent], np.float64), episodes, advantages, agent, 1e9)
        np.testing.assert_allclose(
            drawn.sampled.estimate[agent], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()
        )
    sampled = jax.tree.map(jnp.asarray, episodes)
    monkeypatch.setattr("jaxbyz.sampling.batches.collect", lambda *_: sampled)  # they need not be sampled again
    again = jax.jit(lambda inputs: twice.estimate(twice.large(inputs), inputs.parameters, 1))(inputs)
    np.testing.assert_allclose(again.estimate, drawn.sampled.estimate, rtol=1e-4, atol=1e-4)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), drawn.private.network, states.network)
    assert min(jax.tree.leaves(moved)) > 0


@pytest.fixture(scope="module")
def algorithm():
    """DecByzPG with critics and four messages per iteration, and its compiled step."""
    built = build(resolve(**RUN), 6)
    return built, jax.jit(built.step)


@pytest.mark.slow
def test_a_critic_influences_its_own_agent_only(algorithm):
    """If the critic of agent 1 is changed, no other agent's critic changes, and the protocol sends as many bytes."""
    built, step = algorithm
    state = built.init(jax.random.key(0))
    other = state._replace(private=state.private._replace(shift=state.private.shift.at[1].add(7.0)))
    (a, metrics), (b, _) = step(state, jnp.bool_(True)), step(other, jnp.bool_(True))
    for x, y in zip(jax.tree.leaves(a.private), jax.tree.leaves(b.private), strict=True):
        np.testing.assert_array_equal(np.delete(x, 1, axis=0), np.delete(y, 1, axis=0))
    assert float(jnp.abs(a.private.shift[1] - b.private.shift[1])) > 0
    assert int(metrics.rounds) == 4 * 2
    assert float(metrics.bytes_sent) == 4 * (1 + 2) * 5 * 5 * built.policy.size * 4
    assert a.parameters.shape == state.parameters.shape and int(metrics.finite) == 1


@pytest.mark.slow
def test_checkpoints_keep_the_critics(tmp_path):
    config = resolve(**RUN)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", StopAt(4, signal.SIGTERM), checkpoint_every=2)
    assert_same_run(resume(tmp_path / "run"), run(config))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decbyzpg", "byzpg", "byz-vr-marina-pg", "dec-page-pg", "fed-page-pg"])
def test_critics_on_two_devices_compute_the_same(name):
    """5 agents on 2 devices: every algorithm that can have critics agrees with one device."""
    # Under AvgZero the mean of all messages is zero up to rounding, which Adam would enlarge.
    attack = "large-noise" if name in ("dec-page-pg", "fed-page-pg") else "avg-zero"
    config = resolve(**{**RUN, "algorithm": name, "attack": attack})
    one, two = (run(config, mesh=mesh) for mesh in ("seeds=1", "agents=2"))
    for key in one.metrics:
        if key != "bytes_moved":
            np.testing.assert_allclose(two.metrics[key], one.metrics[key], rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.slow
def test_small_batches_with_critics_learn():
    """PAGE with plain advantages: Algorithm 2 as printed, with the critic as baseline."""
    options = dict(agents=3, N=8, B=4, p=0.5, hidden=(16,), eta=1e-2, baseline="critic", gamma=0.99, weight_clip=1.0)
    done = jb.run_experiment("default", aggregator="mean", agreement="none", trajectories=300, **options)
    returns = done.metrics["returns"][0]
    assert returns[-5:].mean() > 4 * returns[:3].mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(p=0.5, advantages="plain"), "epochs=2, minibatches=2 with small batches"),
        (dict(p=0.5, epochs=1, minibatches=1), "advantages=normalised with small batches"),
        (dict(minibatches=3), "minibatches=3 with N=4"),
        (dict(minibatches=65, minibatch_of="steps"), "minibatches=65 with N=4, horizon=16"),
        (dict(critic_parts=3), "critic_parts=3: must be from 1 to critic_steps"),
        (dict(weights="per-decision"), "baseline=critic with estimator=gpomdp, weights=per-decision"),
        (dict(gae_lambda=1.5), r"gae_lambda=1.5: must be in \[0, 1\]"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        resolve(**{**RUN, **options})


def test_a_server_that_samples_alone_has_no_critic():
    options = {**RUN, "p": 0.5, "epochs": 1, "minibatches": 1, "advantages": "plain"}
    with pytest.raises(UsageError, match="the server samples small batches and has no critic"):
        build(resolve(**options, algorithm="byzpg"))
