"""Rollouts: ends, masks, chunks, interference, and agreement with the plain program."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_helpers import sampling_inputs

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
from jaxbyz.sampling.settings import Sampling

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "speed"))


def counter(end, limit) -> Environment:
    """Terminates naturally after `end` steps, is truncated after `limit`; rewards count up from one."""

    def reset(key):
        return jnp.zeros(1), jnp.int32(0)

    def step(key, t, action):
        t = t + 1
        return Step(t[None].astype(jnp.float32), t, t.astype(jnp.float32), t >= end, t >= limit)

    return Environment("counter", 1, ActionSpace(True, 2), reset, step)


@functools.partial(jax.jit, static_argnames="horizon")
def counted(end, limit, horizon: int):
    """Episodes of two agents in the counter, with their lengths and returns."""
    environment = counter(end, limit)
    policy = mlp_policy(environment, (3,))
    keys = jax.random.split(jax.random.key(0), 2)
    episodes = collect(environment, policy, jax.vmap(policy.init)(keys), keys, 3, horizon)
    return episodes, episodes.lengths, episodes.returns


@pytest.mark.parametrize(
    ("end", "limit", "horizon", "length", "terminated"),
    [(3, 10, 8, 3, True), (9, 4, 8, 4, False), (9, 10, 8, 8, False), (8, 10, 8, 8, True), (40, 99, 37, 37, False)],
)
def test_episode_ends_where_it_should(end, limit, horizon, length, terminated):
    episodes, lengths, returns = counted(end, limit, horizon)
    assert np.all(np.asarray(lengths) == length)
    assert np.all(np.asarray(episodes.terminated) == terminated)
    np.testing.assert_allclose(returns, length * (length + 1) / 2)
    size = min(CHUNK, horizon)
    assert int(episodes.chunks) == -(-length // size)
    dead = ~np.asarray(episodes.alive)
    assert np.all(np.asarray(episodes.rewards)[dead] == 0) and np.all(np.asarray(episodes.log_probs)[dead] == 0)


AGENTS = 5  # of the episodes that several tests look at
EPISODES_AND_HORIZON = {"CartPole-v1": (20, 90), "Pendulum-v1": (9, 32)}  # Pendulum amplifies rounding


def policy_of(name: str, hidden: tuple[int, ...]):
    return mlp_policy(make_environment(name), hidden)


@functools.cache
def keys_and_parameters(name: str, hidden: tuple[int, ...]):
    policy = policy_of(name, hidden)

    @jax.jit
    def draw():
        keys = jax.random.split(jax.random.key(4), AGENTS)
        return keys, jax.vmap(policy.init)(keys)

    return draw()


@functools.cache
def sampling_program(name: str, platform: str, hidden: tuple[int, ...]):
    """`(keys, parameters, mask, always_right) -> episodes`.

    Agents in the mask act at random, or always right. An empty mask means that there is no interference at all.
    """
    environment, policy = make_environment(name), policy_of(name, hidden)

    def run(keys, theta, mask, always_right):
        def act(u, action):
            return jnp.where(always_right, jnp.ones_like(action), environment.actions.uniform_action(u, action))

        interference = (Interference(act=act), mask) if mask.size else ()
        with trace_for(platform):
            return collect(environment, policy, theta, keys, *EPISODES_AND_HORIZON[name], *interference)

    return jax.jit(run)


@functools.cache
def sampled(name: str, platform: str, hidden: tuple[int, ...] = (16, 16)) -> Episodes:
    """Episodes of some agents, of which agent 2 acts at random; as NumPy arrays."""
    run = sampling_program(name, platform, hidden)
    return jax.device_get(run(*keys_and_parameters(name, hidden), np.arange(AGENTS) == 2, False))


@functools.cache
def sampled_without_interference() -> Episodes:
    """Episodes of the same agents in CartPole, which all follow their policies."""
    run = sampling_program("CartPole-v1", "cpu", (16, 16))
    return jax.device_get(run(*keys_and_parameters("CartPole-v1", (16, 16)), np.zeros(0, bool), False))


def test_same_keys_same_bits_and_agents_do_not_see_each_other():
    """Agents in reverse order have the same episodes in reverse order, except the first one, which is replaced."""
    one = sampled_without_interference()
    run = sampling_program("CartPole-v1", "cpu", (16, 16))
    keys, theta = keys_and_parameters("CartPole-v1", (16, 16))
    nobody, theta, order = np.zeros(0, bool), np.asarray(theta), np.arange(AGENTS)[::-1]
    two = run(keys, theta, nobody, False)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    other = run(keys[order], np.concatenate([theta[order[:-1]], -theta[:1]]), nobody, False)
    for field in set(Episodes._fields) - {"chunks"}:
        axis = 0 if field in ("terminated", "final_observations") else 1
        before, after = np.moveaxis(getattr(one, field), axis, 0), np.moveaxis(getattr(other, field), axis, 0)
        np.testing.assert_array_equal(after[:-1], before[order[:-1]])
    lengths = np.asarray(one.lengths)
    assert not np.array_equal(np.asarray(other.lengths)[-1], lengths[0])
    assert len(np.unique(lengths)) > 3


def test_uniform_interference_touches_masked_agents_only():
    run, clean = sampling_program("CartPole-v1", "cpu", (16, 16)), sampled_without_interference()
    keys, theta = keys_and_parameters("CartPole-v1", (16, 16))
    mask = np.arange(AGENTS) == 2
    episodes = jax.device_get(run(keys, theta, mask, True))
    alive, actions = episodes.alive, episodes.actions
    assert np.all(actions[:, mask][alive[:, mask]] == 1)
    assert 0 < actions[:, ~mask][alive[:, ~mask]].mean() < 1
    before, after = np.asarray(clean.lengths), np.asarray(episodes.lengths)
    np.testing.assert_array_equal(before[~mask], after[~mask])
    assert not np.array_equal(before[mask], after[mask])


@pytest.mark.parametrize("name", ["Pendulum-v1", pytest.param("MountainCarContinuous-v0", marks=pytest.mark.slow)])
def test_continuous_actions_and_their_log_probabilities(name):
    environment = make_environment(name)
    policy = mlp_policy(environment, (8,))

    @jax.jit
    def run():
        theta = policy.init(jax.random.key(0))[None]
        episodes = collect(environment, policy, theta, jax.random.split(jax.random.key(1), 1), 4, 20)
        steps = episodes.observations[0, 0].reshape(environment.observation_size, -1)
        return episodes, policy.apply(policy.unravel(theta[0]), steps)

    episodes, distribution = jax.device_get(run())
    assert np.all(np.asarray(episodes.lengths) == 20)
    mean, log_std = np.asarray(distribution, np.float64)
    action = np.asarray(episodes.actions[0, 0, 0], np.float64).ravel()
    expected = -0.5 * ((action - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(episodes.log_probs[0, 0].ravel(), expected, rtol=1e-4, atol=1e-5)


def test_uniform_actions_cover_the_space():
    @jax.jit
    def draw(u):
        box = ActionSpace(False, 1, (1,), jnp.array([-2.0]), jnp.array([2.0]))
        discrete = ActionSpace(True, 4).uniform_action(u, jnp.zeros(4000, jnp.int32))
        return discrete, box.uniform_action(u, jnp.zeros((4000, 1)))

    discrete, box = draw(np.random.default_rng(0).uniform(size=(4000, 1)).astype(np.float32))
    counts = np.bincount(np.asarray(discrete), minlength=4)
    assert counts.min() > 850 and len(counts) == 4
    box = np.asarray(box)
    assert -2 <= box.min() < -1.95 and 1.95 < box.max() <= 2


def test_estimate_equals_the_plain_program_on_the_same_episodes():
    """Another layout, no chunks, flax's own layers: the same numbers to 1e-5 of their size."""
    import plain

    A, M, horizon = 2, 6, 75
    program = plain.make(horizon=horizon)

    @jax.jit
    def run_plain():
        trees = jax.vmap(program["init"])(jax.random.split(jax.random.key(0), A))
        keys = jax.random.split(jax.random.key(1), (A, M))
        episode = jax.vmap(jax.vmap(program["rollout"], (None, 0)), (0, 0))(trees, keys)
        return trees, episode, jax.vmap(program["estimate"])(trees, episode)

    with jax.numpy_rank_promotion("allow"):
        trees, (observations, actions, rewards, alive), expected = jax.device_get(run_plain())  # [A, M, T, …]

    policy = mlp_policy(make_environment("CartPole-v1"))
    ours = {"params": {}}
    for i in range(3):
        layer = trees["params"][f"Dense_{i}"]
        ours["params"][f"Layer_{i}"] = {"kernel": np.swapaxes(layer["kernel"], 1, 2), "bias": layer["bias"]}
    C = min(CHUNK, horizon)
    n = -(-horizon // C)

    def chunks(x):  # [A, M, T] -> [n, A, C, M]
        x = np.pad(x, [(0, 0), (0, 0), (0, n * C - horizon)])
        return x.reshape(A, M, n, C).transpose(2, 0, 3, 1)

    alive_chunks = chunks(alive) > 0
    stacked = np.stack([chunks(observations[..., o]) for o in range(4)], axis=2)  # [n, A, O, C, M]
    zeros = functools.partial(np.zeros, dtype=np.float32)
    record = Episodes(
        stacked * alive_chunks[:, :, None],
        chunks(actions),
        zeros((n, A, C, M)),
        chunks(rewards),
        alive_chunks,
        np.zeros((A, M), bool),
        np.int32(n),
        zeros((A, 4, M)),
    )

    @jax.jit
    def run_ours(trees, record):
        parameters = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(trees)
        found = estimate(Estimator(gamma=0.999, horizon=horizon), policy, parameters, record)
        return jax.vmap(policy.unravel)(found)

    tree = run_ours(ours, record)["params"]
    for i in range(3):
        want = expected["params"][f"Dense_{i}"]
        scale = float(np.abs(want["kernel"]).max())
        np.testing.assert_allclose(
            tree[f"Layer_{i}"]["kernel"], np.swapaxes(want["kernel"], 1, 2), atol=1e-5 * max(scale, 1)
        )
        np.testing.assert_allclose(tree[f"Layer_{i}"]["bias"], want["bias"], atol=1e-5 * max(scale, 1))


def test_tabular_environment_is_what_the_exact_values_describe():
    """The oracle of the estimator tests: simulated mean return equals the exact J."""
    policy = tabular.policy()

    @jax.jit
    def run():
        theta = policy.init(jax.random.key(1))
        keys = jax.random.split(jax.random.key(9), 1)
        return theta, collect(tabular.environment(), policy, theta[None], keys, 20_000, tabular.HORIZON)

    theta, episodes = run()
    powers = tabular.GAMMA ** np.arange(tabular.HORIZON)
    returns = np.einsum("cm,c->m", np.asarray(episodes.rewards)[0, 0], powers)
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - tabular.exact_return(np.asarray(theta))) < 4.5 * error


# A GPU has all agents in one group.
@pytest.mark.parametrize("platform", ["cpu", pytest.param("gpu", marks=pytest.mark.slow)])
def test_groups_of_agents_are_sampled_as_all_at_once(platform):
    """2 runs of 3 agents with 700 episodes each: on a CPU 4 groups of 2 agents, two of which repeat the last agent."""
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment, hidden=(4,))
    settings = Sampling(N=700, B=2, horizon=30, baseline="leave-one-out")

    def run(large):
        keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
        return jax.vmap(large)(sampling_inputs(jax.vmap(jax.vmap(policy.init))(keys), keys))

    results = []
    for traced_platform in ("plain", platform):
        with trace_for(traced_platform):
            large = page.sampler(environment, policy, settings).large
            results.append(jax.jit(run, static_argnums=0)(large))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *results)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_episodes_are_the_plain_ones(name, platform):
    fast, plain = sampled(name, platform), sampled(name, "plain")
    for field in Episodes._fields:
        np.testing.assert_allclose(getattr(fast, field), getattr(plain, field), rtol=1e-5, atol=1e-5, err_msg=field)


@functools.cache
def sums_and_maps(hidden: tuple[int, ...], platform: str):
    """A sum of scores, log-probabilities and rewards-to-go of episodes in CartPole."""
    policy, episodes = policy_of("CartPole-v1", hidden), sampled("CartPole-v1", "cpu", hidden)
    _, theta = keys_and_parameters("CartPole-v1", hidden)

    def log_probs(tree, steps):
        return policy.log_prob(policy.apply(tree, steps[0]), steps[1])

    def scores(tree, steps):
        return jax.grad(lambda tree: jnp.sum(log_probs(tree, steps[:2]) * steps[2]))(tree)

    @jax.jit
    def compute(theta, episodes):
        trees = jax.vmap(policy.unravel)(1.1 * theta)
        steps, batch = (episodes.observations, episodes.actions), (episodes.alive, episodes.chunks)
        return (
            sum_over_steps(scores, trees, (*steps, episodes.rewards), *batch),
            map_over_steps(log_probs, trees, steps, *batch),
            sum_from_each_step(episodes.rewards, episodes.chunks, decay=0.97),
        )

    with trace_for(platform):
        return compute(theta, episodes)


# Chunks, and strips of policies with many parameters.
@pytest.mark.parametrize("hidden", [(16, 16), pytest.param((32, 32), marks=pytest.mark.slow)])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_sums_and_maps_over_steps_are_the_plain_ones(hidden, platform):
    got, expected = (sums_and_maps(hidden, traced_platform) for traced_platform in (platform, "plain"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, expected)


LAYOUTS = [("plain", 3, 16), ("gpu", 3, 16), ("cpu", 3, 16), ("cpu", 1100, 80), ("cpu", 1100, 3)]


@pytest.mark.parametrize(("platform", "size", "M"), LAYOUTS)
def test_a_sum_over_a_part_has_every_second_chunk(platform, size, M, monkeypatch):
    """In all layouts: all steps at once, several rounds, chunks, and blocks if a tree has many numbers."""
    monkeypatch.setattr("jaxbyz.accelerate.living_strips.ROUND_STEPS", 8)
    n, A, C = 5, 2, 4
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 18, (A, M))  # at most five chunks
    alive = np.arange(n * C).reshape(n, 1, C, 1) < lengths[None, :, None]
    values = np.where(alive, rng.normal(size=alive.shape), 0.0).astype(np.float32)
    trees = np.tile(np.array([[1.0], [-2.0]], np.float32), (1, size))
    chunks = np.int32(-(-lengths.max() // C))

    @jax.jit
    def totals(trees, *steps):
        function = repeatable_sum(lambda tree, x: tree * jnp.sum(x), trees, *steps, 2)
        return jax.vmap(lambda part: function(trees, part))(jnp.arange(2))

    with trace_for(platform):
        found = totals(trees, values, alive, chunks)
    sums = np.asarray(values, np.float64).sum(axis=(2, 3))
    expected = np.stack([sums[0::2].sum(axis=0), sums[1::2].sum(axis=0)])[:, :, None] * trees
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

    jax.make_jaxpr(jax.vmap(twice))(np.ones((1, 3), np.float32))
    assert traced == [(3,)]
    np.testing.assert_array_equal(jax.jit(jax.vmap(twice))(np.ones((2, 3), np.float32)), np.full((2, 3), 4.0))
    assert traced == [(3,), (6,)]


@pytest.mark.parametrize("parts", [1, 4])  # of six chunks
def test_living_strips_are_all_strips_with_a_step_that_was_taken(parts):
    """Each block has strips of one agent and one part, each strip is in one block, and `put` inverts `take`."""
    episodes = sampled("CartPole-v1", "cpu")

    @jax.jit
    def collect_strips(alive, rewards):
        strips = living_strips(alive, parts)

        def copy_block(b, copy):
            return strips.put(copy, b, strips.take(rewards, b))

        copy = jax.lax.fori_loop(0, strips.blocks, copy_block, jnp.zeros_like(rewards))
        return strips, [strips.part(part) for part in range(parts)], copy

    strips, bounds, copy = jax.device_get(collect_strips(episodes.alive, episodes.rewards))
    n, A, _, M = episodes.alive.shape
    expected = {(c, a, m) for c, a, m in np.ndindex(n, A, M) if episodes.alive[c, a, 0, m]}
    assert int(strips.blocks) > A
    found = [
        (part, int(c), int(strips.agent[b]), int(m))
        for part in range(parts)
        for b in range(*map(int, bounds[part]))
        for c, m in zip(strips.chunk[b], strips.episode[b], strict=True)
        if c < n
    ]
    assert all(part == c % parts for part, c, *_ in found)
    assert len(found) == len(expected) and {(c, a, m) for _, c, a, m in found} == expected
    np.testing.assert_array_equal(copy, episodes.rewards)


def test_rewards_that_lie_have_a_stream_of_their_own():
    """No key of the episodes' own is the liar's: resets, actions and steps stay independent of the lie."""
    M, horizon = 8, 20
    environment = counter(99, 99)
    policy = mlp_policy(environment, (4,))
    lie = Interference(rewards=lambda key, rewards, alive: jnp.zeros_like(rewards).at[0].set(jax.random.uniform(key)))
    settings = Sampling(N=M, B=2, horizon=horizon)
    large = page.sampler(environment, policy, settings, lie).large

    @jax.jit
    def run():
        keys = jax.random.split(jax.random.key(3), 2)
        drawn = large(sampling_inputs(jnp.zeros((2, policy.size)), keys, jnp.ones(2, bool))).sampled.returns
        streams = jax.vmap(lambda key: jax.random.split(key, M + 3 * horizon))(keys)
        return drawn, jax.vmap(jax.vmap(jax.random.uniform))(streams)

    drawn, of_the_episodes = jax.device_get(run())
    assert np.all((drawn > 0) & (drawn < 1))  # the lies
    assert not np.isclose(drawn[:, None], of_the_episodes).any()


def test_evaluation_uses_no_key_of_training():
    from jaxbyz.trained.evaluation import evaluation_keys

    @jax.jit
    def draw():
        keys = evaluation_keys(5, 4), jax.random.split(jax.random.key(5), 10)
        return [jax.random.key_data(some) for some in keys]

    data, used = jax.device_get(draw())
    assert not (data[:, None] == used[None]).all(axis=-1).any()
