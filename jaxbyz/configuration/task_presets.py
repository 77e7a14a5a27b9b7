"""Presets of tasks: the best options that are known for each, found as docs/measurements/tuning.md describes."""

from __future__ import annotations

from typing import Any

from jaxbyz.environments import Environment
from jaxbyz.policies import default_policy

# Large batches only (p = 1), a critic per agent, and several clipped steps, each on the whole batch: the messages of
# parts of a batch differ more, and attacks hide in their spread. Every agent scales its advantages itself, which bounds
# the size of honest messages.
CRITIC: dict[str, Any] = {
    "p": 1.0,
    "N": 8,
    "B": 8,
    "baseline": "critic",
    "advantages": "normalised",
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "epochs": 16,
    "minibatches": 1,
    "hidden": (32, 32),
    "activation": "tanh",
    "optimizer": "adam",
    "eta": 3e-3,
    "eta_end": 3e-4,
}
# Bounded logits keep a policy from becoming deterministic before it has seen a success.
DISCRETE: dict[str, Any] = {**CRITIC, "output_activation": "tanh", "output_scale": 3.0}
CONTINUOUS: dict[str, Any] = {**CRITIC, "output_activation": "identity"}
# For presets for which the whole batch has not been found to be better, or is too slow.
HALVES: dict[str, Any] = {"epochs": 4, "minibatches": 2}
# Images: gymnax's MinAtar games.
IMAGE: dict[str, Any] = {
    **DISCRETE,
    "activation": "relu",
    "hidden": (64,),
    "critic_hidden": (64, 64),
    "eta": 1e-3,
    "eta_end": 1e-4,
    "entropy": 0.01,
    "trajectories": 3000,
}
# Many steps on small whole batches. The entropy bonus acts on unbounded logits; at ±3 they would pass on little of its
# gradient.
WHOLE_IMAGE_BATCHES: dict[str, Any] = {
    **IMAGE,
    "N": 4,
    "B": 4,
    "output_activation": "identity",
    "output_scale": 1.0,
    "entropy": 0.05,
    "trajectories": 1500,
}

# For environments without a preset of their own, by the kind of their actions and observations.
GENERAL_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "general-discrete": ("any task with discrete actions: PPO, 16 steps per batch of 8", DISCRETE),
    "general-continuous": ("any task with continuous actions: PPO, 16 steps per batch of 8", CONTINUOUS),
    "general-images": (
        "any task with images and discrete actions: convolutions, PPO, 4 × 2 steps",
        {**IMAGE, **HALVES},
    ),
}


def general_preset(environment: Environment) -> str:
    """Return the name of the general preset that suits actions and observations."""
    if not environment.actions.discrete:
        return "general-continuous"
    return "general-images" if default_policy(environment) == "cnn" else "general-discrete"


# Without a horizon a preset has the environment's own limit, which counts held actions.
TASK_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole-no-velocity": ("CartPole without velocities: a GRU, PPO, 8 steps per batch of 8",
                             {**DISCRETE, "env": "CartPoleNoVelocity-v1", "policy": "gru", "hidden": (32,),
                              "epochs": 8, "trajectories": 600}),
    "acrobot": ("Acrobot: PPO, 16 steps per batch of 8",
                {**DISCRETE, "env": "Acrobot-v1", "trajectories": 500}),
    "pendulum": ("Pendulum: PPO, 16 steps per batch of 8",
                 {**CONTINUOUS, "env": "Pendulum-v1", "gamma": 0.95, "trajectories": 1000}),
    "mountaincar": ("MountainCar: PPO, actions held for 8 steps",
                    {**DISCRETE, "env": "MountainCar-v0", "env_param": "hold=8", "N": 16, "B": 16, "entropy": 0.01,
                     "trajectories": 5000}),
    "mountaincar-continuous": ("MountainCarContinuous: PPO, actions held for 16 steps",
                               {**CONTINUOUS, "env": "MountainCarContinuous-v0", "env_param": "hold=16",
                                "initial_std": 1.0, "eta": 5e-3, "eta_end": 1e-3, "trajectories": 500}),
    # The reward for coming to rest needs 25 steps without an engine, and held actions make such a sequence likely. On
    # the ground doing nothing must become almost certain, which bounded logits would prevent. With λ near 1 some
    # seeds never learn it.
    "lunarlander": ("LunarLander: PPO, 16 steps per batch of 16, actions held for 4 steps",
                    {**DISCRETE, "env": "LunarLander-v3", "env_param": "hold=4", "hidden": (64, 64),
                     "critic_hidden": (64, 64), "critic_steps": 48, "critic_parts": 4, "gae_lambda": 0.8, "N": 16,
                     "B": 16, "output_activation": "identity", "output_scale": 1.0, "entropy": 0.005, "eta": 1e-3,
                     "eta_end": 6e-4, "trajectories": 1500}),
    "lunarlander-continuous": ("LunarLanderContinuous: PPO, 4 × 2 steps per batch of 16",
                               {**CONTINUOUS, "env": "LunarLanderContinuous-v3", "hidden": (64, 64),
                                "critic_hidden": (64, 64), "gamma": 0.999, "gae_lambda": 0.98, "N": 16, "B": 16,
                                **HALVES, "eta": 1e-3, "eta_end": 1e-4, "trajectories": 2000}),
    # `clip_norm` is far shorter than the messages, so that all of them are sent with the same length.
    "catch": ("Catch: PPO, 16 steps per batch of 32, messages of equal length",
              {**DISCRETE, "env": "Catch-bsuite", "horizon": 10, "N": 32, "B": 32, "clip_norm": 0.01,
               "entropy": 0.01, "trajectories": 1000}),
    "breakout": ("Breakout-MinAtar: convolutions, PPO, 16 steps per batch of 4",
                 {**WHOLE_IMAGE_BATCHES, "env": "Breakout-MinAtar", "eta": 1.5e-3, "eta_end": 1.5e-4,
                  "trajectories": 1000}),
    "asterix": ("Asterix-MinAtar: convolutions, PPO, 16 steps per batch of 4",
                {**WHOLE_IMAGE_BATCHES, "env": "Asterix-MinAtar"}),
    "spaceinvaders": ("SpaceInvaders-MinAtar: convolutions, PPO, 4 × 2 steps per batch of 8",
                      {**IMAGE, **HALVES, "env": "SpaceInvaders-MinAtar", "trajectories": 1500}),
}  # fmt: skip

# The rule of these presets under attack. It must hear all agents, so the other one stands in if some are absent.
RULE_UNDER_ATTACK = "memory+rfa"
RULE_WITHOUT_MEMORY = "caf"
NOT_WITH_MEMORY = ("asterix",)  # measured with the other rule only
