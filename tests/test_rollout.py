"""Rollouts: ends, masks, chunks, interference, and agreement with the plain program."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz import Interference, make_environment, mlp_policy
from jaxbyz.accelerate.batching import fold_mapped_axis
from jaxbyz.accelerate.episode_sums import map_over_steps, repeatable_sum, sum_from_each_step, sum_over_steps
from jaxbyz.accelerate.living_strips import living_strips
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.environments import ActionSpace, Environment, Step
from jaxbyz.sampling import page
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.estimators import Estimator, estimate
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
    alive, actions = np.asarray(episodes.alive), np.asarray(episodes.actions)
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
    observations = episodes.observations[0, 0].reshape(environment.observation_size, C * 4)
    mean, log_std = np.asarray(policy.apply(policy.unravel(theta[0]), observations), np.float64)
    action = np.asarray(episodes.actions[0, 0, 0], np.float64).reshape(C * 4)
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
    trees = jax.jit(jax.vmap(program["init"]))(jax.random.split(jax.random.key(0), A))
    keys = jax.vmap(lambda k: jax.random.split(k, M))(jax.random.split(jax.random.key(1), A))
    with jax.numpy_rank_promotion("allow"):
        episode = jax.jit(jax.vmap(jax.vmap(program["rollout"], (None, 0)), (0, 0)))(trees, keys)
        expected = jax.jit(jax.vmap(program["estimate"]))(trees, episode)

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
        jnp.asarray(stacked) * alive_chunks[:, :, None],
        chunks(actions),
        jnp.zeros((n, A, C, M)),
        chunks(rewards),
        alive_chunks,
        jnp.zeros((A, M), bool),
        jnp.int32(n),
        jnp.zeros((A, 4, M)),
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


def test_groups_of_agents_are_sampled_as_all_at_once():
    """2 runs of 3 agents with 700 episodes each: on a CPU 4 groups of 2 agents, two of which repeat the last agent."""
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment, hidden=(4,))
    settings = page.Page(N=700, B=2, estimator=Estimator(horizon=30, baseline="leave-one-out"))
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    theta = jax.vmap(jax.vmap(policy.init))(keys)
    results = []
    for platform in ("plain", "cpu", "gpu"):
        with trace_for(platform):
            large = page.sampler(environment, policy, settings, None).large
            results.append(jax.jit(jax.vmap(large))(theta, keys, jnp.zeros((2, 3), bool)))
    for fast in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), fast, results[0])


def sampled(name: str, agents: int, episodes: int, horizon: int, platform: str, hidden=(16, 16)):
    """A policy, its parameters and episodes of some agents, of which agent 2 acts at random."""
    environment = make_environment(name)
    policy = mlp_policy(environment, hidden)
    keys = jax.random.split(jax.random.key(4), agents)
    theta = jax.jit(jax.vmap(policy.init))(keys)
    uniform, mask = Interference(act=environment.actions.uniform_action), jnp.arange(agents) == 2
    with trace_for(platform):
        run = jax.jit(lambda t, k: collect(environment, policy, t, k, episodes, horizon, uniform, mask))
        return policy, theta, run(theta, keys)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_episodes_are_the_plain_ones(name, platform):
    *_, fast = sampled(name, 5, 9, 60, platform)
    *_, plain = sampled(name, 5, 9, 60, "plain")
    for field in Episodes._fields:
        np.testing.assert_allclose(getattr(fast, field), getattr(plain, field), rtol=1e-5, atol=1e-5, err_msg=field)


# Chunks, and strips of policies with many parameters.
@pytest.mark.parametrize("hidden", [(16, 16), pytest.param((32, 32), marks=pytest.mark.slow)])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_sums_and_maps_over_steps_are_the_plain_ones(hidden, platform):
    policy, theta, episodes = sampled("CartPole-v1", 3, 40, 70, "cpu", hidden)
    trees = jax.vmap(policy.unravel)(1.1 * theta)
    steps = (episodes.observations, episodes.actions)
    batch = (episodes.alive, episodes.chunks)

    def log_probs(tree, steps):
        return policy.log_prob(policy.apply(tree, steps[0]), steps[1])

    def scores(tree, steps):
        return jax.grad(lambda tree: jnp.sum(log_probs(tree, steps[:2]) * steps[2]))(tree)

    def computed():
        return (
            sum_over_steps(scores, trees, (*steps, episodes.rewards), *batch),
            map_over_steps(log_probs, trees, steps, *batch),
            sum_from_each_step(episodes.rewards, episodes.chunks, decay=0.97),
        )

    with trace_for("plain"):
        expected = jax.jit(lambda: computed())()
    with trace_for(platform):
        got = jax.jit(lambda: computed())()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, expected)


@pytest.mark.parametrize(("platform", "size"), [("plain", 3), ("gpu", 3), ("cpu", 3), ("cpu", 1100)])
def test_a_sum_over_a_part_has_every_second_chunk(platform, size):
    """In all layouts: all steps at once, chunks, and strips if a tree has many numbers."""
    n, A, C, M = 5, 2, 4, 16
    lengths = jax.random.randint(jax.random.key(0), (A, M), 1, 18)  # at most five chunks
    time = jnp.arange(n * C).reshape(n, 1, C, 1)
    alive = time < lengths[None, :, None]
    values = jnp.where(alive, jax.random.normal(jax.random.key(1), alive.shape), 0.0)
    trees = jnp.tile(jnp.array([[1.0], [-2.0]]), (1, size))

    def total(part):
        chunks = (jnp.max(lengths) + C - 1) // C
        return repeatable_sum(lambda tree, x: tree * jnp.sum(x), trees, values, alive, chunks, 2)(trees, part)

    with trace_for(platform):
        found = jax.jit(jax.vmap(total))(jnp.arange(2))
    sums = np.asarray(values, np.float64).sum(axis=(2, 3))
    expected = np.stack([sums[0::2].sum(axis=0), sums[1::2].sum(axis=0)])[:, :, None] * np.asarray(trees)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_folded_function_is_traced_once_per_shape():
    """Mapping a single seed adds no trace, and neither does a second use."""
    traced = []

    @fold_mapped_axis
    def double(x):
        traced.append(x.shape)
        return 2 * x

    def twice(x):
        return double(double(x))

    jax.make_jaxpr(jax.vmap(twice))(jnp.ones((1, 3)))
    assert traced == [(3,)]
    np.testing.assert_array_equal(jax.jit(jax.vmap(twice))(jnp.ones((2, 3))), jnp.full((2, 3), 4.0))
    assert traced == [(3,), (6,)]


@pytest.mark.parametrize("parts", [1, 4])  # of six chunks
def test_living_strips_are_all_strips_with_a_step_that_was_taken(parts):
    """Each block has strips of one agent and one part, each strip is in one block, and `put` inverts `take`."""
    *_, episodes = sampled("CartPole-v1", 4, 60, 90, "cpu")
    strips = living_strips(episodes.alive, parts)
    n, A, _, M = episodes.alive.shape
    expected = {(c, a, m) for c, a, m in np.ndindex(n, A, M) if episodes.alive[c, a, 0, m]}
    blocks = range(int(strips.blocks))
    assert len(blocks) > A
    found = [
        (part, int(c), int(strips.agent[b]), int(m))
        for part in range(parts)
        for b in range(*map(int, strips.part(part)))
        for c, m in zip(strips.chunk[b], strips.episode[b], strict=True)
        if c < n
    ]
    assert all(part == c % parts for part, c, *_ in found)
    assert len(found) == len(expected) and {(c, a, m) for _, c, a, m in found} == expected
    copy = jnp.zeros_like(episodes.rewards)
    for b in blocks:
        copy = strips.put(copy, jnp.int32(b), strips.take(episodes.rewards, jnp.int32(b)))
    np.testing.assert_array_equal(copy, episodes.rewards)


def test_rewards_that_lie_have_a_stream_of_their_own():
    """No key of the episodes' own is the liar's: resets, actions and steps stay independent of the lie."""
    M, horizon = 8, 20
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment, (4,))
    lie = Interference(rewards=lambda key, rewards, alive: jnp.zeros_like(rewards).at[0].set(jax.random.uniform(key)))
    settings = page.Page(N=M, B=2, estimator=Estimator(horizon=horizon))
    keys = jax.random.split(jax.random.key(3), 2)
    large = page.sampler(environment, policy, settings, lie).large
    drawn = large(jnp.zeros((2, policy.size)), keys, jnp.ones(2, bool)).sampled.returns
    streams = jax.vmap(lambda key: jax.random.split(key, M + 3 * horizon))(keys)
    assert not jnp.isclose(drawn[:, None], jax.vmap(jax.vmap(jax.random.uniform))(streams)).any()


def test_evaluation_uses_no_key_of_training():
    from jaxbyz.experiments.evaluation import evaluation_keys

    data = jax.random.key_data(evaluation_keys(5, 4))
    used = jax.random.key_data(jax.random.split(jax.random.key(5), 10))
    assert not (data[:, None] == used[None]).all(axis=-1).any()
