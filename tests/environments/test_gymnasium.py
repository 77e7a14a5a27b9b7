"""Environments of gymnasium: what agents see, how episodes end, what is refused, and what fails."""

from __future__ import annotations

import functools

import gymnasium
import gymnasium_tasks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium_tasks import Look

import jaxbyz as jb
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import EnvironmentFailure, check_episodes, gymnasium_adapter, gymnasium_worker, host_episodes
from jaxbyz.errors import UsageError
from jaxbyz.policies import gru_policy, initial_carry, respond
from jaxbyz.sampling.rollout import collect

A, M = 3, 4


@functools.cache
def environment(name="Walk-v0", **options):
    return jb.gymnasium_environment(name, **{"workers": 2, **options})


@functools.cache
def sampler(env, horizon, interference):
    """A compiled function of a key that samples M episodes for each of A agents; the last is Byzantine."""
    policy = jb.mlp_policy(env, hidden=(4,))
    parameters = jax.vmap(policy.init)(jax.random.split(jax.random.key(1), A))
    mask = jnp.arange(A) == A - 1
    return jax.jit(lambda key: collect(
        env, policy, parameters, jax.random.split(key, A), M, horizon, interference, mask
    ))  # fmt: skip


def play(env, horizon=25, interference=None, seed=0):
    return jax.tree.map(np.asarray, jax.block_until_ready(sampler(env, horizon, interference)(jax.random.key(seed))))


def replayed(name, seed, actions):
    """The observations and rewards of gymnasium itself, and whether its episode has ended."""
    env = gymnasium.make(name)
    observations, rewards, over = [env.reset(seed=int(seed))[0]], [], False
    for action in actions:
        assert not over
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        over = terminated or truncated
    return np.array(observations), np.array(rewards, np.float32), terminated, truncated


@pytest.mark.parametrize("name", ["Walk-v0", "CartPole-v1"])
def test_episodes_are_those_of_gymnasium(name):
    env = environment(name)
    episodes = play(env)
    seeds = jax.vmap(lambda key: jax.vmap(jax.random.bits)(jax.random.split(key, M + 3 * 2)[:M]))(
        jax.random.split(jax.random.key(0), A)
    )
    by_time = {name: np.moveaxis(getattr(episodes, name), 0, -3) for name in ("rewards", "alive", "actions")}
    endings = set()
    for a in range(A):
        for m in range(M):
            alive = by_time["alive"][a, :, :, m].ravel()
            actions = by_time["actions"][a, :, :, m].ravel()[alive]
            observations, rewards, terminated, truncated = replayed(name, seeds[a, m], actions)
            seen = np.moveaxis(episodes.observations[:, a, :, :, m], 1, -1).reshape(-1, observations.shape[1])[alive]
            np.testing.assert_array_equal(seen, observations[:-1])
            np.testing.assert_array_equal(episodes.final_observations[a, :, m], observations[-1])
            np.testing.assert_array_equal(by_time["rewards"][a, :, :, m].ravel()[alive], rewards)
            assert episodes.terminated[a, m] == terminated
            assert terminated or truncated or alive.sum() == 25
            endings.add((terminated, truncated))
    assert len(endings) > 1
    check_episodes(env)


def test_the_number_of_processes_changes_nothing_and_the_fastest_is_kept(monkeypatch):
    monkeypatch.setattr(gymnasium_adapter, "available_cores", lambda: 3)
    monkeypatch.setattr(host_episodes, "TRIAL_SECONDS", np.inf)
    host, n = (env := jb.gymnasium_environment("Walk-v0")).host, A * M
    for seed, count in enumerate((3, 1)):
        jax.tree.map(np.testing.assert_array_equal, play(env, seed=seed), play(environment(), seed=seed))
        assert host._count == count

    def chosen(measured):
        host._measured, host._spent[:] = measured, 0.0
        host._choose_processes(n)
        return host._count

    assert chosen({(n, 3): 1.0, (n, 1): 2.0}) == 3 and chosen({(n, 3): 2.0, (n, 1): 1.0}) == 1
    monkeypatch.setattr(host_episodes, "TRIAL_SECONDS", 1.0)
    assert chosen({(n, 3): 0.1}) == 3 and chosen({(n, 3): 0.01}) == 1


def test_a_memory_lasts_for_an_episode():
    env = environment()
    policy = gru_policy(env, (4,))
    parameters = jax.vmap(policy.init)(jax.random.split(jax.random.key(1), A))
    episodes = jax.jit(lambda key: collect(env, policy, parameters, jax.random.split(key, A), M, 20))(jax.random.key(0))
    episodes, tree = jax.tree.map(np.asarray, episodes), policy.unravel(parameters[-1])

    @jax.jit
    def step(carry, observation, action):
        carry, distribution = respond(policy, tree, carry, observation[:, None])
        return carry, policy.log_prob(distribution, action[None])[0]

    alive, carry = episodes.alive[:, -1, :, -1], initial_carry(policy, 1)
    seen = np.moveaxis(episodes.observations[:, -1, :, :, -1], 1, 2)[alive], episodes.actions[:, -1, :, -1][alive]
    assert alive.sum() > 2
    for observation, action, found in zip(*seen, episodes.log_probs[:, -1, :, -1][alive], strict=True):
        carry, log_prob = step(carry, observation, action)
        np.testing.assert_allclose(found, log_prob, atol=1e-5)


def test_actions_are_held_and_observations_scaled():
    env = jb.make_environment(environment(), hold=3, scale=True)
    episodes = sampler.__wrapped__(env, 9, None)(jax.random.key(0))
    assert env.limit == 7 and (episodes.lengths <= 7).all() and env.scales is not None
    np.testing.assert_array_equal(episodes.observations[0, :, 1], 0.0)  # the size of a step is a constant
    assert abs(episodes.observations[0, :, 0]).max() > 0.5
    assert len(env.host._ended) == len(env.host._free)


def test_environments_of_cut_episodes_are_used_again():
    env = environment("CartPole-v1")
    for seed in range(3):
        play(env, horizon=5, seed=seed)
    assert len(env.host._ended) == len(env.host._free) == A * M


def test_byzantine_agents_act_differently():
    always_two = Interference(act=lambda draws, action: jnp.ones_like(action))
    actions, alive = (getattr(play(environment(), interference=always_two), name) for name in ("actions", "alive"))
    assert actions[:, -1][alive[:, -1]].all() and not actions[:, 0][alive[:, 0]].all()


def test_programs_for_other_devices_call_the_host_with_copies():
    env = environment()
    with trace_for("gpu"):
        elsewhere = sampler.__wrapped__(env, 24, None)(jax.random.key(0))
    for here, there in zip(play(env, horizon=24), elsewhere, strict=True):
        np.testing.assert_allclose(here, there, atol=1e-5)
    assert len(env.host._free) == len(env.host._ended)


@pytest.mark.parametrize(
    ("space", "shape", "values"),
    [
        (spaces.Box(0, 255, (2, 3, 1), np.uint8), (2, 3, 1), lambda x: (x >= 0).all() and (x <= 1).all() and x.any()),
        (spaces.Box(-1, 1, (), np.float64), (1,), lambda x: abs(x).max() <= 1),
        (spaces.Discrete(3, start=2), (3,), lambda x: (np.sort(x) == [0, 0, 1]).all()),
        (spaces.MultiBinary(5), (5,), lambda x: np.isin(x, (0, 1)).all()),
    ],
    ids=["image", "number", "discrete", "binary"],
)
def test_observations_become_vectors(space, shape, values):
    env = jb.gymnasium_environment(functools.partial(Look, space, spaces.Discrete(2)), workers=1)
    assert env.observation_shape == shape and env.observation_size == np.prod(shape)
    observation, _ = jax.jit(env.reset)(jax.random.key(3))
    assert observation.dtype == jnp.float32 and observation.shape == (env.observation_size,)
    assert values(np.asarray(observation))
    assert (env.scales is None) == (space.dtype != np.uint8)


def test_continuous_actions_are_clipped_unless_the_reward_charges_them_as_given():
    space = spaces.Box(-1, 1, (2, 1), np.float64)
    own = jb.gymnasium_environment(functools.partial(Look, spaces.Discrete(2), space), workers=1)
    car = jb.gymnasium_environment("MountainCarContinuous-v0", workers=1)

    def reward(env, action):
        return jax.jit(lambda key: env.step(key, env.reset(key)[1], jnp.array(action)).reward)(jax.random.key(0))

    assert reward(own, [3.0, -0.5]) == 0.5
    np.testing.assert_allclose(reward(car, [3.0]), -0.9, rtol=1e-6)


BAD = {
    "Nothing-v7": "env=gymnasium:Nothing-v7: Environment `Nothing` doesn't exist; register it in a file for --import",
    "CartPole-v7": "did you mean 'gymnasium:CartPole-v",
    "no_such_module:A-v0": "No module named 'no_such_module'",
}


@pytest.mark.parametrize("name", BAD)
def test_unknown_names_are_refused(name):
    with pytest.raises(UsageError, match=BAD[name]) as error:
        jb.resolve(env=f"gymnasium:{name}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (spaces.Dict(a=spaces.Discrete(2)), spaces.Discrete(2), "has observations Dict: .*FlattenObservation"),
        (spaces.Discrete(2), spaces.MultiDiscrete([2, 2]), "has actions MultiDiscrete: policies support Discrete"),
        (spaces.Discrete(2), spaces.Discrete(2, start=1), "has actions that are numbered from 1: .* numbered from 0"),
    ],
)
def test_other_spaces_are_refused(observations, actions, message):
    with pytest.raises(UsageError, match=message):
        jb.gymnasium_environment("Look-v0", observation_space=observations, action_space=actions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: environment(wings=2), "cannot be made .*unexpected keyword argument 'wings'"),
        (lambda: environment(workers=0), "workers=0: must be a whole number of at least 1"),
        (lambda: environment(timeout=0), "timeout=0: must be a positive number"),
        (lambda: jb.gymnasium_environment(dict), "is a dict, and must be a gymnasium.Env"),
        (lambda: jb.gymnasium_environment(gymnasium.Env), "has no observation_space, which .* must define"),
        (lambda: jb.gymnasium_environment(gymnasium.make("Walk-v0")), "a function that returns a new environment"),
        (lambda: jb.build(jb.resolve(env="gymnasium:Walk-v0", env_spread="step_size=0.1")), "only environments in JAX"),
        (lambda: jb.build(jb.resolve(env="gymnasium:Walk-v0", p=1.0, audit=0.1)), "only episodes in JAX can"),
        (
            lambda: jb.make_environment(
                jb.gymnasium_environment(Look, observation_space=spaces.Box(0, 255, (2,), np.uint8),
                                         action_space=spaces.Discrete(2)), scale=True),
            "its observations are scaled already",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(make, message):
    with pytest.raises(UsageError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


FAILURES = {
    "raise": "step of episode [0-3]: ValueError: the floor is missing$",
    "kill": "step of episode [0-3]: its process was ended by SIGKILL$",
    "hang": "step of episode [0-3]: no answer for timeout=1 seconds$",
}


@pytest.mark.parametrize("trouble", FAILURES)
def test_a_failure_is_told_with_agent_and_episode_and_the_next_episodes_are_played(trouble, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    env = environment(trouble=trouble, once=str(flag), timeout=1 if trouble == "hang" else 60)
    assert np.isnan(play(env).returns).any()
    with pytest.raises(EnvironmentFailure, match=FAILURES[trouble]):
        check_episodes(env)
    jax.tree.map(np.testing.assert_array_equal, play(env), play(environment()))
    check_episodes(env)


def test_numbers_that_are_not_finite_are_refused():
    progress, two = np.zeros(2, np.int64), np.arange(2)
    walks = gymnasium_worker.Environments(progress, gymnasium_tasks.Walk, "float32", 2, True, (), "int64")
    walks.reset(two, two)
    walks.all[1].x = np.nan
    with pytest.raises(ValueError, match=r"^its observation is nan$"):
        walks.step(two, two)
    walks.all[1].__dict__.update(x=np.inf, _observation=lambda: np.zeros(2))
    with pytest.raises(ValueError, match=r"^its reward is inf$"):
        walks.step(two, two)
    assert progress[1] == 1, "which environment it was"


def test_modules_of_the_user_are_found_by_the_processes():
    assert jb.gymnasium_environment("gymnasium_tasks:Walk-v0").observation_size == 2
    assert gymnasium_tasks.Walk.__module__ == "gymnasium_tasks"
