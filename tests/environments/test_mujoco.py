"""Gymnasium's MuJoCo tasks: steps recorded from MuJoCo, rules of the tasks, and behaviour under JAX's transforms."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cuda_kernels_in
from mujoco_tasks import MODULES, recorded_step, task_of

import jaxbyz as jb
from jaxbyz.accelerate.platform import trace_for
from jaxbyz.environments import rendering
from jaxbyz.environments.mujoco.task import EnvState, initial_state, transition

DATA = Path(__file__).parents[1] / "data" / "mujoco_steps.npz"  # written by benchmarks/recordings/record_mujoco.py
OUTLIERS = {"Walker2d-v5": 1}  # a float32 rounding can move touch-down to another evaluation of the integrator


@functools.cache
def recorded(name):
    with np.load(DATA) as file:
        return {key.partition("/")[2]: file[key] for key in file.files if key.startswith(name)}


@functools.cache
def step_program(name):
    return jax.jit(jax.vmap(functools.partial(recorded_step, name)))


def step_inputs(name):
    dtype = jax.dtypes.canonicalize_dtype(float)
    return [recorded(name)[key].astype(dtype) for key in ("qpos", "qvel", "action", "factors")]


@functools.cache
def stepped(name):
    return jax.device_get(step_program(name)(*step_inputs(name)))


def everyday(*names):
    """All tasks, of which only these run every day."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in MODULES]


@pytest.mark.parametrize("name", everyday("InvertedPendulum-v5", "Swimmer-v5", "HalfCheetah-v5"))
def test_single_steps_agree_with_mujoco_in_float32(name):
    data, (obs, state, reward, terminated) = recorded(name), stepped(name)
    assert obs.dtype == state.qpos.dtype == reward.dtype == jnp.float32
    error = np.abs(state.qvel - data["next_qvel"]).max(axis=1)
    good = error < 3e-4
    assert np.median(error) < 1e-5 and (~good).sum() <= OUTLIERS.get(name, 0)
    np.testing.assert_allclose(state.qpos[good], data["next_qpos"][good], atol=1e-5)
    np.testing.assert_allclose(obs[good], data["obs"][good], atol=3e-4)
    np.testing.assert_allclose(reward[good], data["reward"][good], atol=1e-4)
    np.testing.assert_array_equal(terminated, data["terminated"])
    assert (data["rows"] > 0).sum() >= 10  # limits or contacts act in some of the recorded steps


def check_in_float64(name):
    """Called in a process of its own with 64-bit numbers."""
    data, (obs, state, reward, terminated) = recorded(name), stepped(name)
    assert obs.dtype == state.qpos.dtype == reward.dtype == jnp.float64
    np.testing.assert_allclose(state.qvel, data["next_qvel"], atol=1e-9)
    np.testing.assert_allclose(state.qpos, data["next_qpos"], atol=1e-9)
    np.testing.assert_allclose(obs, data["obs"], atol=1e-9)
    np.testing.assert_allclose(reward, data["reward"], atol=1e-6)  # gymnasium squares float32 actions
    np.testing.assert_array_equal(terminated, data["terminated"])


@pytest.mark.parametrize("name", everyday("InvertedDoublePendulum-v5"))
def test_single_steps_agree_with_mujoco_in_float64(name):
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_mujoco as t"
    program += f"; t.check_in_float64({name!r})"
    settings = {"JAX_ENABLE_X64": "1", "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


# --- rules of the tasks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", everyday("InvertedPendulum-v5", "Reacher-v5", "Hopper-v5"))
def test_environments_have_gymnasiums_spaces_and_initial_states(name):
    sizes = dict(zip(MODULES, [(4, 1), (9, 1), (8, 2), (10, 2), (11, 3), (17, 6), (17, 6)], strict=True))
    environment, task = jb.make_environment(name), task_of(name)
    assert (environment.observation_size, environment.actions.n) == sizes[name]
    assert environment.limit == (50 if name == "Reacher-v5" else 1000)
    assert float(np.asarray(environment.actions.high)[0]) == (3.0 if name == "InvertedPendulum-v5" else 1.0)

    @jax.jit
    def reset():
        obs, state = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 500))
        seen = task.observe(task.params, jax.tree.map(lambda a: a[0], state))
        return obs, state, seen

    obs, state, seen = jax.device_get(reset())
    start, noise = np.array(task.initial_position), task.params.reset_noise_scale
    arm = slice(0, 2 if name == "Reacher-v5" else None)
    spread = np.abs(np.asarray(state.qpos) - start)[:, arm]
    assert 0.95 * noise < spread.max() <= noise
    if name == "Reacher-v5":
        distance = np.linalg.norm(state.qpos[:, 2:], axis=1)
        assert distance.max() < 0.2 and abs((distance < 0.1).mean() - 0.25) < 0.06
        assert np.abs(state.qvel[:, :2]).max() <= 0.005 and not state.qvel[:, 2:].any()
    elif name in ("HalfCheetah-v5", "InvertedDoublePendulum-v5"):
        assert abs(state.qvel.std() - 0.1) < 0.01 and np.abs(state.qvel).max() > 0.2
    else:
        assert 0.95 * noise < np.abs(state.qvel).max() <= noise
    np.testing.assert_allclose(obs[0], seen)


@pytest.fixture(scope="module")
def pendulum():
    """The step of four InvertedPendulums, compiled once; parameters are constants."""
    task = task_of("InvertedPendulum-v5")
    return jax.jit(jax.vmap(functools.partial(transition, task, task.params)))


@jax.jit
def pendulums(qpos):
    task = task_of("InvertedPendulum-v5")
    return jax.vmap(functools.partial(initial_state, task, task.params))(qpos, jnp.zeros_like(qpos))


def test_an_episode_that_is_over_does_not_change(pendulum):
    state = pendulums(np.array([[0.0, 0.19], [0.0, 0.0]] * 2))
    returns, over = np.zeros(4), []
    for _ in range(12):
        obs, state, reward, terminated = pendulum(state, np.full((4, 1), -1.0))
        returns, over = returns + np.asarray(reward), [*over, terminated]
    over = np.array(over)
    first = over.argmax(axis=0)  # the number of steps that are rewarded
    assert over[-1].all() and first[0] < first[1] and (np.diff(over.astype(int), axis=0) >= 0).all()
    np.testing.assert_array_equal(returns, first)
    again = pendulum(state, np.ones((4, 1)))
    np.testing.assert_array_equal(again[0], obs)
    np.testing.assert_array_equal(again[1].qpos, state.qpos)
    assert not np.any(again[2]) and np.all(again[3])


def test_numbers_that_are_not_finite_end_their_own_episode_only(pendulum):
    state = pendulums(np.array([[0.0, 0.05]] * 4))
    action = np.array([[0.5], [np.nan], [np.inf], [0.5]])
    obs, state, reward, terminated = jax.device_get(pendulum(state, action))
    np.testing.assert_array_equal(terminated, [False, True, True, False])
    np.testing.assert_array_equal(reward, [1.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(obs[0], obs[3])
    np.testing.assert_allclose(obs[1:3], [[0.0, 0.05, 0.0, 0.0]] * 2)  # the last finite state
    qpos = state.qpos.copy()
    qpos[1, 0] = np.nan
    lost = state.replace(qpos=qpos, over=np.zeros(4, bool))
    obs, state, reward, terminated = jax.device_get(pendulum(lost, np.full((4, 1), 0.5)))
    np.testing.assert_array_equal(terminated, [False, True, False, False])
    assert np.isfinite(obs).all() and np.isfinite(state.qpos).all() and reward[1] == 0
    begun = pendulums(np.array([[np.nan, 0.0], [0.0, 0.0]] * 2))
    np.testing.assert_array_equal(begun.over, [True, False] * 2)
    assert np.isfinite(begun.qpos).all()


@pytest.mark.parametrize("name", everyday("HalfCheetah-v5"))
def test_a_lane_that_is_not_finite_does_not_change_the_others(name):
    qpos, qvel, action, factors = step_inputs(name)
    bad = {3: "qpos", 5: "qvel", 7: "action", 9: "gravity", 11: "mass"}
    qpos[3, 0], qvel[5, -1], action[7, 0], factors[9, 0], factors[11, 1] = np.nan, -np.inf, np.nan, np.nan, np.nan
    obs, state, reward, terminated = jax.device_get(step_program(name)(qpos, qvel, action, factors))
    for result in (obs, state.qpos, state.qvel, reward):
        assert np.isfinite(result).all()
    assert terminated[list(bad)].all() and not reward[list(bad)].any()
    others = np.setdiff1d(np.arange(len(qpos)), list(bad))
    for result, expected in zip((obs, reward, terminated), np.array(stepped(name), object)[[0, 2, 3]], strict=True):
        np.testing.assert_array_equal(result[others], expected[others])


def test_parameters_that_are_arrays_differ_per_lane(pendulum):
    task = task_of("InvertedPendulum-v5")
    state, action = pendulums(np.array([[0.0, 0.05]] * 4)), np.full((4, 1), 0.1)
    params = task.params.replace(gravity_scale=np.array([1.0, 0.0, 1.0, 1.0]), mass_scale=np.array([1.0, 1, 2, 1]))
    axes = jax.tree.map(lambda leaf: 0 if isinstance(leaf, np.ndarray) else None, params)
    _, after, *_ = jax.device_get(
        jax.jit(jax.vmap(functools.partial(transition, task), (axes, 0, 0)))(params, state, action)
    )
    expected = jax.device_get(pendulum(state, action)[1])
    np.testing.assert_allclose(after.qvel[[0, 3]], expected.qvel[[0, 3]], rtol=1e-6)
    assert after.qvel[1, 1] < after.qvel[0, 1]  # nothing pulls the pole down
    assert abs(after.qvel[2, 0]) < abs(after.qvel[0, 0])  # the cart is heavier


def test_wrong_arguments_are_refused_in_one_line():
    task = task_of("Hopper-v5")
    params, start = task.params, np.array(task.initial_position)
    state = initial_state(task, params, start, np.zeros(6))
    for action, message in [
        (np.zeros(2), r"action has shape \(2,\): Hopper-v5 needs \(3,\)"),
        (np.array([0, np.nan, 0]), "must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            transition(task, params, state, action)
    for name in ("qpos", "qvel"):
        with pytest.raises(ValueError, match=f"{name}=.* must be finite"):
            transition(task, params, state.replace(**{name: np.full(6, np.nan)}), np.zeros(3))
    environment = jb.make_environment("Hopper-v5")
    begun = jax.eval_shape(environment.reset, jax.random.key(0))[1]
    with pytest.raises(ValueError, match=r"action has shape \(4,\): Hopper-v5 needs \(3,\)"):
        jax.eval_shape(environment.step, jax.random.key(0), begun, np.zeros(4))
    with pytest.raises(ValueError, match=r"qvel has shape \(5,\): Hopper-v5 needs \(6,\)"):
        initial_state(task, params, start, np.zeros(5))
    with pytest.raises(ValueError, match="must be finite"):
        initial_state(task, params, start + np.inf, np.zeros(6))
    for name, value in [("mass_scale", 0.0), ("friction_scale", -1.0), ("gravity_scale", np.nan)]:
        with pytest.raises(ValueError, match=f"{name}="):
            initial_state(task, params.replace(**{name: value}), start, np.zeros(6))
    with pytest.raises(jb.UsageError, match=r"env Hopper-v5: .*'leg_mass'"):
        jb.make_environment("Hopper-v5", leg_mass=2.0)


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", everyday("InvertedPendulum-v5"))
def test_a_step_is_one_kernel_that_agrees_with_the_cpu(name):
    with trace_for("kernels"):
        kernel = jax.jit(jax.vmap(functools.partial(recorded_step, name)))
        inputs = step_inputs(name)
        obs, _, reward, terminated = jax.device_get(kernel(*inputs))
    expected = stepped(name)
    close = np.abs(obs - expected[0]).max(axis=1) < 3e-4
    assert (~close).sum() <= OUTLIERS.get(name, 0)
    np.testing.assert_allclose(reward[close], expected[2][close], atol=1e-4)
    np.testing.assert_array_equal(terminated, expected[3])
    with trace_for("kernels", only_lowered=True):
        assert cuda_kernels_in(lambda *x: jax.vmap(functools.partial(recorded_step, name))(*x), *inputs) == 1


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_every_task_can_be_drawn(name):
    """The second state differs from the first in its joints, and the third has moved as a whole."""
    start = np.array(task_of(name).initial_position)
    moved = start + np.where(np.arange(len(start)) == 0, 0.3 if name != "Reacher-v5" else 0.0, 0.0)
    qpos = np.stack([start, start + np.where(np.arange(len(start)) >= 1, 0.2, 0.0), moved])
    state = EnvState(np.arange(3), qpos, np.zeros_like(qpos), None, np.zeros(3, bool))
    frames = [np.asarray(frame) for frame in rendering.draw_frames(name, task_of(name).params, state, width=96)]
    assert len(frames) == 3 and frames[0].shape[1] == 96 and (frames[0] != frames[0][0, 0]).any(axis=-1).mean() > 0.01
    assert (frames[0] != frames[1]).any()
    assert name == "Reacher-v5" or (frames[0] != frames[2]).any()
