"""The numbers, in one place: what each preset changes of the general defaults in `jaxbyz.experiments.config.Config`."""

from __future__ import annotations

from typing import Any

# The paper's Table 1. The switch, the discount and the batch sizes are the same wherever its experiments are meant.
_TABLE_CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1",
    "hidden": (16, 16),
    "activation": "relu",
    "output_activation": "tanh",
    "optimizer": "adam",
    "eta": 5e-3,
    "gamma": 0.999,
    "horizon": 500,
    "B": 4,
    "N": 50,
    "p": 0.2,
}
_TABLE_LUNARLANDER: dict[str, Any] = {
    "env": "LunarLander-v3",
    "hidden": (64, 64),
    "activation": "tanh",
    "output_activation": "tanh",
    "optimizer": "adam",
    "eta": 1e-3,
    "gamma": 0.999,
    "horizon": 1000,
    "B": 32,
    "N": 96,
    "p": 0.2,
}
# What the paper's published script does instead: its step size and activations on CartPole, its initialisation, one
# first policy for all runs, importance weights that vanish for long episodes, the agent's own previous estimate, and
# previous parameters that are stored one step too late.
_SCRIPT: dict[str, Any] = {
    "activation": "tanh",
    "initialiser": "published",
    "start": "shared",
    "weights": "published",
    "previous": "own",
    "anchor": "proposed",
    "aggregator": "rfa:rounds=8,floor=0.1,start=zero",
}
# What jaxbyz starts from: the table with the step size and the variance handled so that learning is steady.
_STEADY: dict[str, Any] = {"activation": "tanh", "eta": 1e-3, "baseline": "leave-one-out", "weight_clip": 1.0}

# Algorithm 2 with a coin that always shows the batch (p = 1): modest batches, a large step that decays, and logits that
# may reach ±3, so that the better action is not capped at probability 0.88.
_BEST_CARTPOLE: dict[str, Any] = {
    **_TABLE_CARTPOLE,
    **_STEADY,
    "p": 1.0,
    "N": 8,
    "B": 8,
    "eta": 1e-2,
    "eta_end": 1e-3,
    "output_scale": 3.0,
}

# The same on LunarLander: batches of 16 and logits up to 2 only: with 5 most runs settle on doing nothing, and the
# gradient through saturated logits does not lead away from it. CAF, because the gradient is small beside its noise and
# MinMax's steady drift, which RFA lets through, would win.
_BEST_LUNARLANDER: dict[str, Any] = {
    **_TABLE_LUNARLANDER,
    **_STEADY,
    "p": 1.0,
    "N": 16,
    "B": 16,
    "eta": 2e-3,
    "eta_end": 2e-4,
    "output_scale": 2.0,
    "aggregator": "caf",
}

# Rivals, with the numbers their own code has on CartPole.
_FEDPG_BR: dict[str, Any] = {
    **_TABLE_CARTPOLE,
    "algorithm": "fedpg-br",
    "aggregator": "fedpg-br:sigma=0.06,delta=0.6,batch=16",
    "agreement": "none",
    "estimator": "whitened",
    "weights": "per-step",
    "eta": 1e-3,
    "N": 16,
    "B": 4,
}
_SVRPG: dict[str, Any] = {**_TABLE_CARTPOLE, **_STEADY, "algorithm": "svrpg", "agreement": "none", "N": 16, "period": 4}
_MARINA: dict[str, Any] = {**_TABLE_CARTPOLE, **_STEADY, "algorithm": "byz-vr-marina-pg", "agreement": "none"}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("general defaults, any environment", {}),
    "cartpole": ("CartPole: the paper's table with step 1e-3, tanh, leave-one-out baseline, weights at most 1",
                 {**_TABLE_CARTPOLE, **_STEADY}),
    "cartpole-paper": ("CartPole: the paper's Table 1, literally; learns fast, then collapses", _TABLE_CARTPOLE),
    "cartpole-published": ("CartPole: the paper's published script, its departures from the paper included",
                           {**_TABLE_CARTPOLE, **_SCRIPT, "eta": 5e-4}),
    "cartpole-best": ("CartPole: batches of 8 (p = 1), step 1e-2 decaying, logits up to 3, leave-one-out baseline",
                      _BEST_CARTPOLE),
    "cartpole-fedpg-br": ("CartPole: FedPG-BR with its own code's numbers", _FEDPG_BR),
    "cartpole-svrpg": ("CartPole: SVRPG, a large batch of 16 and three small steps", _SVRPG),
    "cartpole-marina": ("CartPole: Byz-VR-MARINA-PG with the numbers of `cartpole`", _MARINA),
    "lunarlander": ("LunarLander: the paper's table with leave-one-out baseline and weights at most 1",
                    {**_TABLE_LUNARLANDER, **_STEADY}),
    "lunarlander-paper": ("LunarLander: the paper's Table 1, literally", _TABLE_LUNARLANDER),
    "lunarlander-published": ("LunarLander: Table 1 with the published script's departures from the paper",
                              {**_TABLE_LUNARLANDER, **_SCRIPT}),
    "lunarlander-best": ("LunarLander: batches of 16 (p = 1), step 2e-3 decaying, logits up to 2, CAF",
                         _BEST_LUNARLANDER),
}  # fmt: skip

DEFAULT_PRESET = {"CartPole-v1": "cartpole", "LunarLander-v3": "lunarlander"}
