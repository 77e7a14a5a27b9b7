"""Using a trained policy: actions, the pure function, files and tables agree with each other and with NumPy."""

from __future__ import annotations

import functools
import json
import struct
import sys

import gymnasium
import jax
import numpy as np
import pytest
from run_folders import made_metrics

import jaxbyz as jb
from jaxbyz.cli import main
from jaxbyz.components import make_policy
from jaxbyz.policies import policies
from jaxbyz.runs.run import Experiment
from jaxbyz.runs.run_folder import write_results, write_start
from jaxbyz.trained.export import named_arrays

CONFIG = jb.resolve(agents=5, byzantine=1, attack="avg-zero", N=4, B=2, p=0.5, kappa="2", horizon=20, hidden=(4,),
                    trajectories=12, seeds=3)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run with random policies, which was never trained; the last agent is Byzantine."""
    out = tmp_path_factory.mktemp("runs") / "one"
    out.mkdir()
    write_start(out, CONFIG)
    metrics = made_metrics(CONFIG, iterations=3)
    metrics["byzantine"][..., -1] = True
    chance, shape = np.random.default_rng(1), (CONFIG.seeds, CONFIG.agents, policy_of(CONFIG).size)
    policies = {name: chance.normal(size=shape).astype(np.float32) for name in ("last", "sampled", "best")}
    write_results(out, metrics, policies)
    return out


@pytest.fixture(scope="module")
def run(folder):
    return jb.load_run(folder)


@functools.cache
def policy_of(config):
    return jb.build(config).policy


def untrained(**options) -> Experiment:
    """A run of one seed and agent with random parameters."""
    config = jb.resolve(agents=1, **options)
    policy = policy_of(config)
    theta = np.asarray(jax.jit(policy.init)(jax.random.key(3)))
    return Experiment(config, {}, {"last": theta[None, None]}, True)


def probabilities(arrays: dict, schema: dict, observations: np.ndarray) -> np.ndarray:
    """The action probabilities of an exported perceptron, in float64, from nothing but the file."""
    assert schema["policy"] == "mlp" and schema["options"]["activation"] == "tanh"
    x = observations.astype(np.float64).T
    for layer in range(len(schema["options"]["hidden"]) + 1):
        names = [f"params/Layer_{layer}/{part}" for part in ("kernel", "bias")]
        kernel, bias = (arrays[name].astype(np.float64) for name in names)
        x = np.tanh(kernel @ x + bias[:, None])
    scores = np.exp(schema["options"]["output_scale"] * x.T)
    return scores / scores.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def observations():
    return np.random.default_rng(0).normal(size=(40, 4))


def test_actions_are_those_of_the_exported_arrays(run, tmp_path, observations):
    with np.load(run.export(tmp_path / "deep" / "policy.npz", run_seed=2, agent=1)) as file:
        arrays, schema = {name: file[name] for name in file.files}, json.loads(str(file["schema"]))
    assert schema["observation_shape"] == [4] and schema["actions"] == {"discrete": True, "n": 2}
    expected = probabilities(arrays, schema, observations)
    chosen = run.act(observations, run_seed=2, agent=1)
    np.testing.assert_array_equal(chosen, expected.argmax(axis=1))
    assert len(set(chosen)) == 2, "the test needs observations with different actions"
    np.testing.assert_array_equal(run.act(observations.reshape(8, 5, 4), run_seed=2, agent=1), chosen.reshape(8, 5))
    one = run.act(observations[0], run_seed=2, agent=1)
    assert type(one) is int and one == chosen[0]


def test_drawn_actions_have_the_probabilities_of_the_policy(run, tmp_path, observations):
    with np.load(run.export(tmp_path / "policy.npz")) as file:
        expected = probabilities(dict(file), json.loads(str(file["schema"])), observations[:3])[:, 1]
    act, draws = run.policy_function(), 4000
    key, seen = jax.random.key(0), observations[:3].astype(np.float32)
    drawn = np.asarray(
        jax.jit(lambda seen, key: jax.vmap(act, in_axes=(None, 0))(seen, jax.random.split(key, draws)))(seen, key)
    )
    deviation = np.sqrt(expected * (1 - expected) / draws)
    assert np.all(np.abs(drawn.mean(axis=0) - expected) < 4 * deviation)
    assert run.act(observations[0], key) == int(jax.jit(act)(observations[0], key))


def test_the_exported_function_takes_any_batch(run, tmp_path, observations):
    path = run.export(tmp_path / "policy.jax", run_seed=2, agent=1)
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    assert {"cpu", "cuda", "tpu"} <= set(exported.platforms)
    with np.load(run.export(tmp_path / "policy.npz", run_seed=2, agent=1)) as file:
        expected = probabilities(dict(file), json.loads(str(file["schema"])), observations)
    for batch in (1, 40):
        actions, distribution = exported.call(observations[:batch].astype(np.float32))
        np.testing.assert_array_equal(actions, run.act(observations[:batch], run_seed=2, agent=1))
        np.testing.assert_allclose(np.exp(distribution), expected[:batch], rtol=1e-4)


@pytest.mark.parametrize("name", policies.names())
def test_exported_arrays_are_in_the_order_of_the_parameters(name):
    """A run that starts from such a file joins them again."""
    policy = make_policy(name, jb.make_environment("Breakout-MinAtar"), {"hidden": (3, 2)})
    numbers = np.arange(policy.size, dtype=np.float32)
    arrays = named_arrays(policy.unravel(jax.numpy.asarray(numbers)))
    np.testing.assert_array_equal(np.concatenate([np.ravel(values) for values in arrays.values()]), numbers)


def test_safetensors_hold_the_same_arrays(run, tmp_path):
    raw = run.export(tmp_path / "policy.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    assert length % 8 == 0
    with np.load(run.export(tmp_path / "policy.npz")) as file:
        assert header.pop("__metadata__") == {"schema": str(file["schema"])}
        assert set(header) == set(file.files) - {"schema"}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            assert entry["dtype"] == "F32"
            values = np.frombuffer(body[first:last], "<f4").reshape(entry["shape"])
            np.testing.assert_array_equal(values, file[name])
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(body)


def test_the_exported_network_for_images_and_continuous_actions(tmp_path):
    for run in (
        untrained(env="Breakout-MinAtar", policy="cnn:channels=2", hidden=(3,)),
        untrained(env="Pendulum-v1", hidden=(3,), output_scale=9.0),
    ):
        shape = jb.make_environment(run.config.env).observation_shape
        seen = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
        exported = jax.export.deserialize(bytearray(run.export(tmp_path / "p.jax").read_bytes()))
        actions = run.act(seen)
        np.testing.assert_allclose(exported.call(seen)[0], actions, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(run.act(seen.reshape(6, -1)), actions)
        if run.config.env == "Pendulum-v1":
            assert actions.shape == (6, 1) and np.abs(actions).max() == 2.0  # clipped to the bounds
            assert run.act(seen[0], jax.random.key(0)).shape == (1,)


def test_a_policy_scales_observations_as_its_environment_did(tmp_path):
    """With `scale`, the policy takes observations as gymnasium gives them."""
    run = untrained(env_param="scale=true", hidden=(3,))
    raw, scaled = jb.make_environment("CartPole-v1"), jb.make_environment("CartPole-v1", scale=True)
    policy = policy_of(run.config)

    @jax.jit
    def observe(theta):
        keys = jax.random.split(jax.random.key(0), 64)
        before, after = (jax.vmap(lambda key, e=e: e.reset(key)[0])(keys) for e in (raw, scaled))
        return before, after, policy.apply(policy.unravel(theta), after.T).argmax(axis=0)

    before, after, expected = jax.device_get(observe(run.parameters()))
    assert len(set(expected.tolist())) == 2
    np.testing.assert_array_equal(run.act(before), expected)
    exported = jax.export.deserialize(bytearray(run.export(tmp_path / "p.jax").read_bytes()))
    np.testing.assert_array_equal(exported.call(before)[0], expected)
    with np.load(run.export(tmp_path / "p.npz")) as file:
        scales = json.loads(str(file["schema"]))["observation_scales"]
    mean, deviation = np.array(scales["mean"]), np.array(scales["deviation"])
    np.testing.assert_allclose(np.clip((before - mean) / deviation, -10, 10), after, atol=1e-5)


def test_a_policy_plays_in_gymnasium(run):
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        action = run.act(observation)
        assert env.action_space.contains(action)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break


def test_the_table_has_one_row_per_seed_and_iteration(run, monkeypatch):
    table = run.frame()
    T = run.metrics["returns"].shape[1]
    assert len(table) == 3 * T and list(table.columns[:3]) == ["seed", "iteration", "trajectories"]
    row = table[(table.seed == 1) & (table.iteration == 2)].iloc[0]
    for name in ("returns", "diameter", "trajectories"):
        assert row[name] == run.metrics[name][1, 1]
    agents = run.frame(per_agent=True)
    assert len(agents) == 3 * T * 5
    row = agents[(agents.seed == 2) & (agents.iteration == T) & (agents.agent == 4)].iloc[0]
    assert row.share == run.metrics["shares"][2, -1, 4] and bool(row.byzantine)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert {name: list(values) for name, values in run.frame().items()} == table.to_dict("list")


def test_wrong_observations_and_selections_are_refused(run, tmp_path):
    for call, message in (
        (lambda: run.act(np.zeros(3)), r"observation of shape \[3\]: CartPole-v1 has observations \[4\]"),
        (lambda: run.act(np.zeros((4, 2))), r"many as \[…, 4\]"),
        (lambda: run.act(np.zeros(4), agent=5), "agent=5: must be from 0 to 4"),
        (lambda: run.policy_function(run_seed=-1), "run_seed=-1: must be from 0 to 2"),
        (lambda: run.parameters(output="first"), "output='first' is unknown"),
        (lambda: run.export(tmp_path / "policy.pt"), "must end in .npz, .safetensors, .onnx or .jax"),
        (lambda: run._replace(policy={}).act(np.zeros(4)), "no policy was saved"),
        (lambda: untrained(hidden=(3,))._replace(config=CONFIG).parameters(), "do not fit a policy of size"),
    ):
        with pytest.raises(jb.UsageError, match=message):
            call()
    lost = run._replace(policy={name: np.full_like(values, np.nan) for name, values in run.policy.items()})
    with pytest.raises(jb.UsageError, match="has no finite policy"):
        lost.act(np.zeros(4))


def test_what_onnx_cannot_express_is_refused_in_one_line(run, tmp_path, monkeypatch, registries_restored):
    jb.policies.policies.add("other", jb.mlp_policy)
    monkeypatch.setitem(sys.modules, "onnx", None)  # not installed
    other = untrained(policy="other", hidden=(3,))
    for own, told in (
        (other, r"policy=other: only mlp, cnn and gru .*ends in \.jax"),
        (run, r"install 'jaxbyz\[onnx\]'"),
    ):
        with pytest.raises(jb.UsageError, match=told):
            own.export(tmp_path / "p.onnx")


def test_the_command_exports(folder, tmp_path, capsys):
    out = str(tmp_path / "p.npz")
    assert main(["export", str(folder), "--out", out, "--agent", "1", "--run-seed", "2", "--output", "best"]) == 0
    assert capsys.readouterr().out.strip() == out
    expected = jb.load_run(folder).parameters(run_seed=2, agent=1, output="best")
    with np.load(out) as file:
        assert sum(values.size for name, values in file.items() if name != "schema") == expected.size
    assert main(["export", str(folder), "--out", "p.pt"]) == 2
