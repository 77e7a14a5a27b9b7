"""Presets of the MuJoCo tasks: a critic per agent and several clipped steps per batch."""

from __future__ import annotations

from typing import Any

from jaxbyz.configuration.task_presets import CONTINUOUS

_MUJOCO: dict[str, Any] = {
    **CONTINUOUS,
    "aggregator": "caf",
    "horizon": 1000,
    "hidden": (64, 64),
    "critic_hidden": (64, 64),
    "critic_eta": 1e-3,
    "critic_steps": 32,
    "epochs": 8,
    "minibatches": 4,
    "eta": 1e-3,
    "eta_end": 1e-4,
}

MUJOCO_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "inverted-pendulum": ("InvertedPendulum: PPO, 8 × 4 steps per batch of 8",
                          {**_MUJOCO, "env": "InvertedPendulum-v5", "output_activation": "tanh",
                           "trajectories": 800}),
    "hopper": ("Hopper: PPO, scaled observations, 4 × 4 steps per batch of 16",
               {**_MUJOCO, "env": "Hopper-v5", "env_param": "scale=true", "gamma": 0.995, "N": 16, "B": 16, "epochs": 4,
                "eta": 3e-4, "trajectories": 6400}),
    "half-cheetah": ("HalfCheetah: PPO, 8 × 4 steps per batch of 8",
                     {**_MUJOCO, "env": "HalfCheetah-v5", "trajectories": 3200}),
}  # fmt: skip
