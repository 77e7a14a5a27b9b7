"""Gymnasium's MuJoCo tasks against MuJoCo itself, with new seeds in every run: `make test-mujoco`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mujoco_tasks import MODULES, recorded_step

import jaxbyz as jb
from jaxbyz.configuration.resolving import resolve
from jaxbyz.registry import parse_assignments
from jaxbyz.trained.acting import action_of, task_of
from jaxbyz.trained.start_from import start_parameters, with_task_of_start

PYTHON = os.environ.get("JAXBYZ_MUJOCO_PYTHON")  # with gymnasium and mujoco, set by `make test-mujoco`
EPISODES = int(os.environ.get("JAXBYZ_MUJOCO_EPISODES", "1000"))  # per task and policy
SEARCH_SECONDS = os.environ.get("JAXBYZ_MUJOCO_SEARCH_SECONDS", "120")  # per task
DATA = Path(__file__).parents[1] / "data"
POLICIES = DATA / "mujoco_policies.npz"  # linear policies that balance, stand or reach
OTHER_POLICIES = sorted(Path(os.environ.get("JAXBYZ_MUJOCO_POLICIES", os.devnull)).glob("*.npz"))
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(PYTHON is None, reason="needs JAXBYZ_MUJOCO_PYTHON: run make test-mujoco"),
]


def record(what, out, *options):
    """Record MuJoCo now, with a new seed."""
    script = Path(__file__).parents[2] / "benchmarks" / "recordings" / "record_mujoco.py"
    seed = int(np.random.default_rng().integers(2**31))
    subprocess.run([PYTHON, script, what, out, "--seed", str(seed), *map(str, options)], check=True)
    print("seed of the recording:", seed)
    return np.load(out)


@pytest.mark.parametrize("name", MODULES)
def test_new_steps_agree_with_mujoco(name, tmp_path):
    file = record("steps", tmp_path / "steps.npz", "--tasks", name, "--steps", 1000)
    step = jax.jit(jax.vmap(functools.partial(recorded_step, name)))
    inputs = [jnp.asarray(file[f"{name}/{key}"], float) for key in ("qpos", "qvel", "action", "factors")]
    _, state, reward, terminated = step(*inputs)
    error = np.abs(np.asarray(state.qvel) - file[f"{name}/next_qvel"]).max(axis=1)
    assert np.median(error) < 1e-5 and np.quantile(error, 0.99) < 3e-4 and (error > 1e-2).mean() <= 1e-3
    assert (np.abs(np.asarray(reward) - file[f"{name}/reward"]) > 1e-4).mean() <= 1e-3
    assert (np.asarray(terminated) != file[f"{name}/terminated"]).mean() <= 1e-3


@pytest.mark.parametrize("name", ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Swimmer-v5", "Reacher-v5"])
def test_a_search_finds_no_healthy_state_that_differs_from_mujoco(name):
    script = Path(__file__).parents[2] / "benchmarks" / "recordings" / "search_mujoco.py"
    seed = int(np.random.default_rng().integers(2**31))
    command = [sys.executable, script, PYTHON, "--tasks", name, "--seconds", SEARCH_SECONDS, "--seed", seed]
    done = subprocess.run(
        list(map(str, command)), env=os.environ | {"JAX_ENABLE_X64": "1"}, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)[name]
    print(f"{name}, seed {seed}: {found}")
    assert found["steps"] > 0 and found["difference"] < 1e-9, found
    assert found["reward"] < 1e-6 and found["terminations"] == 0, found  # gymnasium squares float32 actions


def own_episodes(environment, act, episodes, hold=1):
    """Returns and lengths of episodes, `[episodes, 2]`; the policy is `act(key, observations, last actions)`."""
    low, high = environment.actions.low[None], environment.actions.high[None]

    def step(carry, inputs):
        (obs, state, action, total, length, over), (i, key) = carry, inputs
        keys = jax.random.split(key)
        action = jnp.where(i % hold == 0, act(keys[0], obs, action), action)
        result = jax.vmap(environment.step)(jax.random.split(keys[1], episodes), state, action)
        total, length = total + jnp.where(over, 0.0, result.reward), length + ~over
        over = over | result.terminated | result.truncated
        return (result.observation, result.state, action, total, length, over), None

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 3)
        obs, state = jax.vmap(environment.reset)(jax.random.split(keys[0], episodes))
        first = jax.random.uniform(keys[1], (episodes, environment.actions.n), minval=low, maxval=high)
        zero = jnp.zeros(episodes)
        start = (obs, state, first, zero, zero, zero > 0)
        steps = jnp.arange(environment.limit), jax.random.split(keys[2], environment.limit)
        return jax.lax.scan(step, start, steps)[0][3:5]

    return np.stack(run(jax.random.key(np.random.default_rng().integers(2**31))), axis=1)


def simple_policies(environment, weights):
    """Return the random policies and the linear one of record_mujoco.py for `own_episodes`."""
    low, high = environment.actions.low[None], environment.actions.high[None]

    def uniform(key, obs, action):
        return jax.random.uniform(key, action.shape, minval=low, maxval=high)

    def wide(key, obs, action):  # gymnasium charges actions as they are given
        return jax.random.uniform(key, action.shape, minval=2 * low, maxval=2 * high)

    def smooth(key, obs, action):
        return jnp.clip(0.9 * action + 0.3 * high * jax.random.normal(key, action.shape), low, high)

    def linear(key, obs, action):
        return jnp.clip(obs @ weights[:-1] + weights[-1:], low, high)

    return {"uniform": uniform, "wide": wide, "smooth": smooth, "linear": linear}


def trained_policies(path):
    """Return the environment of an exported policy, two policies with its actions, and for how many steps to hold them.

    The environment has neither scaled observations nor held actions: the policy scales, and the caller holds. The
    scales are those of the file: if they are computed again, random episodes amplify what is rounded otherwise here.
    """
    config = resolve(None, **with_task_of_start({"start": f"from:{path}"}))
    task = task_of(config)
    theta = jnp.asarray(start_parameters(config.start, task.policy.size))
    with np.load(path) as arrays:
        scales = json.loads(str(arrays["schema"]))["observation_scales"]
    stored = tuple(jnp.asarray(scales[name]) for name in ("mean", "deviation")) if scales else None
    act = functools.partial(action_of, task.environment._replace(scales=stored), task.policy, theta)

    def most_likely(key, obs, action):
        return act(obs)

    def drawn(key, obs, action):
        return act(obs, key)

    hold = int(float(parse_assignments(config.env_param).get("hold", 1)))
    return jb.make_environment(config.env), {"most likely": most_likely, "drawn": drawn}, hold


def check_episodes(name, file, environment, policies, hold=1):
    """Means of returns and lengths within two standard errors; three, if one of all comparisons is beyond that."""
    distances = []
    for kind, act in policies.items():
        theirs, ours = file[f"{name}/{kind}"], own_episodes(environment, act, EPISODES, hold)
        error = np.sqrt(theirs.var(axis=0) / len(theirs) + ours.var(axis=0) / len(ours))
        difference = np.abs(theirs.mean(axis=0) - ours.mean(axis=0))
        rounding = 1e-4 * np.abs(theirs.mean(axis=0)) + 1e-4
        distances += list(np.maximum(difference - rounding, 0.0) / np.maximum(error, 1e-12))
        for what, one, two, size in zip(
            ("return", "length"), theirs.mean(axis=0), ours.mean(axis=0), error, strict=True
        ):
            print(f"{name} {kind}: {what} {one:.4f} in MuJoCo, {two:.4f} here, standard error {size:.4f}")
    assert max(distances) < 3 and sum(distance > 2 for distance in distances) <= 1, distances


@pytest.mark.parametrize("name", MODULES)
def test_episodes_agree_with_mujoco_in_distribution(name, tmp_path):
    options = ("--tasks", name, "--episodes", EPISODES, "--policies", POLICIES)
    file = record("episodes", tmp_path / "episodes.npz", *options)
    environment = jb.make_environment(name)
    check_episodes(name, file, environment, simple_policies(environment, jnp.asarray(np.load(POLICIES)[name])))


@pytest.mark.parametrize(
    "path", [*sorted(DATA.glob("mujoco_trained_*.npz")), *OTHER_POLICIES], ids=lambda path: path.stem
)
def test_a_policy_trained_here_scores_the_same_in_gymnasium(path, tmp_path):
    """Further policies, written by `jaxbyz export`, are those of the folder JAXBYZ_MUJOCO_POLICIES."""
    with np.load(path) as arrays:
        name = json.loads(str(arrays["schema"]))["environment"]
    file = record("trained", tmp_path / "episodes.npz", "--episodes", EPISODES, "--policies", path)
    check_episodes(name, file, *trained_policies(path))
