"""Every preset of a task makes clear progress on a small budget, under attack."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from helpers import RESULTS, ROOT, needs_results

import jaxbyz as jb
from jaxbyz.configuration.presets import DEFAULT_PRESET, PRESETS, RULES_UNDER_ATTACK
from jaxbyz.configuration.resolving import from_dict, resolve
from jaxbyz.configuration.task_presets import GENERAL_PRESETS, TASK_PRESETS
from jaxbyz.files import read_rows

# preset -> trajectories per agent, and how much the return of the last fifth exceeds that of the first batch
BUDGETS = {
    "cartpole": (160, 150.0),
    "cartpole-no-velocity": (240, 60.0),
    "acrobot": (160, 60.0),
    "pendulum": (320, 300.0),
    "mountaincar": (640, 30.0),  # the goal is found after 300 trajectories
    "mountaincar-continuous": (96, 30.0),
    "lunarlander": (320, 120.0),
    "lunarlander-continuous": (320, 120.0),
    "catch": (320, 0.4),
    "breakout": (240, 1.0),
    "asterix": (480, 0.2),
    "spaceinvaders": (240, 2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", BUDGETS)
def test_a_preset_learns_under_attack(preset):
    trajectories, progress = BUDGETS[preset]
    options = dict(agents=5, byzantine=1, attack="avg-zero", trajectories=trajectories, eta_end=None)
    returns = jb.run_experiment(preset, **options).metrics["returns"][0]
    assert np.mean(returns[-max(1, len(returns) // 5) :]) > returns[0] + progress


def test_every_preset_of_a_task_is_tested():
    assert set(BUDGETS) == {"cartpole", *TASK_PRESETS}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_robust_under_attack(preset):
    """A preset alone is a valid configuration; under attack it has a rule that tolerates Byzantine agents."""
    honest, attacked = resolve(preset), resolve(preset, byzantine=3, attack="avg-zero")
    assert attacked.aggregator != "mean" or attacked.algorithm == "svrpg"
    if preset in TASK_PRESETS | GENERAL_PRESETS:
        assert honest.aggregator == "mean" and attacked.rule == RULES_UNDER_ATTACK[preset]


def test_defaults_follow_the_environment():
    assert {env: resolve(env=env).env for env in DEFAULT_PRESET} == {env: env for env in DEFAULT_PRESET}
    assert resolve(env="Acrobot-v1").baseline == "critic"
    chain = resolve(env="DiscountingChain-bsuite")
    assert (chain.horizon, chain.baseline, chain.output_activation) == (100, "critic", "tanh")
    assert resolve(env="Seaquest-MinAtar").activation == "relu"
    assert resolve("general-continuous", env="Pendulum-v1").horizon == 200
    assert resolve("default", env="MountainCarContinuous-v0", env_param="hold=8").horizon == 125
    assert resolve("default", env="MountainCarContinuous-v0", env_param="hold=8", horizon=7).horizon == 7


@needs_results
def test_every_published_row_has_the_options_of_its_preset():
    """The table of docs/tasks.md shows what today's presets reach."""
    script = runpy.run_path(str(ROOT / "benchmarks" / "learning" / "tasks.py"))
    tasks, configuration = script["TASKS"], script["configuration"]
    published = read_rows(RESULTS / "tasks.jsonl.gz")
    assert {record["task"] for record in published} == set(tasks)
    for record in published:
        task, seeds = tasks[record["task"]], record["seeds"]
        options = {"trajectories": task.budget, "seeds": len(seeds), "seed": seeds[0]}
        if record["label"]:  # another rule, for comparison
            options["aggregator"] = record["label"]
        assert from_dict(record["config"]) == configuration(task.preset, record["row"], options), record["name"]
