"""Policies with a memory: episodes, gradients, weights and critics against a loop over steps in NumPy and float64."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxbyz as jb
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.policies import gru_policy, initial_carry, most_likely, respond, voting
from jaxbyz.policies.recurrent import GRU
from jaxbyz.sampling.differentiation import with_memories
from jaxbyz.sampling.estimators import importance_weights, sum_of_scores
from jaxbyz.sampling.hessian import hessian_vector_product
from jaxbyz.sampling.reuse import clipped_estimate, keep
from jaxbyz.sampling.reward_effects import scores_along
from jaxbyz.sampling.rollout import collect

KEY = jax.random.key(0)
ENVIRONMENT = jb.make_environment("CartPoleNoVelocity-v1", theta_threshold_radians=0.7)  # longer episodes
POLICY = gru_policy(ENVIRONMENT, (3, 2), output_scale=3.0)  # a layer, then a memory of two numbers
# Where in the vector of parameters each of them is.
PLACES = jax.tree.map(lambda leaf: np.asarray(leaf, int), POLICY.unravel(jnp.arange(POLICY.size, dtype=jnp.float32)))
AGENTS, EPISODES, HORIZON = 2, 3, 40  # several chunks; episodes end at different times
ESTIMATOR = jb.Sampling(horizon=HORIZON, gamma=0.9)
EPSILON = 1e-5


def logistic(x):
    return 1.0 / (1.0 + np.exp(-x))


def one_step(theta, h, observation):
    """One step of the policy in one episode, in float64: `(features, log-probabilities)`."""
    core, readout = PLACES["core"]["params"], PLACES["readout"]["params"]["Layer_0"]
    x = np.tanh(theta[core["Layer_0"]["kernel"]] @ observation + theta[core["Layer_0"]["bias"]])
    gru = core["GRU_0"]
    x = theta[gru["Layer_0"]["kernel"]] @ x + theta[gru["Layer_0"]["bias"]]
    before, H = h @ theta[gru["recurrent"]], len(h)
    r, z = logistic(x[:H] + before[:H]), logistic(x[H : 2 * H] + before[H : 2 * H])
    new = np.tanh(x[2 * H :] + r * (before[2 * H :] + theta[gru["bias"]]))
    h = (1 - z) * new + z * h
    logits = 3.0 * np.tanh(theta[readout["kernel"]] @ h + theta[readout["bias"]])
    return h, logits - np.log(np.exp(logits).sum())


def followed(theta, observations):
    """All steps of one episode, which starts with an empty memory: features `[T, H]` and log-probabilities `[T, 2]`."""
    theta, h, found = np.asarray(theta, np.float64), np.zeros(2), []
    for observation in observations:
        h, log_probs = one_step(theta, h, observation)
        found.append((h, log_probs))
    return tuple(np.array(x) for x in zip(*found, strict=True))


def episodes_of(episodes, agent):
    """The episodes of an agent one after the other: observations `[T, O]`, actions `[T]`, and where their steps are."""
    for i in range(EPISODES):
        alive = np.asarray(episodes.alive)[:, agent, :, i]
        observations = np.moveaxis(np.asarray(episodes.observations)[:, agent, :, :, i], 1, 2)[alive]
        yield observations.astype(np.float64), np.asarray(episodes.actions)[:, agent, :, i][alive], alive, i


@cache
def computed(platform):
    """Everything that is tested, as one program: episodes at θ, and what is computed of them at θ and θ'."""

    @jax.jit
    def run():
        keys = jax.random.split(KEY, AGENTS)
        theta = 1.5 * jax.vmap(POLICY.init)(keys)
        other, direction = theta + 0.1 * jax.random.normal(KEY, theta.shape), jax.random.normal(keys[0], theta.shape)
        with trace_for(platform):
            episodes = collect(ENVIRONMENT, POLICY, theta, keys, EPISODES, HORIZON)
            q = jnp.where(episodes.alive, jax.random.normal(KEY, episodes.alive.shape), 0.0)
            return {
                "theta": theta, "other": other, "direction": direction, "episodes": episodes, "q": q,
                "gradient": sum_of_scores(POLICY, theta, episodes, q, 0.5 * episodes.alive),
                "weights": importance_weights(ESTIMATOR, POLICY, other, episodes).values,
                "clipped": clipped_estimate(POLICY, other, keep(episodes, q), 0.2),
                "along": scores_along(POLICY, theta, episodes, direction),
                "hessian": hessian_vector_product(ESTIMATOR, POLICY, theta, direction, episodes),
                "remembered": with_memories(POLICY, theta, episodes),
            }  # fmt: skip

    return jax.device_get(run())


def differences(function, theta):
    """The gradient of a function of float64 parameters by central differences."""
    shifts = EPSILON * np.eye(len(theta))
    return np.array([(function(theta + s) - function(theta - s)) / (2 * EPSILON) for s in shifts])


platforms = pytest.mark.parametrize("platform", ["cpu", pytest.param("plain", marks=pytest.mark.slow)])


@platforms
def test_every_episode_starts_with_an_empty_memory_and_keeps_it_across_chunks(platform):
    found = computed(platform)
    episodes = found["episodes"]
    lengths = episodes.lengths
    assert lengths.max() > 17 and len(set(lengths.ravel().tolist())) > 2, "the test needs several chunks and lengths"
    for agent in range(AGENTS):
        for observations, actions, alive, i in episodes_of(episodes, agent):
            _, log_probs = followed(found["theta"][agent], observations)
            expected = log_probs[np.arange(len(actions)), actions]
            np.testing.assert_allclose(episodes.log_probs[:, agent, :, i][alive], expected, atol=2e-5)
            constant = np.stack([followed(found["theta"][agent], [o])[1][0] for o in observations])
            assert np.abs(constant[1:] - log_probs[1:]).max() > 1e-3, "the memory has no effect"


def test_actions_are_those_of_a_loop_that_acts_step_by_step():
    """Greedy episodes, whose actions are those of `respond` with one episode and one step at a time."""
    greedy = POLICY._replace(sample=lambda distribution, noise: most_likely(POLICY, distribution, ENVIRONMENT.actions))
    theta = computed("cpu")["theta"]
    episodes = jax.jit(
        lambda theta: collect(ENVIRONMENT, greedy, theta, jax.random.split(KEY, AGENTS), EPISODES, HORIZON)
    )(theta)
    act = jax.jit(lambda tree, carry, o: respond(POLICY, tree, carry, o))
    tree = POLICY.unravel(theta[1])
    for observations, actions, _, _ in episodes_of(episodes, 1):
        carry = initial_carry(POLICY, 1)
        for observation, action in zip(observations, actions, strict=True):
            carry, distribution = act(tree, carry, jnp.float32(observation)[:, None])
            assert int(most_likely(POLICY, distribution, ENVIRONMENT.actions)[0]) == action


@platforms
def test_gradients_go_back_through_whole_episodes(platform):
    """Scores with an entropy bonus, and clipped ratios at other parameters, against differences in float64."""
    found = computed(platform)

    def objectives(theta, agent):
        scores, clipped = 0.0, 0.0
        for observations, actions, alive, i in episodes_of(found["episodes"], agent):
            _, log_probs = followed(theta, observations)
            taken, q = log_probs[np.arange(len(actions)), actions], found["q"][:, agent, :, i][alive].astype(np.float64)
            entropy = -(np.exp(log_probs) * log_probs).sum(axis=1)
            ratio = np.exp(taken - found["episodes"].log_probs[:, agent, :, i][alive])
            scores += (q * taken + 0.5 * entropy).sum() / EPISODES
            clipped += np.minimum(ratio * q, np.clip(ratio, 0.8, 1.2) * q).sum() / EPISODES
        return np.array([scores, clipped])

    agent = 1
    expected = differences(lambda theta: objectives(theta, agent)[0], found["theta"][agent].astype(np.float64))
    np.testing.assert_allclose(found["gradient"][agent], expected, rtol=2e-4, atol=2e-4)
    expected = differences(lambda theta: objectives(theta, agent)[1], found["other"][agent].astype(np.float64))
    np.testing.assert_allclose(found["clipped"][agent], expected, rtol=2e-4, atol=2e-4)
    recurrent = np.asarray(POLICY.unravel(found["gradient"][agent])["core"]["params"]["GRU_0"]["recurrent"])
    assert np.abs(recurrent).min() > 1e-4, "no gradient comes back through time"


@platforms
def test_importance_weights_are_ratios_of_whole_episodes(platform):
    found = computed(platform)
    for agent in range(AGENTS):
        for observations, actions, alive, i in episodes_of(found["episodes"], agent):
            taken = followed(found["other"][agent], observations)[1][np.arange(len(actions)), actions]
            ratio = np.exp((taken - found["episodes"].log_probs[:, agent, :, i][alive]).sum())
            np.testing.assert_allclose(found["weights"][agent, i], ratio, rtol=1e-3)


@platforms
def test_derivatives_along_a_direction(platform):
    """What reward poisoning and Res-NHARPG need: forward mode, and forward mode over backpropagation through time."""
    found = computed(platform)
    agent, theta = 1, found["theta"][1].astype(np.float64)
    u = found["direction"][agent].astype(np.float64)
    discounts = ESTIMATOR.gamma ** np.arange(HORIZON)
    batch = list(episodes_of(found["episodes"], agent))

    def taken(theta, observations, actions):
        return followed(theta, observations)[1][np.arange(len(actions)), actions]

    slopes = []
    for observations, actions, alive, i in batch:
        slope = differences(lambda step, o=observations, a=actions: taken(theta + step[0] * u, o, a), np.zeros(1))[0]
        np.testing.assert_allclose(found["along"][:, agent, :, i][alive], slope, rtol=1e-3, atol=1e-4)
        slopes.append(slope.sum())

    def to_go(length):  # rewards are 1
        return np.array([discounts[t:length].sum() for t in range(length)])

    def objective(theta, weights=(1.0,) * EPISODES):
        sums = ((to_go(len(a)) * taken(theta, o, a)).sum() for o, a, _, _ in batch)
        return sum(weight * each for weight, each in zip(weights, sums, strict=True)) / EPISODES

    entries = np.argsort(-np.abs(found["hessian"][agent]))[:6]
    for entry in entries:
        e, h = np.eye(len(theta))[entry], 1e-4
        first = (objective(theta + h * e, slopes) - objective(theta - h * e, slopes)) / (2 * h)
        corners = [objective(theta + h * (a * e + b * u)) * a * b for a in (1, -1) for b in (1, -1)]
        np.testing.assert_allclose(found["hessian"][agent, entry], first + sum(corners) / (4 * h * h), rtol=5e-3)


@platforms
def test_critics_see_what_the_policy_remembers(platform):
    """Also after the last step of an episode, where the value of the rest is asked for."""
    found = computed(platform)
    episodes, remembered = found["episodes"], found["remembered"]
    for agent in range(AGENTS):
        for observations, _, alive, i in episodes_of(episodes, agent):
            last = episodes.final_observations[agent, :, i].astype(np.float64)
            features = followed(found["theta"][agent], [*observations, last])[0]
            seen = np.moveaxis(remembered.observations[:, agent, :, :, i], 1, 2)
            np.testing.assert_allclose(seen[alive], np.hstack([observations, features[:-1]]), atol=2e-5)
            assert not seen[~alive].any()
            np.testing.assert_allclose(remembered.final_observations[agent, :, i], [*last, *features[-1]], atol=2e-5)


def test_the_unit_is_that_of_flax():
    """With the same numbers in its kernels."""
    H, steps, lanes = 4, 5, 3
    ours, theirs = GRU(H, "lecun"), nn.GRUCell(H)
    x = jax.random.normal(KEY, (2, steps, lanes))
    tree = jax.jit(ours.init)(KEY, jnp.zeros((lanes, H)), x)
    own = tree["params"]
    x_gates, h_gates = (jnp.split(k, 3, axis=1) for k in (own["Layer_0"]["kernel"].T, own["recurrent"]))
    bias = jnp.split(own["Layer_0"]["bias"] + 0.3, 3)
    own = {**own, "Layer_0": {**own["Layer_0"], "bias": own["Layer_0"]["bias"] + 0.3}, "bias": own["bias"] - 0.2}
    flax = {f"i{g}": {"kernel": x_gates[i], "bias": bias[i]} for i, g in enumerate("rzn")}
    flax |= {f"h{g}": {"kernel": h_gates[i]} for i, g in enumerate("rzn")}
    flax["hn"]["bias"] = own["bias"]
    carry = expected = jnp.full((lanes, H), 0.5)
    last, features = jax.jit(ours.apply)({"params": own}, carry, x)
    step = jax.jit(theirs.apply)
    for t in range(steps):
        expected, _ = step({"params": flax}, expected, x[:, t].T)
        np.testing.assert_allclose(features[:, t].T, expected, atol=1e-6)
    np.testing.assert_array_equal(last, features[:, -1].T)
    gates = np.stack(h_gates)
    np.testing.assert_allclose(gates @ gates.swapaxes(1, 2), np.stack([np.eye(H)] * 3), atol=1e-5)


def test_members_of_an_ensemble_remember_for_themselves():
    together = voting(POLICY, ENVIRONMENT.actions, 2)
    theta = jax.vmap(POLICY.init)(jax.random.split(KEY, 2))
    observations = jax.random.normal(KEY, (2, 4, 3))
    tree, carry = together.unravel(theta.ravel()), initial_carry(together, 3)
    carry, distributions = jax.jit(together.recurrence.unroll)(tree, carry, observations)
    alone = jax.jit(POLICY.recurrence.unroll)
    for member in range(2):
        own, expected = alone(POLICY.unravel(theta[member]), initial_carry(POLICY, 3), observations)
        np.testing.assert_allclose(distributions[2 * member : 2 * member + 2], expected, atol=1e-6)
        np.testing.assert_allclose(carry[:, member], own, atol=1e-6)


def test_a_policy_with_a_memory_is_not_mistaken_for_one_without():
    with pytest.raises(jb.UsageError, match=r"depend on earlier observations: use policy\.recurrence\.unroll"):
        POLICY.apply(None, jnp.zeros((2, 1)))
    with pytest.raises(jb.UsageError, match="the last that of the GRU"):
        gru_policy(ENVIRONMENT, ())
