"""The modules of the MuJoCo tasks, and single steps from recorded states."""

from __future__ import annotations

import importlib

MODULES = {
    "InvertedPendulum-v5": "inverted_pendulum",
    "InvertedDoublePendulum-v5": "inverted_double_pendulum",
    "Swimmer-v5": "swimmer",
    "Reacher-v5": "reacher",
    "Hopper-v5": "hopper",
    "Walker2d-v5": "walker2d",
    "HalfCheetah-v5": "half_cheetah",
}


def module_of(name):
    return importlib.import_module(f"jaxbyz.environments.mujoco.{MODULES[name]}")


def recorded_step(name, qpos, qvel, action, factors):
    """One step from a recorded state, with the recorded physical factors."""
    module = module_of(name)
    scales = dict(zip(("gravity_scale", "mass_scale", "friction_scale", "damping_scale"), factors, strict=True))
    params = module.default_params.replace(**scales)
    return module.transition(params, module.initial_state(params, qpos, qvel), action)
