"""The modules of the MuJoCo tasks, and single steps from recorded states."""

from __future__ import annotations

import importlib

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
    """One step from a recorded state, with the recorded physical factors."""
    task = task_of(name)
    scales = dict(zip(("gravity_scale", "mass_scale", "friction_scale", "damping_scale"), factors, strict=True))
    params = task.params.replace(**scales)
    return transition(task, params, initial_state(task, params, qpos, qvel), action)
