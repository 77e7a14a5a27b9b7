"""Runs in environments of gymnasium: reproducible, resumed after a failure, evaluated and used."""

from __future__ import annotations

import contextlib

import gymnasium
import gymnasium_tasks  # noqa: F401
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.environments import EnvironmentFailure
from jaxbyz.runs.run import resume, run
from jaxbyz.trained.evaluation import evaluate, evaluate_agents

SMALL = {
    "env": "gymnasium:Walk-v0", "agents": 5, "byzantine": 1, "attack": "random-action", "aggregator": "krum",
    "N": 2, "p": 1.0, "trajectories": 50, "hidden": (4,), "baseline": "critic", "critic_hidden": (4,),
    "critic_steps": 2, "epochs": 2, "kappa": "2", "seeds": 2,
}  # fmt: skip
ITERATIONS = 25


@pytest.fixture(scope="module")
def whole():
    return jb.run_experiment(**SMALL)


def assert_equal(one, other):
    for part in ("metrics", "policy"):
        for name, values in getattr(one, part).items():
            if name not in ("seconds",):
                np.testing.assert_array_equal(values, getattr(other, part)[name], err_msg=name)


class Touching(contextlib.nullcontext):
    """A reporter that creates a file after every segment."""

    def update(self, progress):
        self.enter_result.touch()


def test_a_run_that_an_environment_ended_is_resumed_with_the_same_bits(whole, tmp_path):
    flag, message = (
        tmp_path / "flag",
        rf"agent \d failed in step of episode \d: .* resume {tmp_path}/run` continues from",
    )
    with pytest.raises(EnvironmentFailure, match=f"{message} iteration 20$"):
        run(jb.resolve(**SMALL, env_param=f"trouble=raise,once={flag}"), tmp_path / "run", Touching(flag))
    assert whole.metrics["returns"].shape == (2, ITERATIONS)
    assert_equal(resume(tmp_path / "run"), whole)


@pytest.mark.slow
def test_one_device_computes_what_two_compute(whole):
    alone = run(whole.config, mesh="seeds=1")
    for name, values in alone.policy.items():
        np.testing.assert_allclose(values, whole.policy[name], atol=1e-4)


def test_policies_are_evaluated_and_act(whole, tmp_path):
    assert np.isfinite(whole.metrics["returns"]).all()
    played = evaluate(whole.config, whole.policy["last"][:, 0], 8)
    assert played["returns"].shape == (2, 8) and (played["length"] <= 20).all()
    assert evaluate_agents(whole.config, whole.policy["last"], 3)["length"].shape == (2, 5, 3)
    env = gymnasium.make("Walk-v0")
    observation, _ = env.reset(seed=0)
    assert whole.act(observation) in (0, 1)
    assert whole.export(tmp_path / "policy.npz").exists()
