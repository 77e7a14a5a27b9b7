"""Presets of the protocols that the literature compares with: 10 agents, 3 of them Byzantine.

The numbers are those of the published code of Fan et al. 2021 (github.com/flint-xf-fan/Byzantine-Federeated-RL) and of
Ganesh et al. 2024 (github.com/LucasCJYSDL/ResNHARPG). A preset runs the method of its paper; `jaxbyz reproduce` with
the name of the preset runs every algorithm (`jaxbyz.reproduction.protocols`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

NOISE = "fedpg-br-noise"


class ProtocolTask(NamedTuple):
    """A task of a protocol.

    Attributes:
        title: the task in words.
        common: options of every algorithm: environment, network, batches, step size, estimator, budget.
        sigma: the bound σ of FedPG-BR's filter.
        batch_spread: FedPG-BR's large batches have N ± this many trajectories.
        normalised_eta: the step size of Res-NHARPG, whose steps are normalised.
    """

    title: str
    common: dict[str, Any]
    sigma: float
    batch_spread: int
    normalised_eta: float


# Both papers whiten returns within each episode and use Adam.
_FEDERATION: dict[str, Any] = {
    "agents": 10,
    "byzantine": 3,
    "attack": NOISE,
    "agreement": "none",
    "estimator": "whitened",
    "weights": "per-step",
    "optimizer": "adam",
    "p": 0.2,
}
_SMALL: dict[str, Any] = {
    **_FEDERATION,
    "env": "CartPole-v1",
    "hidden": (16, 16),
    "activation": "relu",
    "output_activation": "tanh",
    "gamma": 0.999,
    "horizon": 500,
    "eta": 1e-3,
    "N": 16,
    "B": 4,
}
_LANDER: dict[str, Any] = {
    **_FEDERATION,
    "env": "LunarLander-v3",
    "hidden": (64, 64),
    "activation": "tanh",
    "output_activation": "tanh",
    "gamma": 0.99,
    "horizon": 1000,
    "eta": 1e-3,
    "N": 32,
    "B": 8,
    "trajectories": 10_000,
}
_MUJOCO: dict[str, Any] = {
    **_FEDERATION,
    "hidden": (64, 64),
    "activation": "tanh",
    "output_activation": "identity",
    "gamma": 0.995,
    "horizon": 500,
    "eta": 8e-5,
    "N": 48,
    "B": 16,
}
# Ganesh et al. added these tasks with shorter episodes and, except for the double pendulum, another activation.
_ADDED: dict[str, Any] = {**_MUJOCO, "horizon": 250, "activation": "relu", "trajectories": 1800}


def _mujoco(title: str, common: dict[str, Any], **changes: Any) -> ProtocolTask:
    return ProtocolTask(title, {**common, **changes}, 0.9, 2, 5e-4)


PROTOCOL_TASKS: dict[str, ProtocolTask] = {
    "fan2021-cartpole": ProtocolTask("CartPole", {**_SMALL, "trajectories": 5000}, 0.06, 4, 5e-3),
    "fan2021-lunarlander": ProtocolTask("LunarLander", _LANDER, 0.07, 6, 5e-4),
    "fan2021-half-cheetah": _mujoco("HalfCheetah", _MUJOCO, env="HalfCheetah-v5", trajectories=10_000),
    "ganesh2024-cartpole": ProtocolTask("CartPole", {**_SMALL, "trajectories": 1800}, 0.06, 4, 5e-3),
    "ganesh2024-inverted-pendulum": _mujoco("InvertedPendulum", _MUJOCO, env="InvertedPendulum-v5", trajectories=1800),
    "ganesh2024-half-cheetah": _mujoco("HalfCheetah", _ADDED, env="HalfCheetah-v5"),
    "ganesh2024-hopper": _mujoco("Hopper", _ADDED, env="Hopper-v5"),
    "ganesh2024-walker2d": _mujoco("Walker2d", _ADDED, env="Walker2d-v5"),
    "ganesh2024-inverted-double-pendulum": _mujoco(
        "InvertedDoublePendulum", _ADDED, env="InvertedDoublePendulum-v5", activation="tanh", trajectories=6000
    ),
}


def method_options(task: ProtocolTask, algorithm: str) -> dict[str, Any]:
    """Return the options of one algorithm on a task, besides the common ones."""
    if algorithm == "fedpg-br":
        rule = f"fedpg-br:sigma={task.sigma},delta=0.6,batch={task.common['N']}"
        return {"aggregator": rule, "batch_spread": task.batch_spread, "ratio_window": 0.005}
    if algorithm == "svrpg":
        return {"period": 4}
    if algorithm == "res-nharpg":  # one trajectory for the gradient and one for the Hessian, η_t = 0.99
        return {"aggregator": "rfa", "eta": task.normalised_eta, "N": 2, "B": 1, "momentum": 0.01}
    if algorithm == "decbyzpg":  # MDA tolerates fewer than a quarter
        return {"aggregator": "rfa", "agreement": "trimmed-mean"}
    return {"aggregator": "rfa"}


def _preset(paper: str, algorithm: str, task: ProtocolTask) -> tuple[str, dict[str, Any]]:
    line = f"{task.title}: the protocol of {paper}, 3 Byzantine agents of 10, random noise"
    return line, {**task.common, "algorithm": algorithm, **method_options(task, algorithm)}


PROTOCOL_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    name: _preset("Fan et al. 2021", "fedpg-br", task)
    if name.startswith("fan2021")
    else _preset("Ganesh et al. 2024", "res-nharpg", task)
    for name, task in PROTOCOL_TASKS.items()
}
