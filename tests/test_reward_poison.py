"""Reward poisoning: effects of rewards against automatic differentiation, and the attack inside the sampler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.accelerate.platform import trace_for
from jaxbyz.attacks import attacks
from jaxbyz.errors import UsageError
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.critic import CriticSettings, advantages, critic
from jaxbyz.sampling.estimators import Estimator, estimate, sum_of_scores
from jaxbyz.sampling.page import Page, sampler
from jaxbyz.sampling.reward_effects import reward_effects
from jaxbyz.sampling.rollout import collect

A, M = 3, 5
MASK = jnp.array([False, True, False])
VARIANTS = (("gpomdp", "none"), ("reinforce", "leave-one-out"), ("gpomdp", "critic"))


@pytest.fixture(scope="module")
def batch():
    policy = tabular.policy()
    theta = policy.init(jax.random.key(1))[None] + jax.random.normal(jax.random.key(2), (A, policy.size))
    keys = jax.random.split(jax.random.key(3), A)
    episodes = jax.jit(lambda t: collect(tabular.environment(), policy, t, keys, M, tabular.HORIZON))(theta)
    return policy, theta, keys, episodes


@pytest.mark.parametrize(
    ("kind", "baseline"),
    [
        ("gpomdp", "leave-one-out"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in VARIANTS),
    ],
)
def test_effects_are_the_derivatives_of_the_estimate(batch, kind: str, baseline: str) -> None:
    policy, theta, _, episodes = batch
    estimator = Estimator(kind, 0.9, tabular.HORIZON, baseline, gae_lambda=0.8)
    direction = jax.random.normal(jax.random.key(4), theta.shape)
    judging = critic(tabular.environment().observation_size, CriticSettings((3,)))
    values = jax.jit(lambda keys: judging.values(jax.vmap(judging.init)(keys), episodes))(
        jax.random.split(jax.random.key(5), A)
    )

    def along_direction(rewards: jax.Array) -> jax.Array:
        changed = episodes._replace(rewards=jnp.where(episodes.alive, rewards, 0.0))
        if baseline == "critic":
            q = advantages(changed, *values, estimator.gamma, estimator.gae_lambda)
            return jnp.sum(direction * sum_of_scores(policy, theta, changed, q))
        return jnp.sum(direction * estimate(estimator, policy, theta, changed))

    found = jax.jit(lambda e: reward_effects(estimator, policy, theta, e, direction))(episodes)
    with trace_for("plain"):
        expected = M * jax.jit(jax.grad(along_direction))(episodes.rewards)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert np.abs(found).max() > 0.1


@pytest.mark.parametrize("baseline", ["leave-one-out", "critic"])
def test_poisoned_estimate_turns_away_and_others_are_untouched(batch, baseline: str) -> None:
    """Only the poisoned agent's estimate changes, and loses most of its component along the true one."""
    policy, theta, keys, _ = batch
    estimator = Estimator("gpomdp", 0.9, tabular.HORIZON, baseline, advantages="plain")
    page = Page(N=M, B=M, estimator=estimator, critic=CriticSettings((3,), steps=2))
    spaces = tabular.environment().actions
    drawn = {}
    for name in ("none", "reward-poison"):
        sample = sampler(tabular.environment(), policy, page, attacks[name].build(A, 1).interference(spaces), True)
        states = jax.vmap(sample.init)(keys)
        drawn[name] = jax.jit(lambda k, s, f=sample: f.large(theta, k, MASK, None, s))(keys, states)
    true, false = (np.asarray(drawn[name].sampled.estimate) for name in drawn)
    np.testing.assert_array_equal(true[~MASK], false[~MASK])
    poisoned, before = false[1] @ true[1], true[1] @ true[1]
    assert poisoned < 0.5 * before
    if baseline == "critic":
        private, public = drawn["reward-poison"].critic
        for honest, kept in zip(
            jax.tree.leaves(drawn["none"].critic.network), jax.tree.leaves(private.network), strict=True
        ):
            np.testing.assert_allclose(honest, kept, rtol=1e-6)
        assert not np.allclose(private.shift[1], public.shift[1])


def test_poison_has_the_length_of_its_budget_and_the_direction_of_the_effects() -> None:
    poison = attacks["reward-poison"].build(A, 1, budget=0.5).interfere(None).poison
    rewards, effects = jnp.array([3.0, 0.0, 4.0]), jnp.array([0.0, 2.0, 0.0])
    np.testing.assert_allclose(poison(rewards, effects), [3.0, -2.5, 4.0])
    np.testing.assert_array_equal(poison(rewards, jnp.zeros(3)), rewards)
    with pytest.raises(UsageError, match="budget"):
        attacks["reward-poison"].build(A, 1, budget=0.0)
