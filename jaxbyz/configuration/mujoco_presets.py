"""Presets of the MuJoCo tasks: a critic per agent and several clipped steps per batch."""

from __future__ import annotations

from typing import Any

from jaxbyz.configuration.task_presets import CONTINUOUS

_MUJOCO: dict[str, Any] = {
    **CONTINUOUS,
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

# Few episodes per batch, and 32 steps, each on every fourth step of the episodes. Policies begin centred, and actions
# are charged as they are clipped.
_SMALL_BATCHES: dict[str, Any] = {
    **_MUJOCO,
    "env_param": "scale=true,clip=true",
    "initialiser": "small-outputs",
    "initial_std": 0.4,
    "N": 4,
    "B": 4,
    "minibatch_of": "steps",
    "critic_parts": 4,
    "eta": 5e-4,
    "eta_end": None,
}

MUJOCO_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "inverted-pendulum": ("InvertedPendulum: PPO, 8 × 4 steps per batch of 8",
                          {**_MUJOCO, "env": "InvertedPendulum-v5", "output_activation": "tanh",
                           "trajectories": 800}),
    "hopper": ("Hopper: PPO, γ = 0.995, 8 × 4 steps on parts of a batch of 4",
               {**_SMALL_BATCHES, "env": "Hopper-v5", "gamma": 0.995, "initial_std": 0.5, "trajectories": 2400}),
    "half-cheetah": ("HalfCheetah: PPO, 8 × 4 steps on parts of a batch of 4",
                     {**_SMALL_BATCHES, "env": "HalfCheetah-v5", "trajectories": 1600}),
    "walker2d": ("Walker2d: PPO, 8 × 4 steps on parts of a batch of 4",
                 {**_SMALL_BATCHES, "env": "Walker2d-v5", "initial_std": 0.5, "trajectories": 2000}),
    "swimmer": ("Swimmer: critics, γ = 0.9999, 8 × 4 clipped steps per batch of 8",
                {**_MUJOCO, "env": "Swimmer-v5", "gamma": 0.9999, "gae_lambda": 0.98, "eta": 3e-4,
                 "trajectories": 1600}),
    "reacher": ("Reacher: critics, 8 × 4 clipped steps per batch of 32",
                {**_MUJOCO, "env": "Reacher-v5", "env_param": "scale=true", "horizon": 50, "N": 32, "B": 32,
                 "gamma": 0.9, "trajectories": 12800}),
    "inverted-double-pendulum": ("InvertedDoublePendulum: critics, 8 × 4 clipped steps per batch of 16",
                                 {**_MUJOCO, "env": "InvertedDoublePendulum-v5", "env_param": "scale=true", "N": 16,
                                  "B": 16, "trajectories": 6400}),
}  # fmt: skip
