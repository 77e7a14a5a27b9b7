"""Estimators: unbiased on an MDP solved exactly, equal to a float64 NumPy version on the same trajectories."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_helpers import sampling_inputs

from jaxbyz import make_environment, mlp_policy
from jaxbyz.algorithms.settings import Settings, check_settings
from jaxbyz.errors import UsageError
from jaxbyz.options import check_options
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.estimators import Estimator, check_estimator, estimate, importance_weights
from jaxbyz.sampling.page import sampler
from jaxbyz.sampling.rollout import collect
from jaxbyz.sampling.settings import Sampling, check_sampling

UNBIASED = ("none", "constant", "leave-one-out")
MDP = {"gamma": tabular.GAMMA, "horizon": tabular.HORIZON}
AGENTS, BATCH = 600, 40  # independent estimates, each of a batch


POLICY = tabular.policy()
KINDS_AND_WEIGHTS = [("gpomdp", "trajectory"), ("gpomdp", "per-decision"), ("reinforce", "trajectory")]


def for_all(theta):
    """The same parameters for all agents."""
    return jnp.tile(theta, (AGENTS, 1))


@pytest.fixture(scope="module")
def batches():
    """One policy θ, another policy θ' near it, and AGENTS batches of episodes under θ."""

    @jax.jit
    def sample():
        theta = POLICY.init(jax.random.key(1))
        other = theta + 0.25 * jax.random.normal(jax.random.key(2), theta.shape)
        keys = jax.random.split(jax.random.key(3), AGENTS)
        return theta, other, collect(tabular.environment(), POLICY, for_all(theta), keys, BATCH, tabular.HORIZON)

    return sample()


@pytest.fixture(scope="module")
def estimates(batches):
    """The estimates of all agents, for each kind and baseline."""

    @jax.jit
    def compute(theta, episodes):
        found = {}
        for kind, baseline in itertools.product(("gpomdp", "reinforce"), UNBIASED):
            estimator = Estimator(estimator=kind, **MDP, baseline=baseline, baseline_value=0.7)
            found[kind, baseline] = estimate(estimator, POLICY, for_all(theta), episodes)
        return found

    theta, _, episodes = batches
    return jax.device_get(compute(theta, episodes))


@pytest.fixture(scope="module")
def weighted_estimates(batches):
    """The importance-weighted estimates for θ' of all agents and the weights, for each kind, weights and baseline."""

    @jax.jit
    def compute(other, episodes):
        found, previous = {}, for_all(other)
        for (kind, weights), baseline in itertools.product(KINDS_AND_WEIGHTS, UNBIASED):
            estimator = Estimator(estimator=kind, **MDP, baseline=baseline, baseline_value=0.7, weights=weights)
            omega = importance_weights(estimator, POLICY, previous, episodes)
            found[kind, weights, baseline] = estimate(estimator, POLICY, previous, episodes, omega.values), omega
        return found

    _, other, episodes = batches
    return jax.device_get(compute(other, episodes))


def z_scores(estimates: np.ndarray, exact: np.ndarray) -> np.ndarray:
    estimates = np.asarray(estimates, np.float64)
    error = estimates.std(0, ddof=1) / np.sqrt(len(estimates))
    return (estimates.mean(0) - exact) / error


@pytest.mark.parametrize("kind", ["gpomdp", "reinforce"])
@pytest.mark.parametrize("baseline", UNBIASED)
def test_unbiased_against_exact_gradient(batches, estimates, kind, baseline):
    z = z_scores(estimates[kind, baseline], tabular.exact_gradient(batches[0]))
    assert np.abs(z).max() < 4.5, z


def test_leave_one_out_lowers_the_variance(estimates):
    spread = {name: np.var(estimates["gpomdp", name], axis=0).sum() for name in ("none", "leave-one-out")}
    assert spread["leave-one-out"] < 0.9 * spread["none"]


@pytest.mark.parametrize("kind", ["gpomdp", "reinforce"])
def test_equal_rewards_give_an_exactly_zero_leave_one_out_gradient(batches, kind):
    """Rounding would leave 3e-5, which Adam turns into steps of full size."""
    theta, _, episodes = batches
    estimator = Estimator(estimator=kind, horizon=tabular.HORIZON, baseline="leave-one-out")

    @jax.jit
    def run(theta, episodes):
        reward = jnp.linspace(0.1, 0.9, episodes.rewards.shape[2]).reshape(1, 1, -1, 1)
        equal = episodes._replace(rewards=jnp.broadcast_to(reward, episodes.rewards.shape))
        return estimate(estimator, POLICY, for_all(theta), equal)

    assert not np.asarray(run(theta, episodes)).any()


@pytest.mark.parametrize(("kind", "weights"), KINDS_AND_WEIGHTS)
@pytest.mark.parametrize("baseline", UNBIASED)
def test_importance_weighted_estimate_is_unbiased_for_the_other_policy(
    batches, weighted_estimates, kind, weights, baseline
):
    found, omega = weighted_estimates[kind, weights, baseline]
    z = z_scores(found, tabular.exact_gradient(batches[1]))
    assert np.abs(z).max() < 4.5, z
    assert np.all(omega.ess <= 1 + 1e-6) and np.all(omega.ess > 0.2)
    assert np.all(omega.largest > 1)


@functools.partial(jax.jit, static_argnums=0)
def weights_of(clip, theta, episodes):
    return importance_weights(Estimator(weight_clip=clip), POLICY, for_all(theta), episodes)


def test_weights_of_equal_policies_are_one(batches):
    theta, _, episodes = batches
    omega = weights_of(None, theta, episodes)
    np.testing.assert_allclose(omega.values, 1.0, rtol=1e-5)
    np.testing.assert_allclose(omega.ess, 1.0, rtol=1e-5)


def test_clip_cuts_weights_but_reports_the_largest(batches):
    _, other, episodes = batches
    omega = jax.device_get(weights_of(1.0, other, episodes))
    assert omega.values.max() == 1.0
    assert omega.largest.max() > 1.5


# --- the small-batch step against NumPy -------------------------------------------------------------------------------


def numpy_log_probs(theta: np.ndarray, observations: np.ndarray, unravel) -> np.ndarray:
    """log π(· | s) [steps, actions] of the tanh network in float64; layers found by shape, [out, in]."""
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), unravel(theta))["params"]
    x = observations.astype(np.float64).T
    for layer in ("Layer_0", "Layer_1", "Layer_2"):
        x = np.tanh(tree[layer]["kernel"] @ x + tree[layer]["bias"][:, None])
    return (x - np.log(np.exp(x).sum(0))).T


class Unraveller:
    """The flax tree from a float64 vector, without going through float32."""

    def __init__(self, policy):
        leaves, self.structure = jax.tree.flatten(jax.eval_shape(policy.unravel, np.zeros(policy.size, np.float32)))
        self.shapes = [leaf.shape for leaf in leaves]

    def __call__(self, theta):
        parts, start = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            parts.append(np.asarray(theta[start : start + size]).reshape(shape))
            start += size
        return jax.tree.unflatten(self.structure, parts)


def numpy_gpomdp(theta, episodes, gamma, unravel, weight=lambda log_ratio: 1.0, behaviour=None):
    """(1/M) Σ_i ω_i Σ_h (Σ_{t≤h} ∇ log π(a_t|s_t)) γ^h r_h, the double sum as printed, ∇ by central differences."""

    def surrogate(theta, omegas):
        total = 0.0
        for (observations, actions, rewards), omega in zip(episodes, omegas, strict=True):
            logs = numpy_log_probs(theta, observations, unravel)[np.arange(len(actions)), actions]
            total += omega * sum(gamma**h * rewards[h] * logs[: h + 1].sum() for h in range(len(rewards)))
        return total / len(episodes)

    omegas = []
    for observations, actions, _ in episodes:
        steps = np.arange(len(actions))
        new = numpy_log_probs(theta, observations, unravel)[steps, actions].sum()
        old = new if behaviour is None else numpy_log_probs(behaviour, observations, unravel)[steps, actions].sum()
        omegas.append(np.exp(new - old))
    gradient = np.zeros(len(theta))
    for i in range(len(theta)):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        gradient[i] = (surrogate(theta + step, omegas) - surrogate(theta - step, omegas)) / 2e-5
    return gradient


def test_small_batch_step_equals_numpy_on_the_same_trajectories():
    """ṽ = (1/B) Σ g(τ|θ_t) + v_{t−1} − (1/B) Σ ω g(τ|θ_{t−1}), Algorithm 2 line 6."""
    B, horizon, gamma = 3, 40, 0.97
    environment = make_environment("CartPole-v1")
    policy = mlp_policy(environment, (5, 4))
    rng = np.random.default_rng(0)
    theta = np.asarray(jax.jit(policy.init)(jax.random.key(0)))[None]
    previous = theta + 0.05 * rng.normal(size=theta.shape).astype(np.float32)
    memory = rng.normal(size=theta.shape).astype(np.float32)
    keys = jax.random.split(jax.random.key(3), 1)
    settings = Sampling(N=10, B=B, gamma=gamma, horizon=horizon)
    either = jax.jit(sampler(environment, policy, settings).either)
    inputs = sampling_inputs(theta, keys, anchor=previous, previous=memory)
    ours, large = (either(coin, inputs).sampled.estimate for coin in (False, True))

    record = jax.device_get(jax.jit(lambda t, k: collect(environment, policy, t, k, B, horizon))(theta, keys))
    observations = record.observations[:, 0].transpose(0, 2, 3, 1).reshape(-1, B, 4)
    actions = record.actions[:, 0].reshape(-1, B)
    rewards = record.rewards[:, 0].reshape(-1, B)
    lengths = record.alive[:, 0].sum(axis=(0, 1))
    assert lengths.min() >= 8 and lengths.min() < lengths.max()
    episodes = [(observations[:n, i], actions[:n, i], rewards[:n, i]) for i, n in enumerate(lengths)]

    unravel = Unraveller(policy)
    now, before = np.asarray(theta[0], np.float64), np.asarray(previous[0], np.float64)
    expected = (
        numpy_gpomdp(now, episodes, gamma, unravel)
        + np.asarray(memory[0], np.float64)
        - numpy_gpomdp(before, episodes, gamma, unravel, behaviour=now)
    )
    np.testing.assert_allclose(np.asarray(ours)[0], expected, rtol=2e-4, atol=2e-3)
    assert np.abs(np.asarray(large) - np.asarray(ours)).max() > 0.1


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="baseline='mean'"):
        check_options(Estimator(baseline="mean"))
    with pytest.raises(UsageError, match="per-decision with estimator=reinforce"):
        check_estimator(Estimator(estimator="reinforce", weights="per-decision"))
    with pytest.raises(UsageError, match="B=5 exceeds N=4"):
        check_sampling(Sampling(N=4, B=5))
    with pytest.raises(UsageError, match="realized"):
        check_settings(Settings(previous="realized"))
