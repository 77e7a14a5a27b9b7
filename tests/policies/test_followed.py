"""Scales of observations that follow the policy: they change no action, and no liar moves them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.algorithms.followed_scales import EPISODES
from jaxbyz.environments.observation_scaling import COMMON_KEY
from jaxbyz.policies import followed_policy
from jaxbyz.sampling.rollout import collect

KEY, HORIZON = jax.random.key(0), 20


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_moving_the_scales_changes_no_action(name):
    environment = jb.make_environment(name)
    policy, size = followed_policy(environment, (5,)), environment.observation_size
    theta = policy.init(KEY)
    seen = 2.0 + 3.0 * jax.random.normal(KEY, (size, 100))
    before = policy.apply(policy.unravel(theta), seen)
    for _ in range(60):
        theta = policy.follow(theta, seen.mean(axis=1), seen.var(axis=1))
    np.testing.assert_allclose(policy.apply(policy.unravel(theta), seen), before, atol=1e-4)
    tree = policy.unravel(theta)
    np.testing.assert_allclose(tree["scale_mean"], seen.mean(axis=1), atol=0.02)
    np.testing.assert_allclose(tree["scale_spread"], seen.std(axis=1), rtol=0.05)
    gradient = jax.grad(lambda theta: policy.apply(policy.unravel(theta), seen).sum())(theta)
    assert not gradient[-policy.untrained :].any() and gradient[: -policy.untrained].any()


def federation(environment, policy, attack):
    options = {"horizon": HORIZON, "N": 2, "B": 2, "p": 1.0, "aggregator": "median", "agreement": "mda", "eta": 0.1}
    return jb.decbyzpg(environment, policy, agents=5, byzantine=1, attack=attack, **options)


def test_liars_do_not_move_the_scales():
    environment = jb.make_environment("Pendulum-v1")
    policy = followed_policy(environment, (5,))
    scales = []
    for attack in ("none", "large-noise"):
        algorithm = federation(environment, policy, attack)
        state = algorithm.init(KEY)
        theta, after = state.parameters[:1], jax.jit(algorithm.step)(state, jnp.bool_(True))[0]
        honest = np.asarray(after.parameters)[:4]
        scales.append(honest[:, -policy.untrained :])
        np.testing.assert_array_equal(scales[-1], scales[-1][:1].repeat(4, axis=0))
    np.testing.assert_allclose(scales[0], scales[1], rtol=1e-6)
    keys = jax.random.fold_in(jax.random.key(COMMON_KEY), 0)[None]
    seen = np.asarray(collect(environment, policy, theta, keys, EPISODES, HORIZON).observations)[:, 0]
    expected = np.moveaxis(seen, 1, 0).reshape(3, -1)[:, : EPISODES * HORIZON]
    assert (
        np.abs(scales[0][0, :3] - 0.1 * np.moveaxis(seen, 1, 0).reshape(3, -1).sum(axis=1) / expected.shape[1]).max()
        < 1e-5
    )


def test_a_server_refuses_them():
    environment = jb.make_environment("Pendulum-v1")
    with pytest.raises(jb.UsageError, match="policy=followed: a server holds the parameters"):
        jb.byzpg(
            environment, followed_policy(environment, (5,)), agents=5, byzantine=1, horizon=HORIZON, N=2, B=2, p=1.0
        )
