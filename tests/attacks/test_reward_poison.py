"""Reward poisoning: effects of rewards against automatic differentiation, and the attack inside the sampler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_helpers import sampling_inputs

from jaxbyz.accelerate.platform import trace_for
from jaxbyz.attacks import attacks
from jaxbyz.errors import UsageError
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.critic import CriticSettings, advantages, critic
from jaxbyz.sampling.estimators import estimate, sum_of_scores
from jaxbyz.sampling.page import sampler
from jaxbyz.sampling.reward_effects import reward_effects
from jaxbyz.sampling.rollout import collect
from jaxbyz.sampling.settings import Sampling

A, M = 3, 5
MASK = np.array([False, True, False])
ENVIRONMENT, POLICY = tabular.environment(), tabular.policy()
VARIANTS = (("gpomdp", "none"), ("reinforce", "leave-one-out"), ("gpomdp", "critic"))


@pytest.fixture(scope="module")
def batch():
    """Parameters, keys, and the episodes that they lead to."""

    @jax.jit
    def sample(noise):
        theta, keys = POLICY.init(jax.random.key(1))[None] + noise, jax.random.split(jax.random.key(3), A)
        return theta, keys, collect(ENVIRONMENT, POLICY, theta, keys, M, tabular.HORIZON)

    return sample(np.random.default_rng(2).normal(size=(A, POLICY.size)).astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "baseline"),
    [
        ("gpomdp", "leave-one-out"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in VARIANTS),
    ],
)
def test_effects_are_the_derivatives_of_the_estimate(batch, kind: str, baseline: str) -> None:
    estimator = Sampling(estimator=kind, gamma=0.9, horizon=tabular.HORIZON, baseline=baseline, gae_lambda=0.8)
    judging = critic(ENVIRONMENT.observation_size, CriticSettings(critic_hidden=(3,)))
    theta, keys, episodes = batch
    direction = np.random.default_rng(4).normal(size=theta.shape).astype(np.float32)

    def along_direction(rewards, theta, keys, episodes, direction) -> jax.Array:
        changed = episodes._replace(rewards=jnp.where(episodes.alive, rewards, 0.0))
        if baseline == "critic":
            values = judging.values(jax.vmap(judging.init)(keys), episodes)
            q = advantages(changed, *values, estimator.gamma, estimator.gae_lambda)
            return jnp.sum(direction * sum_of_scores(POLICY, theta, changed, q))
        return jnp.sum(direction * estimate(estimator, POLICY, theta, changed))

    found = jax.jit(lambda t, e, d: reward_effects(estimator, POLICY, t, e, d))(theta, episodes, direction)
    with trace_for("plain"):
        derivative = jax.jit(jax.grad(along_direction))(episodes.rewards, theta, keys, episodes, direction)
    np.testing.assert_allclose(found, M * np.asarray(derivative), rtol=1e-3, atol=1e-4)
    assert np.abs(found).max() > 0.1


@pytest.mark.parametrize("baseline", ["leave-one-out", "critic"])
def test_poisoned_estimate_turns_away_and_others_are_untouched(batch, baseline: str, monkeypatch) -> None:
    """Only the poisoned agent's estimate changes, and loses most of its component along the true one."""
    estimator = Sampling(
        N=M, B=M, p=1.0, gamma=0.9, horizon=tabular.HORIZON, baseline=baseline, critic_hidden=(3,), critic_steps=2
    )
    judging = critic(ENVIRONMENT.observation_size, estimator)
    interference = attacks["reward-poison"].build(A, 1).interference(ENVIRONMENT.actions)
    sample = sampler(ENVIRONMENT, POLICY, estimator, interference)

    @jax.jit
    def draw(theta, keys, mask, states):
        return sample.large(sampling_inputs(theta, keys, mask, private=states))

    @jax.jit
    def without_interference(theta, episodes, states):
        """The estimates of the true episodes and the critics that are trained on them."""
        if baseline != "critic":
            return estimate(estimator, POLICY, theta, episodes), ()
        states, _ = states  # private and public critics
        values, final_values = judging.values(states, episodes)
        q = advantages(episodes, values, final_values, estimator.gamma, estimator.gae_lambda)
        return sum_of_scores(POLICY, theta, episodes, q), judging.train(states, episodes, q + values)

    theta, keys, episodes = batch
    if baseline == "critic":  # with the other baseline, the sampler samples the same episodes itself
        monkeypatch.setattr("jaxbyz.sampling.batches.collect", lambda *_: episodes)
    states = jax.jit(jax.vmap(sample.init))(keys)
    honest, poisoned = (jax.device_get(draw(theta, keys, mask, states)) for mask in (np.zeros(A, bool), MASK))
    expected, expected_critic = without_interference(theta, episodes, states)
    true, false = honest.sampled.estimate, poisoned.sampled.estimate
    np.testing.assert_allclose(true, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(true[~MASK], false[~MASK])
    assert false[1] @ true[1] < 0.5 * (true[1] @ true[1])
    if baseline == "critic":
        private, public = poisoned.private
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), private.network, expected_critic.network)
        assert not np.allclose(private.shift[1], public.shift[1])


def test_poison_has_the_length_of_its_budget_and_the_direction_of_the_effects() -> None:
    poison = attacks["reward-poison"].build(A, 1, budget=0.5).interfere(None).poison
    poison = jax.jit(poison)
    rewards, effects = np.array([3.0, 0.0, 4.0], np.float32), np.array([0.0, 2.0, 0.0], np.float32)
    np.testing.assert_allclose(poison(rewards, effects), [3.0, -2.5, 4.0])
    np.testing.assert_array_equal(poison(rewards, np.zeros(3, np.float32)), rewards)
    with pytest.raises(UsageError, match="budget"):
        attacks["reward-poison"].build(A, 1, budget=0.0)
