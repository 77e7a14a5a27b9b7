"""Agents with environments of their own: the right parameters reach the right agent, in one program."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz.algorithms.agents import run_key
from jaxbyz.cli import main
from jaxbyz.environments import adapt, agent_params, environments, heterogeneous
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.estimators import Estimator, estimate
from jaxbyz.sampling.rollout import collect

ENV, POLICY, KEY = tabular.environment(), tabular.policy(), jax.random.key(0)
OFFLINE = {"MNISTBandit-bsuite"}  # downloads its data
SETTINGS = {"agents": 4, "byzantine": 1, "aggregator": "rfa", "optimizer": optax.sgd(0.1)}
SETTINGS |= {"N": 6, "B": 2, "gamma": 0.9, "horizon": tabular.HORIZON}


EVERYDAY = {"Acrobot-v1", "Pendulum-v1", "FourRooms-misc"}
ENVIRONMENTS = [
    pytest.param(entry.name, marks=() if entry.name in EVERYDAY else pytest.mark.slow)
    for entry in environments
    if entry.name not in OFFLINE
]


def numbers(environment):
    """Parameters of the environment that are finite numbers other than zero."""
    values = {name: np.asarray(value) for name, value in vars(environment.params).items()}
    found = {name: value for name, value in values.items() if value.dtype.kind in "iuf"}
    return [name for name, value in found.items() if value.any() and np.isfinite(value).all()]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_agents_of_every_environment_can_differ_in_every_number(name):
    """Shapes only."""
    nominal = jb.make_environment(name)
    spread = dict.fromkeys(numbers(nominal), 0.05)
    environment = heterogeneous(nominal, 2, spread=spread)

    def run(run_key):
        policy, own = jb.mlp_policy(environment, (4,)), agent_params(environment, run_key, 2)
        with jax.numpy_rank_promotion("allow"):  # gymnax's own code
            return collect(environment, policy, jnp.zeros((2, policy.size)), jax.random.split(KEY, 2), 3, 20, own=own)

    shapes = jax.eval_shape(run, KEY)
    assert shapes.rewards.shape[1::2] == (2, 3)
    own = jax.device_get(agent_params(environment, KEY, 2))
    assert own.keys() == spread.keys()
    for field, values in own.items():
        centre = np.asarray(getattr(nominal.params, field), np.float64)
        half = 0.0 if values.dtype == jnp.float32 else 0.5
        assert np.all(np.abs(values - centre[None]) <= 0.0501 * np.abs(centre) + half)


CARTPOLE = jb.make_environment("CartPole-v1")
OWN_VALUES = {"gravity": [5.0, 9.8, 15.0], "masspole": [0.05, 0.1, 0.5], "length": [0.3, 0.5, 0.9]}


def cartpole_episodes(environment, own=None):
    """Episodes of three agents."""
    policy, keys = jb.mlp_policy(CARTPOLE, (4,)), jax.random.split(KEY, 3)
    return collect(environment, policy, jax.vmap(policy.init)(keys), keys, 4, 40, own=own)


def test_every_agent_has_its_own_parameters_and_those_that_follow_from_them():
    """The episodes of agent i are those of an environment that has the same parameters for everyone."""
    environment = heterogeneous(CARTPOLE, 3, values=OWN_VALUES)
    run_together = jax.jit(lambda key: cartpole_episodes(environment, agent_params(environment, key, 3)))
    together = jax.device_get(run_together(KEY))
    run_alone = jax.jit(lambda params: cartpole_episodes(adapt(CARTPOLE.raw, params)))
    for i in range(3):
        own = {field: column[i] for field, column in OWN_VALUES.items()}
        alone = jb.make_environment("CartPole-v1", **own)
        assert np.isclose(alone.params.total_mass, 1.0 + own["masspole"])
        assert np.isclose(alone.params.polemass_length, own["masspole"] * own["length"])
        expected = jax.device_get(run_alone(alone.params))
        np.testing.assert_array_equal(together.alive[:, i], expected.alive[:, i])
        np.testing.assert_allclose(together.rewards[:, i], expected.rewards[:, i])
        np.testing.assert_allclose(together.observations[:, i], expected.observations[:, i], atol=1e-5)
    assert len(set(together.rewards.sum(axis=(0, 2, 3)).tolist())) > 1


def test_estimates_are_those_of_the_own_mdp():
    """The mean of 4000 trajectories per agent against the exact gradient of the agent's own tables."""
    rng = np.random.default_rng(0)
    reward = np.asarray(rng.uniform(-2, 2, size=(3, *tabular.REWARD.shape)), np.float32)
    transition = rng.dirichlet(np.ones(tabular.STATES + 1), size=(3, tabular.STATES, tabular.ACTIONS)).astype(
        np.float32
    )
    estimator = Estimator(gamma=tabular.GAMMA, horizon=tabular.HORIZON)

    @jax.jit
    def run(own):
        theta = POLICY.init(KEY)
        everyone = jnp.tile(theta, (3, 1))
        episodes = collect(ENV, POLICY, everyone, jax.random.split(KEY, 3), 4000, tabular.HORIZON, own=own)
        exact = jax.vmap(lambda own: jax.grad(tabular.value)(theta, own=own))(own)
        return estimate(estimator, POLICY, everyone, episodes), exact

    found, exact = jax.device_get(run({"reward": reward, "transition": transition}))
    assert np.linalg.norm(exact[0] - exact[1]) > 0.3
    np.testing.assert_allclose(found, exact, atol=0.15)


@pytest.mark.slow
def test_the_seed_decides_and_the_server_samples_the_nominal_environment():
    """No worker earns a reward in its own environment; ByzPG's server, which samples small batches alone, does."""
    values = {"reward": np.zeros((4, *tabular.REWARD.shape)), "transition": np.tile(tabular.TRANSITION, (4, 1, 1, 1))}
    environment = heterogeneous(ENV, 4, values=values)
    algorithm = jb.byzpg(environment, POLICY, **SETTINGS)
    step, state = jax.jit(algorithm.step), algorithm.init(KEY)
    state, large = step(state, jnp.bool_(True))
    _, small = step(state, jnp.bool_(False))
    assert float(large.returns) == 0 and float(large.return_spread) == 0 and abs(float(small.returns)) > 0.1

    environment = heterogeneous(ENV, 4, spread={"reward": 0.5})
    one, again, other = (agent_params(environment, run_key(jax.random.key(seed)), 4) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one["reward"], again["reward"])
    assert np.abs(np.asarray(one["reward"] - other["reward"])).max() > 0.1
    assert np.ptp(one["reward"], axis=0).min() > 0


@pytest.mark.slow
def test_seeds_differ_in_one_program_and_equal_parameters_are_the_nominal_run():
    with pytest.raises(jb.UsageError, match="reward has 4 values for agents=5"):
        agent_params(heterogeneous(ENV, 4, spread={"reward": 0.9}), KEY, 5)

    def first(environment):
        algorithm = jb.decbyzpg(environment, POLICY, agreement=None, **{**SETTINGS, "agents": 5, "p": 1.0})
        step = jax.jit(jax.vmap(algorithm.step, in_axes=(0, None)))
        for seed in (0, 1):
            found = step(jax.vmap(algorithm.init)(jax.random.split(jax.random.key(seed), 2)), jnp.bool_(True))
        assert step._cache_size() == 1
        return found

    nominal = first(ENV)
    same = first(heterogeneous(ENV, 5, values={"reward": np.tile(tabular.REWARD, (5, 1, 1))}))
    np.testing.assert_allclose(nominal[0].parameters, same[0].parameters, rtol=1e-6)
    wide = first(heterogeneous(ENV, 5, spread={"reward": 0.9}))
    assert float(jnp.min(jnp.abs(wide[1].returns - nominal[1].returns))) > 1e-3
    assert heterogeneous(ENV, 5, spread={"reward": 0.0}) is ENV  # spread 0 is the same program


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_spread": "gravitas=0.2"}, "parameter='gravitas' is unknown; did you mean 'gravity'"),
        ({"env_spread": "gravity=-0.2"}, "env_spread='gravity=-0.2': must be name=spread"),
        ({"env_spread": "gravity"}, "env_spread='gravity': must be name=spread"),
        ({"env_param": "9.8"}, "env_param='9.8': must be name=value"),
        ({"env_param": "gravitas=9.8"}, "parameter='gravitas' is unknown"),
        ({"env_param": "gravity=abc"}, "gravity=abc is not a number"),
        ({"env": "LunarLander-v3", "env_spread": "gravity=0.5"}, "gravity=-15.0 must lie between -12 and 0"),
        ({"env": "LunarLander-v3", "env_spread": "enable_wind=0.5"}, "enable_wind is False, which is not a number"),
        ({"env": "MountainCar-v0", "env_spread": "goal_velocity=0.1"}, "goal_velocity is 0, and a spread is relative"),
        ({"env_agents": {"gravity": [1.0, 2.0]}}, "gravity has 2 values; it must have one number per agent, 13"),
        ({"env_agents": "nowhere.json"}, "env_agents='nowhere.json': the file cannot be read"),
        ({"env_agents": "{"}, "env_agents='{': not JSON"),
        ({"env_agents": '{"gravity": 3}'}, "one value per agent"),
        ({"env_agents": {"gravity": [9.8] * 13}, "env_spread": "gravity=0.1"}, "both give 'gravity'"),
    ],
)
def test_bad_values_end_in_one_line(options, message):
    with pytest.raises(jb.UsageError) as caught:
        jb.build(jb.resolve(**options))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_values_of_the_wrong_kind_are_refused():
    cartpole = jb.make_environment("CartPole-v1")
    with pytest.raises(jb.UsageError, match="env_spread=gravity=abc: must be a number"):
        heterogeneous(cartpole, 3, spread={"gravity": "abc"})
    with pytest.raises(jb.UsageError, match="env_agents: must be a table of parameters, not list"):
        heterogeneous(cartpole, 3, values=[1, 2, 3])


@pytest.mark.slow
def test_the_command_line_reads_a_file_and_evaluates_agents_in_their_own_environments(tmp_path, capsys):
    values = [{"gravity": 9.8 + i} for i in range(3)]
    (tmp_path / "agents.json").write_text(json.dumps(values))
    small = ["--agents=3", "--trajectories=4", "--N=4", "--B=2", "--horizon=20", "--hidden=4", "--quiet"]
    given = [f"--env-agents={tmp_path / 'agents.json'}", "--env-param=length=0.4", "--env-param=tau=0.03"]
    assert main(["train", *small, *given, "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "agents.json").unlink()  # the run folder holds its contents
    data = jb.load_run(tmp_path / "run")
    assert json.loads(data.config.env_agents) == {"gravity": [9.8, 10.8, 11.8]}
    assert data.config.env_param == "length=0.4,tau=0.03"
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--own", "--episodes=3", "--json"]) == 0
    assert np.shape(json.loads(capsys.readouterr().out)["return"]["agents"]) == (1, 3)
