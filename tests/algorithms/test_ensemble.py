"""Policies from disjoint groups: the vote, its training, and what a run does with it afterwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz.algorithms import algorithms, ensemble
from jaxbyz.cli.evaluate import policy_owner
from jaxbyz.configuration.building import build, family_of, numbers_of
from jaxbyz.policies import most_likely, voting
from jaxbyz.policies.voting import geometric_median, majority
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.trained.evaluation import evaluate

ENV, POLICY, KEY = tabular.environment(), tabular.policy(), jax.random.key(0)
PAGE = {"N": 6, "B": 2, "gamma": tabular.GAMMA, "horizon": tabular.HORIZON}


def test_majority_against_counting():
    chosen = np.random.default_rng(0).integers(0, 4, (5, 200))
    counts = np.stack([(chosen == a).sum(axis=0) for a in range(4)])
    found = jax.jit(majority, static_argnums=1)(chosen, 4)
    np.testing.assert_array_equal(found, counts.argmax(axis=0))  # the lowest of equals


def test_geometric_median_against_a_longer_search_in_float64():
    chosen = np.random.default_rng(1).normal(size=(5, 3, 20))
    found = np.asarray(jax.jit(geometric_median)(chosen.astype(np.float32)), np.float64)
    cost = lambda z: np.linalg.norm(chosen - z, axis=1).sum(axis=0)  # noqa: E731
    z = chosen.mean(axis=0)
    for _ in range(2000):  # Weiszfeld, from another point and far longer
        weight = 1 / np.maximum(np.linalg.norm(chosen - z, axis=1, keepdims=True), 1e-14)
        z = (weight * chosen).sum(axis=0) / weight.sum(axis=0)
    best = np.min([cost(z), *map(cost, chosen)], axis=0)
    assert best.shape == (20,) and (cost(found) <= best * (1 + 1e-4)).all()
    alone = np.random.default_rng(2).normal(size=(5, 1, 20)).astype(np.float32)
    np.testing.assert_allclose(jax.jit(geometric_median)(alone), np.median(alone, axis=0), atol=1e-4)


def test_one_liar_does_not_change_a_unanimous_vote():
    """A member that is certain of another action has no influence; members draw their own actions."""
    joint = voting(POLICY, ENV.actions, 3)

    @jax.jit
    def votes():
        sure = 50 * POLICY.init(KEY)
        observations = jnp.eye(ENV.observation_size)
        distribution = joint.apply(
            joint.unravel(jnp.concatenate([sure, sure, -50 * jnp.ones(POLICY.size)])), observations
        )
        alone = POLICY.apply(POLICY.unravel(sure), observations)
        drawn = joint.noise(KEY, 2, observations.shape[1])
        expected, found = most_likely(POLICY, alone, ENV.actions), most_likely(joint, distribution, ENV.actions)
        return expected, found, drawn, joint.sample(distribution, drawn[0])

    expected, found, drawn, sampled = map(np.asarray, votes())
    np.testing.assert_array_equal(found, expected)
    one = jax.eval_shape(lambda: POLICY.noise(KEY, 1, 1))
    assert drawn.shape[1] == 3 * one.shape[1] and np.ptp(drawn[0], axis=0).min() > 0
    assert sampled.shape == expected.shape and joint.size == 3 * POLICY.size


def test_continuous_actions_are_voted_on_too():
    """With one dimension and three members, the result is the member in the middle, drawn or most likely."""
    environment = jb.make_environment("Pendulum-v1")
    member = jb.mlp_policy(environment, (3,))
    joint = voting(member, environment.actions, 3)
    observations = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)

    @jax.jit
    def votes(observations):
        theta, noise = joint.init(jax.random.key(1)), joint.noise(KEY, 1, 7)[0]
        distribution = joint.apply(joint.unravel(theta), observations)
        each = [member.apply(member.unravel(part), observations) for part in theta.reshape(3, -1)]
        drawn = [member.sample(own, z) for own, z in zip(each, noise.reshape(3, 1, 7), strict=True)]
        likely = [most_likely(member, own, environment.actions) for own in each]
        return (
            (joint.sample(distribution, noise), jnp.stack(drawn)),
            (most_likely(joint, distribution, environment.actions), jnp.stack(likely)),
        )

    for vote, of_each in votes(observations):
        np.testing.assert_allclose(vote, np.median(of_each, axis=0), rtol=1e-4, atol=1e-4)
    far = np.array([[0.1, 0.2], [0.11, 0.2], [1e6, -1e6]], np.float32)[:, :, None]  # one member is far away
    assert np.abs(np.asarray(jax.jit(geometric_median)(far))[:, 0] - [0.1, 0.2]).max() < 0.02


def test_every_group_is_a_byzpg_of_its_own():
    """Each group's aggregate is the mean of its members, and groups do not influence each other."""
    options = {"agents": 5, "groups": 2, "aggregator": "mean", "optimizer": optax.sgd(0.1), **PAGE}
    algorithm = ensemble(ENV, POLICY, **options)
    step, D = jax.jit(algorithm.step), POLICY.size
    start = state = jax.jit(algorithm.init)(KEY)
    assert state.parameters.shape == (1, 2 * D) and not np.allclose(*np.asarray(state.parameters).reshape(2, D))
    for coin in (True, False):
        before = np.asarray(state.parameters).reshape(2, D)
        state, metrics = step(state, np.bool_(coin))
        moved = np.asarray(state.parameters).reshape(2, D) - before
        np.testing.assert_allclose(moved, 0.1 * np.asarray(state.estimate).reshape(2, D), rtol=1e-4, atol=1e-6)
        shares = np.asarray(metrics.shares)  # mean over receivers: three of group 0, two of group 1
        np.testing.assert_allclose(shares, np.array([3, 2, 3, 2, 3]) / 5 / np.array([3, 2, 3, 2, 3]), rtol=1e-5)
        assert float(metrics.diameter) == pytest.approx(np.linalg.norm(np.diff(moved + before, axis=0)), rel=1e-4)
    lying = ensemble(ENV, POLICY, **options, byzantine=1, attack="large-noise", p=1.0, unsafe=True)
    after, _ = jax.jit(lying.step)(jax.jit(lying.init)(KEY), np.bool_(True))
    clean, _ = step(start, np.bool_(True))  # agent 4, the liar, is in group 0
    after, clean = (np.asarray(now.parameters).reshape(2, D) for now in (after, clean))
    np.testing.assert_allclose(after[1], clean[1], rtol=1e-5)
    assert np.abs(after[0] - clean[0]).max() > 1
    assert step._cache_size() == 1


@pytest.mark.slow
def test_the_vote_survives_a_group_that_liars_control():
    """Groups that average: two of five hold a liar and are lost, the vote of all five is not."""
    options = dict(algorithm="ensemble", env="TabularMDP", agents=5, groups=5, byzantine=2, attack="large-noise")
    run = jb.run_experiment(preset="default", **options, aggregator="mean", p=1.0, N=40, eta=0.05, trajectories=4000)
    theta = run.policy["last"][0, 0]
    alone = np.tile(theta.reshape(5, -1), 5)  # five copies of one member in the place of all
    vote, *members = evaluate(run.config, np.concatenate([theta[None], alone]), 2000)["returns"].mean(axis=1)
    assert min(members) < 1.8 and vote > 2.7 and vote > np.mean(members)
    assert run.act(np.zeros(ENV.observation_size)) in range(ENV.actions.n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 7}, "groups=7 of agents=6"),
        ({"groups": 3, "byzantine": 2, "aggregator": "rfa"}, "too many for the rule in 2 of groups=3"),
        ({"aggregator": "fltrust", "groups": 2}, "do not sample"),
    ],
)
def test_bad_values_end_in_one_line(options, message):
    with pytest.raises(jb.UsageError, match=message):
        ensemble(ENV, POLICY, **{"agents": 6, "aggregator": "mean", "optimizer": optax.sgd(0.1), **options})


def test_a_policy_is_called_after_those_whose_parameters_it_has():
    owners = {name: policy_owner(jb.resolve(algorithm=name, groups=3), 2) for name in ("ensemble", "byzpg", "decbyzpg")}
    votes = "the 3 groups, whose policies vote on every action"
    assert owners == {"ensemble": votes, "byzpg": "the server", "decbyzpg": "agent 2"}


@pytest.mark.slow
def test_evaluate_and_export_use_the_vote(tmp_path, capsys):
    from jaxbyz.cli import main

    words = "--algorithm ensemble --agents 6 --groups 3 --trajectories 16 --N 4 --B 4 --hidden 4 --horizon 20 --quiet"
    assert main(["train", *words.split(), "--out", str(tmp_path / "run"), "--evaluate-every", "2"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "3", "--greedy"]) == 0
    assert "last parameters of the 3 groups, whose policies vote on every action, most" in capsys.readouterr().out
    run = jb.load_run(tmp_path / "run")
    assert run.act(np.zeros(4)) in (0, 1) and run.export(tmp_path / "policy.jax").exists()
    with pytest.raises(jb.UsageError, match="not one network"):
        run.export(tmp_path / "policy.npz")


def test_options_that_the_ensemble_does_not_read_do_not_limit_its_liars():
    assert (
        jb.resolve("default", algorithm="ensemble", agents=13, byzantine=4, groups=13, participation=0.3).byzantine == 4
    )


@pytest.mark.parametrize("name", [entry.name for entry in algorithms])
def test_a_run_with_its_numbers_as_inputs_trains_what_the_configuration_describes(name):
    """Not an ensemble of ensembles, whose votes have no gradients."""
    config = jb.resolve("default", algorithm=name, env="TabularMDP", agents=1 if name == "page-pg" else 6)
    described, varied = build(config), family_of(config).vary(numbers_of(config))
    assert varied.policy.size == described.policy.size
    assert jax.eval_shape(varied.init, KEY) == jax.eval_shape(described.init, KEY)
