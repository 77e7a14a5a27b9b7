"""Algorithms of other papers, expressed with the parts of ByzPG so that they can be compared with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optax
from jaxtyping import Array

from jaxbyz.algorithms.agents import make_optimizer
from jaxbyz.algorithms.base import Algorithm
from jaxbyz.algorithms.byzpg import SERVER_LIMIT, server_algorithm
from jaxbyz.algorithms.settings import Settings
from jaxbyz.algorithms.traits import RARELY_READ, Traits, algorithm
from jaxbyz.attacks.honest_statistics import unit
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy
from jaxbyz.sampling.hessian import hessian_momentum_sampler

RES_NHARPG_MOMENTUM = 0.8


@algorithm(Traits(central=True, limit=SERVER_LIMIT, ignores=RARELY_READ | {"local_steps"}))
def byz_vr_marina_pg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build Byz-VR-MARINA-PG: ByzPG whose workers sample the small batches too.

    References:
        Gorbunov et al., Variance reduction is an antidote to Byzantines, 2023; applied to policy gradient here.
    """
    return server_algorithm(environment, policy, replace(settings, small_batches="workers"))


def normalise_direction() -> optax.GradientTransformation:
    """Return the transformation v ↦ v/‖v‖; zero stays zero."""

    def update(direction: Array, state: Any, parameters: Array | None = None) -> tuple[Array, Any]:
        return unit(direction), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), update)


@algorithm(
    Traits(
        central=True, splits_batch=True, limit=SERVER_LIMIT,
        ignores=RARELY_READ | {"p", "period", "local_steps", "weights", "entropy"},
        instead={"baseline": "leave-one-out", "advantages": "plain", "epochs": 1, "minibatches": 1, "local_eta": None,
                 "anchor": "previous", "B": 1},
    )
)  # fmt: skip
def res_nharpg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build Res-NHARPG: workers correct their momentum with a Hessian, and the server takes normalised steps.

    Every worker sends d_t = β(d_{t−1} + B(τ̂_t; θ̂_t)(θ_t − θ_{t−1})) + (1 − β) g(τ_t; θ_t), see
    `jaxbyz.sampling.hessian`, and the server takes θ_{t+1} = θ_t + γ d/‖d‖ with d = Aggregate(d_t^(1), …, d_t^(K)); the
    optimizer sees d/‖d‖, so that plain ascent with step size γ is the published algorithm. Of the N trajectories of an
    iteration, B are for the Hessian. β is the option `momentum`, 0.8 if it is None.

    References:
        Ganesh, Chen, Thoppe and Aggarwal, Global convergence guarantees for federated policy gradient methods with
        adversaries, 2024.
    """
    beta = RES_NHARPG_MOMENTUM if settings.momentum is None else settings.momentum
    settings = replace(
        settings, p=1.0, period=None, small_batches="workers", momentum=None, entropy=0.0,
        optimizer=optax.chain(normalise_direction(), make_optimizer(settings)),
    )  # fmt: skip
    return server_algorithm(
        environment, policy, settings,
        lambda parts: hessian_momentum_sampler(
            environment, policy, settings, parts.interference(environment), beta
        ),
    )  # fmt: skip
