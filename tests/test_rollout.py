"""Rollouts: ends, masks, chunks, interference, and agreement with the plain program."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz import Interference, make_environment, mlp_policy
from jaxbyz.accelerate import living as strips
from jaxbyz.environments import ActionSpace, Environment, Step
from jaxbyz.sampling import estimators, page
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.estimators import Estimator, estimate, importance_weights
from jaxbyz.sampling.rollout import CHUNK, Episodes, collect

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


def counter(end: int, limit: int) -> Environment:
    """Terminates naturally after `end` steps, is truncated after `limit`; rewards count up from one."""

    def reset(key):
        return jnp.zeros(1), jnp.int32(0)

    def step(key, t, action):
        t = t + 1
        return Step(t[None].astype(jnp.float32), t, t.astype(jnp.float32), t >= end, t >= limit)

    return Environment("counter", 1, ActionSpace(True, 2), reset, step, limit)


@pytest.mark.parametrize(
    ("end", "limit", "horizon", "length", "terminated"),
    [(3, 10, 8, 3, True), (9, 4, 8, 4, False), (9, 10, 8, 8, False), (8, 10, 8, 8, True), (40, 99, 37, 37, False)],
)
def test_episode_ends_where_it_should(end, limit, horizon, length, terminated):
    environment = counter(end, limit)
    policy = mlp_policy(environment, (3,))
    parameters = jax.vmap(policy.init)(jax.random.split(jax.random.key(0), 2))
    episodes = collect(environment, policy, parameters, jax.random.split(jax.random.key(1), 2), 3, horizon)
    assert np.all(np.asarray(episodes.lengths) == length)
    assert np.all(np.asarray(episodes.terminated) == terminated)
    np.testing.assert_allclose(episodes.returns, length * (length + 1) / 2)
    size = min(CHUNK, horizon)
    assert int(episodes.chunks) == -(-length // size)
    dead = ~np.asarray(episodes.alive)
    assert np.all(np.asarray(episodes.rewards)[dead] == 0) and np.all(np.asarray(episodes.log_probs)[dead] == 0)


def test_same_keys_same_bits_and_agents_do_not_see_each_other():
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment)
    parameters = jax.vmap(policy.init)(jax.random.split(jax.random.key(0), 3))
    keys = jax.random.split(jax.random.key(1), 3)
    run = jax.jit(lambda p, k: collect(environment, policy, p, k, 4, 100))
    one, two = run(parameters, keys), run(parameters, keys)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(run(parameters[:1], keys[:1]).returns, one.returns[:1])
    assert len(np.unique(np.asarray(one.lengths))) > 3


def test_uniform_interference_touches_masked_agents_only():
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment)
    parameters = jnp.tile(policy.init(jax.random.key(0)), (2, 1))
    keys = jnp.stack([jax.random.key(1)] * 2)
    always_right = Interference(act=lambda u, action: jnp.ones_like(action))
    episodes = collect(environment, policy, parameters, keys, 5, 60, always_right, jnp.array([False, True]))
    alive, actions = np.asarray(episodes.alive), np.asarray(episodes.actions).reshape(episodes.alive.shape)
    assert np.all(actions[:, 1][alive[:, 1]] == 1)
    assert 0 < actions[:, 0][alive[:, 0]].mean() < 1
    clean = collect(environment, policy, parameters, keys, 5, 60)
    np.testing.assert_array_equal(clean.lengths[0], episodes.lengths[0])


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_continuous_actions_and_their_log_probabilities(name):
    environment = make_environment(name)
    policy = mlp_policy(environment, (8,))
    theta = policy.init(jax.random.key(0))[None]
    episodes = collect(environment, policy, theta, jax.random.split(jax.random.key(1), 1), 4, 20)
    assert np.all(np.asarray(episodes.lengths) == 20)
    C = episodes.rewards.shape[2]
    distribution = policy.apply(policy.unravel(theta[0]), episodes.observations[0, 0])
    mean, log_std = np.asarray(distribution, np.float64)
    action = np.asarray(episodes.actions[0, 0, 0], np.float64)
    expected = -0.5 * ((action - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(np.asarray(episodes.log_probs[0, 0]).reshape(C * 4), expected, rtol=1e-4, atol=1e-5)


def test_uniform_actions_cover_the_space():
    u = jax.random.uniform(jax.random.key(0), (4000, 1))
    discrete = ActionSpace(True, 4).uniform_action(u, jnp.zeros(4000, jnp.int32))
    counts = np.bincount(np.asarray(discrete), minlength=4)
    assert counts.min() > 850 and len(counts) == 4
    box = ActionSpace(False, 1, (1,), jnp.array([-2.0]), jnp.array([2.0])).uniform_action(u, jnp.zeros((4000, 1)))
    assert -2 <= float(box.min()) < -1.95 and 1.95 < float(box.max()) <= 2


def test_estimate_equals_the_plain_program_on_the_same_episodes():
    """Another layout, no chunks, flax's own layers: the same numbers to 1e-5 of their size."""
    import plain

    A, M, horizon = 2, 6, 75
    program = plain.make(horizon=horizon)
    trees = jax.vmap(program["init"])(jax.random.split(jax.random.key(0), A))
    keys = jax.vmap(lambda k: jax.random.split(k, M))(jax.random.split(jax.random.key(1), A))
    with jax.numpy_rank_promotion("allow"):
        episode = jax.vmap(jax.vmap(program["rollout"], (None, 0)), (0, 0))(trees, keys)
        expected = jax.vmap(program["estimate"])(trees, episode)

    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment)
    ours = jax.tree.map(lambda leaf: leaf, policy.unravel(jnp.zeros(policy.size)))
    for i in range(3):
        ours["params"][f"Layer_{i}"] = {
            "kernel": jnp.swapaxes(trees["params"][f"Dense_{i}"]["kernel"], 1, 2),
            "bias": trees["params"][f"Dense_{i}"]["bias"],
        }
    parameters = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(ours)
    observations, actions, rewards, alive = (np.asarray(x) for x in episode)  # [A, M, T, …]
    C = min(CHUNK, horizon)
    n = -(-horizon // C)

    def chunks(x):  # [A, M, T] -> [n, A, C, M]
        x = np.pad(x, [(0, 0), (0, 0), (0, n * C - horizon)])
        return jnp.asarray(x.reshape(A, M, n, C).transpose(2, 0, 3, 1))

    alive_chunks = chunks(alive) > 0
    stacked = np.stack([chunks(observations[..., o]) for o in range(4)], axis=2)  # [n, A, O, C, M]
    record = Episodes(
        jnp.asarray(stacked.reshape(n, A, 4, C * M)) * alive_chunks.reshape(n, A, 1, C * M),
        chunks(actions).reshape(n, A, C * M),
        jnp.zeros((n, A, C, M)),
        chunks(rewards),
        alive_chunks,
        jnp.zeros((A, M), bool),
        jnp.int32(n),
    )
    got = estimate(Estimator(gamma=0.999, horizon=horizon), policy, parameters, record)
    tree = jax.vmap(policy.unravel)(got)["params"]
    for i in range(3):
        want = expected["params"][f"Dense_{i}"]
        scale = float(jnp.abs(want["kernel"]).max())
        np.testing.assert_allclose(
            tree[f"Layer_{i}"]["kernel"], jnp.swapaxes(want["kernel"], 1, 2), atol=1e-5 * max(scale, 1)
        )
        np.testing.assert_allclose(tree[f"Layer_{i}"]["bias"], want["bias"], atol=1e-5 * max(scale, 1))


def test_tabular_environment_is_what_the_exact_values_describe():
    """The oracle of the estimator tests: simulated mean return equals the exact J."""
    policy = tabular.policy()
    theta = policy.init(jax.random.key(1))
    run = jax.jit(lambda p, k: collect(tabular.environment(), policy, p, k, 20_000, tabular.HORIZON))
    episodes = run(theta[None], jax.random.split(jax.random.key(9), 1))
    powers = tabular.GAMMA ** np.arange(tabular.HORIZON)
    returns = np.einsum("cm,c->m", np.asarray(episodes.rewards)[0, 0], powers)
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - tabular.exact_return(np.asarray(theta))) < 4.5 * error


@pytest.mark.parametrize("lanes", [6, 12])
def test_groups_of_agents_do_what_all_do(lanes, monkeypatch):
    """Agents in groups of one or two, the last group filled up with the last agent; every run of a sweep too."""
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment, hidden=(4,))
    settings = page.Page(N=6, B=2, estimator=Estimator(horizon=30, baseline="leave-one-out"))
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    theta = jax.vmap(jax.vmap(policy.init))(keys)
    liars = jnp.zeros((2, 3), bool)

    def sampled():
        large = page.sampler(environment, policy, settings, None).large
        return jax.jit(jax.vmap(large))(theta, keys, liars)

    expected = sampled()
    monkeypatch.setattr(page, "GROUP_LANES", lanes)
    for a, b in zip(sampled(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_the_last_episodes_go_on_by_themselves(name):
    """A costly environment's last lanes are gathered: nothing about any episode changes, cut ones included."""
    environment = make_environment(name)
    policy = mlp_policy(environment)
    keys = jax.random.split(jax.random.key(4), 5)
    parameters = jax.vmap(policy.init)(keys)
    horizon, mask = 60, jnp.arange(5) == 2
    uniform = Interference(act=environment.actions.uniform_action)
    together, apart = (
        collect(environment._replace(costly=costly), policy, parameters, keys, 9, horizon, uniform, mask)
        for costly in (False, True)
    )
    if name == "CartPole-v1":  # the case is a real one: lanes end before and after the moment
        lengths = np.sort(np.ravel(together.lengths))
        assert (lengths[-6] - 1) // CHUNK < (lengths[-1] - 1) // CHUNK and lengths[-1] == horizon
    for field in Episodes._fields:
        np.testing.assert_allclose(getattr(together, field), getattr(apart, field), rtol=2e-6, atol=2e-6)


def test_living_strips_are_all_and_only_the_living_ones(monkeypatch):
    """Blocks hold each living strip once, one agent's only, and what is put back lies where it was taken."""
    monkeypatch.setattr(strips, "STEPS", 3 * CHUNK)
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment)
    keys = jax.random.split(jax.random.key(5), 4)
    episodes = collect(environment, policy, jax.vmap(policy.init)(keys), keys, 7, 90)
    found = strips.living(episodes)
    n, A, _, M = episodes.alive.shape
    wanted = {(c, a, m) for c, a, m in np.ndindex(n, A, M) if episodes.alive[c, a, 0, m]}
    blocks = range(int(found.blocks))
    held = [
        (int(c), int(found.agent[b]), int(m))
        for b in blocks
        for c, m in zip(found.chunk[b], found.lane[b], strict=True)
    ]
    held = [strip for strip in held if strip[0] < n]
    assert len(held) == len(wanted) and set(held) == wanted
    back = jnp.zeros_like(episodes.rewards)
    for b in blocks:
        back = found.put(back, jnp.int32(b), found.take(episodes.rewards, jnp.int32(b)))
    np.testing.assert_array_equal(back, episodes.rewards)


@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_estimates_from_living_strips_are_those_from_all(name, monkeypatch):
    monkeypatch.setattr(strips, "STEPS", 4 * CHUNK)
    environment = make_environment(name)
    policy = mlp_policy(environment)
    keys = jax.random.split(jax.random.key(6), 3)
    parameters = jax.vmap(policy.init)(keys)
    episodes = collect(environment, policy, parameters, keys, 6, 70)
    estimator = Estimator(horizon=70, baseline="leave-one-out", weights="per-decision")
    results = []
    for packed in (False, True):
        monkeypatch.setattr(estimators, "packing_pays", lambda policy, packed=packed: packed)
        weights = importance_weights(estimator, policy, 1.1 * parameters, episodes)
        results.append((weights, estimate(estimator, policy, parameters, episodes, weights.values)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *results)


def test_rewards_that_lie_have_a_stream_of_their_own():
    """No key of the episodes' own is the liar's: resets, actions and steps stay independent of the lie."""
    M, horizon = 8, 20
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment, (4,))
    lie = Interference(rewards=lambda key, rewards, alive: jnp.zeros_like(rewards).at[0].set(jax.random.uniform(key)))
    settings = page.Page(N=M, B=2, estimator=Estimator(horizon=horizon))
    keys = jax.random.split(jax.random.key(3), 2)
    large = page.sampler(environment, policy, settings, lie).large
    drawn = large(jnp.zeros((2, policy.size)), keys, jnp.ones(2, bool)).returns
    streams = jax.vmap(lambda key: jax.random.split(key, M + 3 * horizon))(keys)
    assert not jnp.isclose(drawn[:, None], jax.vmap(jax.vmap(jax.random.uniform))(streams)).any()


def test_evaluation_uses_no_key_of_training():
    from jaxbyz.experiments.evaluation import evaluation_keys

    data = jax.random.key_data(evaluation_keys(5, 4))
    used = jax.random.key_data(jax.random.split(jax.random.key(5), 10))
    assert not (data[:, None] == used[None]).all(axis=-1).any()
