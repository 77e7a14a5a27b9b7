"""Classic control tasks agree with recordings of gymnasium: single steps, and returns of random policies."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz import make_environment
from jaxbyz.errors import UsageError
from jaxbyz.sampling.rollout import collect

RECORD = np.load(Path(__file__).parents[1] / "data" / "classic_control.npz")
TASKS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def recorded(task: str, key: str) -> np.ndarray:
    return RECORD[f"{task}/{key}"]


@pytest.mark.parametrize("task", TASKS)
def test_one_step_equals_gymnasium(task):
    environment, states = make_environment(task), recorded(task, "state")
    _, start = jax.eval_shape(environment.reset, jax.random.key(0))
    names = [name for name in start.__dataclass_fields__ if name not in ("time", "last_u")]
    fields = {name: states[:, i] for i, name in enumerate(names)}
    others = {name: np.zeros(len(states), getattr(start, name).dtype)
              for name in start.__dataclass_fields__ if name not in fields}  # fmt: skip

    @jax.jit
    def step(state, action):
        return jax.vmap(environment.step)(jax.random.split(jax.random.key(1), len(states)), state, action)

    after = step(start.replace(**fields, **others), recorded(task, "action"))
    np.testing.assert_allclose(after.observation, recorded(task, "observation"), rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(after.reward, recorded(task, "reward"), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(after.terminated, recorded(task, "terminated") > 0)


def test_the_price_of_an_action_beyond_its_bounds_is_that_of_the_action():
    action, reward = (recorded("MountainCarContinuous-v0", key) for key in ("action", "reward"))
    beyond = (np.abs(action[:, 0]) > 1.2) & (reward < 50)
    assert beyond.sum() > 10
    np.testing.assert_allclose(reward[beyond], -0.1 * action[beyond, 0] ** 2, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_returns_of_random_policies_agree(task):
    from jaxbyz.attacks.base import Interference
    from jaxbyz.policies import mlp_policy

    environment = make_environment(task)
    assert environment.limit == {"CartPole-v1": 500, "Acrobot-v1": 500, "MountainCarContinuous-v0": 999}.get(task, 200)
    policy, agents = mlp_policy(environment, (2,)), 4
    act = Interference(act=environment.actions.uniform_action)
    keys = jax.random.split(jax.random.key(0), agents)
    theta = jnp.zeros((agents, policy.size))
    episodes = jax.jit(
        lambda: collect(environment, policy, theta, keys, 100, environment.limit, act, jnp.ones(agents, bool))
    )()
    ours, theirs = np.ravel(episodes.returns), recorded(task, "returns")
    error = np.hypot(ours.std() / np.sqrt(ours.size), theirs.std() / np.sqrt(theirs.size))
    assert abs(ours.mean() - theirs.mean()) <= 4 * error + 1e-3


def test_held_actions_add_the_rewards_and_stop_at_the_end():
    """CartPole pushed in one direction: four held steps are four single steps, and nothing happens after the fall."""
    single, held = make_environment("CartPole-v1"), make_environment("CartPole-v1", hold=4)
    assert held.limit == 125
    _, state = jax.jit(single.reset)(jax.random.key(0))
    one, four = jax.jit(single.step), jax.jit(held.step)
    state_held, action, over, total = state, np.int32(1), False, 0.0
    for i in range(4):
        after = four(jax.random.key(i), state_held, action)
        reward = 0.0
        for _ in range(4):
            if over:
                break
            step = one(jax.random.key(0), state, action)
            state, reward, over = step.state, reward + float(step.reward), bool(step.terminated)
        np.testing.assert_allclose(after.observation, step.observation, rtol=1e-5)
        assert float(after.reward) == reward and bool(after.terminated) == over
        state_held, total = after.state, total + reward
        if over:
            break
    assert over and 8 <= total <= 11


def test_scaled_observations_have_mean_0_and_deviation_1_and_are_the_same_for_everybody():
    from jaxbyz.environments.observation_scaling import _common_sample, common_scales

    plain, scaled = make_environment("MountainCar-v0"), make_environment("MountainCar-v0", scale=True)
    mean, deviation = common_scales(plain)
    assert deviation[1] < 0.03 and abs(mean[0] + 0.5) < 0.1  # velocity is tiny, the car is in the valley

    @jax.jit
    def observe(key):
        _, state = plain.reset(key)
        first = [environment.reset(key)[0] for environment in (plain, scaled)]
        return first, [environment.step(key, state, jnp.int32(2)).observation for environment in (plain, scaled)]

    for (raw, seen), rtol in zip(jax.device_get(observe(jax.random.key(3))), (1e-5, 1e-4), strict=True):
        np.testing.assert_allclose(seen, (raw - mean) / deviation, rtol=rtol)
    observations, alive = (np.asarray(x) for x in _common_sample(scaled))
    np.testing.assert_allclose(observations[alive].mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(observations[alive].std(axis=0), 1, atol=1e-3)


def test_a_clipped_action_costs_what_its_bounds_cost():
    """MountainCarContinuous charges a²/10 for the action as it was given."""
    plain, clipped = (make_environment("MountainCarContinuous-v0", **params) for params in ({}, {"clip": True}))

    @jax.jit
    def rewards(key):
        _, state = plain.reset(key)
        steps = [(plain, 3.0), (plain, 1.0), (clipped, 3.0), (clipped, -3.0), (clipped, 0.5)]
        return jnp.stack([env.step(key, state, jnp.array([action])).reward for env, action in steps])

    np.testing.assert_allclose(rewards(jax.random.key(0)), [-0.9, -0.1, -0.1, -0.1, -0.025], rtol=1e-5)


@pytest.mark.parametrize("params", [{"hold": 0}, {"hold": 1.5}, {"scale": "yes"}, {"clip": 1}, {"clip": True}])
def test_wrong_values_of_common_parameters_are_refused(params):
    with pytest.raises(UsageError, match="must be"):
        make_environment("CartPole-v1", **params)
