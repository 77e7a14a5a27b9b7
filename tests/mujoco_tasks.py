"""The modules of the MuJoCo tasks, and single steps from recorded states."""

from __future__ import annotations

import importlib

import jax

from jaxbyz import make_environment
from jaxbyz.environments.mujoco.task import initial_state, transition

MODULES = {
    "InvertedPendulum-v5": "inverted_pendulum",
    "InvertedDoublePendulum-v5": "inverted_double_pendulum",
    "Swimmer-v5": "swimmer",
    "Reacher-v5": "reacher",
    "Hopper-v5": "hopper",
    "Walker2d-v5": "walker2d",
    "HalfCheetah-v5": "half_cheetah",
}


def task_of(name):
    return importlib.import_module(f"jaxbyz.environments.mujoco.{MODULES[name]}").TASK


def recorded_step(name, qpos, qvel, action, factors):
    """One step from a recorded state, with the recorded physical factors; in float32 as a federation takes it."""
    task = task_of(name)
    scales = dict(zip(("gravity_scale", "mass_scale", "friction_scale", "damping_scale"), factors, strict=True))
    params = task.params.replace(**scales)
    state = initial_state(task, params, qpos, qvel)
    if jax.config.jax_enable_x64:
        return transition(task, params, state, action)
    after = make_environment(name).step(jax.random.key(0), state, action, scales)
    return after.observation, after.state, after.reward, after.terminated
