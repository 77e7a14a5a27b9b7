"""Exported policies in onnxruntime: the actions and distributions are those of the run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.policies import ACTIVATIONS
from jaxbyz.runs.run import Experiment

pytestmark = pytest.mark.live
runtime = pytest.importorskip("onnxruntime")

TASKS = {
    "discrete": {"env": "CartPole-v1", "hidden": (16, 8), "output_scale": 3.0},
    "scaled": {"env": "CartPole-v1", "env_param": "scale=true", "hidden": (8,), "initialiser": "orthogonal"},
    "options in the name": {"env": "CartPole-v1", "policy": "mlp:output_activation=identity,hidden=5x4"},
    "continuous": {"env": "Pendulum-v1", "hidden": (8,), "output_scale": 9.0, "initial_std": 0.2},
    "deviation of the state": {"env": "Pendulum-v1", "hidden": (8,), "deviation": "state"},
    "several dimensions": {"env": "HalfCheetah-v5", "hidden": (8,), "deviation": "state"},
    "images": {"env": "Breakout-MinAtar", "policy": "cnn:channels=5,kernel=3", "hidden": (7,)},
    "two convolutions": {
        "env": "SpaceInvaders-MinAtar",
        "policy": "cnn:channels=4x6,kernel=2,stride=2",
        "hidden": (7, 5),
    },
    **{name: {"env": "CartPole-v1", "hidden": (8, 8), "activation": name} for name in ACTIVATIONS},
}


@pytest.mark.parametrize("name", TASKS)
def test_onnxruntime_computes_the_policy(name, tmp_path):
    config = jb.resolve(agents=1, **TASKS[name])
    task = jb.build(config)
    theta = np.random.default_rng(1).normal(size=task.policy.size, scale=0.5).astype(np.float32)
    run = Experiment(config, {}, {"last": theta[None, None]}, True)
    session = runtime.InferenceSession(run.export(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
    exported = jax.export.deserialize(bytearray(run.export(tmp_path / "p.jax").read_bytes()))
    shape = jb.make_environment(config.env).observation_shape
    for batch in (1, 64):
        seen = np.random.default_rng(batch).normal(size=(batch, *shape), scale=2.0).astype(np.float32)
        actions, distribution = session.run(None, {"observations": seen})
        expected = run.act(seen)
        assert actions.shape == expected.shape
        np.testing.assert_allclose(distribution, exported.call(seen)[1], rtol=1e-5, atol=1e-5)
        clear = np.ones(batch, bool)
        if actions.dtype == np.int64:  # equal probabilities are rounded differently
            best = np.sort(distribution, axis=1)
            clear = best[:, -1] - best[:, -2] > 1e-5
        np.testing.assert_allclose(actions[clear], expected[clear], rtol=0, atol=1e-5)
        assert clear.mean() > 0.9
    schema = json.loads(session.get_modelmeta().custom_metadata_map["schema"])
    assert schema["environment"] == config.env and schema["observation_shape"] == list(shape)


@pytest.mark.parametrize(
    "options",
    [
        {"env": "CartPoleNoVelocity-v1", "hidden": (5,)},
        {"env": "CartPole-v1", "env_param": "scale=true", "hidden": (6, 3, 4), "activation": "relu"},
        {"env": "PendulumNoVelocity-v1", "hidden": (3, 4), "output_scale": 2.0},
    ],
)
def test_onnxruntime_remembers(options, tmp_path):
    """Ten steps of several episodes with the carry that the graph returns."""
    config = jb.resolve(agents=1, policy="gru", **options)
    theta = np.random.default_rng(1).normal(size=jb.build(config).policy.size, scale=0.7).astype(np.float32)
    run = Experiment(config, {}, {"last": theta[None, None]}, True)
    session = runtime.InferenceSession(run.export(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
    exported = jax.export.deserialize(bytearray(run.export(tmp_path / "p.jax").read_bytes()))
    carry = expected_carry = np.zeros((7, config.hidden[-1]), np.float32)
    for seen in np.random.default_rng(2).normal(size=(10, 7, jb.make_environment(config.env).observation_size)):
        seen = seen.astype(np.float32)
        actions, distribution, carry = session.run(None, {"observations": seen, "carry": carry})
        expected, expected_distribution, expected_carry = exported.call(seen, expected_carry)
        np.testing.assert_allclose(distribution, expected_distribution, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(carry, expected_carry, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    assert np.abs(carry).max() > 0.1


def test_a_program_without_jaxbyz_draws_actions(tmp_path):
    """Actions are drawn from the distribution: those of a policy that prefers one action are mostly that one."""
    config = jb.resolve(agents=1, env="CartPole-v1", hidden=(4,))
    theta = np.random.default_rng(2).normal(size=jb.build(config).policy.size).astype(np.float32)
    run = Experiment(config, {}, {"last": theta[None, None]}, True)
    session = runtime.InferenceSession(run.export(tmp_path / "p.onnx"))
    seen = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32)
    logits = np.repeat(session.run(["distribution"], {"observations": seen})[0], 4000, axis=0)
    drawn = (logits + np.random.default_rng(1).gumbel(size=logits.shape)).argmax(axis=1)
    act = jax.vmap(run.policy_function(), (None, 0))
    of_the_run = np.asarray(act(seen[0], jax.random.split(jax.random.key(0), 4000)))
    assert abs(drawn.mean() - of_the_run.mean()) < 4 * np.sqrt(0.5 / 4000)


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "after_training.md").read_text()
    blocks = re.findall(r'^```python(?: title="needs onnx")?\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    example = next(block for block in blocks if "onnxruntime" in block)
    exec(blocks[0] + example, {})
