"""Algorithms of other papers, expressed with the parts of ByzPG so that they can be compared with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from jaxtyping import Array

from jaxbyz.algorithms.base import DEFAULT_DELIVERY, DEFAULT_PAGE, Algorithm, check_parts
from jaxbyz.algorithms.byzpg import byzpg
from jaxbyz.algorithms.naive import fed_page_pg
from jaxbyz.attacks import Attack
from jaxbyz.attacks.honest_statistics import unit
from jaxbyz.environments import Environment
from jaxbyz.errors import check_value
from jaxbyz.policies import Policy
from jaxbyz.protocol.delivery import Delivery
from jaxbyz.protocol.schedules import Schedule
from jaxbyz.rules import Rule
from jaxbyz.sampling.hessian import hessian_momentum_sampler
from jaxbyz.sampling.page import Page

RES_NHARPG_MOMENTUM = 0.8
SVRPG_PERIOD = 4  # one large batch, then three small steps


def byz_vr_marina_pg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    assumed_byzantine: int | None = None,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    delivery: Delivery = DEFAULT_DELIVERY,
    unsafe: bool = False,
) -> Algorithm:
    """Build Byz-VR-MARINA-PG: ByzPG whose workers sample the small batches too. Arguments as in `byzpg`.

    References:
        Gorbunov et al., Variance reduction is an antidote to Byzantines, 2023; applied to policy gradient here.
    """
    return byzpg(
        environment, policy, agents=agents, aggregator=aggregator, optimizer=optimizer, byzantine=byzantine,
        assumed_byzantine=assumed_byzantine, attack=attack, schedule=schedule, page=page, p=p, period=period,
        server_samples=False, delivery=delivery, unsafe=unsafe,
    )  # fmt: skip


def normalise_direction() -> optax.GradientTransformation:
    """Return the transformation v ↦ v/‖v‖; zero stays zero."""

    def update(direction: Array, state: Any, parameters: Array | None = None) -> tuple[Array, Any]:
        return unit(direction), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), update)


def res_nharpg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    assumed_byzantine: int | None = None,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    momentum: float | None = None,
    delivery: Delivery = DEFAULT_DELIVERY,
    unsafe: bool = False,
) -> Algorithm:
    """Build Res-NHARPG: workers correct their momentum with a Hessian, and the server takes normalised steps.

    Arguments as in `byzpg`. Every worker sends d_t = β(d_{t−1} + B(τ̂_t; θ̂_t)(θ_t − θ_{t−1})) + (1 − β) g(τ_t; θ_t), see
    `jaxbyz.sampling.hessian`, and the server takes θ_{t+1} = θ_t + γ d/‖d‖ with d = Aggregate(d_t^(1), …, d_t^(K)); the
    optimizer sees d/‖d‖, so that plain ascent with step size γ is the published algorithm. Of the N trajectories of an
    iteration, B are for the Hessian.

    Args:
        environment: as in `byzpg`.
        policy: as in `byzpg`.
        agents: as in `byzpg`.
        aggregator: as in `byzpg`.
        optimizer: as in `byzpg`.
        byzantine: as in `byzpg`.
        assumed_byzantine: as in `byzpg`.
        attack: as in `byzpg`.
        schedule: as in `byzpg`.
        page: as in `byzpg`.
        momentum: β; 0.8 if it is None.
        delivery: as in `byzpg`.
        unsafe: as in `byzpg`.

    References:
        Ganesh, Chen, Thoppe and Aggarwal, Global convergence guarantees for federated policy gradient methods with
        adversaries, 2024.
    """
    check_parts(environment, policy, optimizer)
    beta = RES_NHARPG_MOMENTUM if momentum is None else momentum
    check_value("momentum", beta, 0 <= beta < 1, "in [0, 1)")
    return byzpg(
        environment, policy, agents=agents, aggregator=aggregator,
        optimizer=optax.chain(normalise_direction(), optimizer), byzantine=byzantine,
        assumed_byzantine=assumed_byzantine, attack=attack, schedule=schedule, page=page, p=1.0,
        server_samples=False, delivery=delivery, make_sampler=partial(hessian_momentum_sampler, momentum=beta),
        unsafe=unsafe,
    )  # fmt: skip


def svrpg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    period: int | None = None,
    delivery: Delivery = DEFAULT_DELIVERY,
) -> Algorithm:
    """Build SVRPG: the mean of the workers' large batches, then a few small steps of the server.

    Arguments as in `byzpg`. `period` is one large batch plus the number of small steps; 4 if it is None.

    References:
        Papini et al., Stochastic variance-reduced policy gradient, 2018.
    """
    return fed_page_pg(
        environment, policy, agents=agents, optimizer=optimizer, byzantine=byzantine, attack=attack,
        schedule=schedule, page=page._replace(anchor="snapshot"), period=SVRPG_PERIOD if period is None else period,
        delivery=delivery,
    )  # fmt: skip


def fedpg_br(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    assumed_byzantine: int | None = None,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    batch_spread: int = 0,
    ratio_window: float | None = None,
    delivery: Delivery = DEFAULT_DELIVERY,
    unsafe: bool = False,
) -> Algorithm:
    """Build FedPG-BR: filtered large batches, then a geometric number of small steps of the server.

    The number of small steps is geometric with parameter B/(N + B), which is the same as a coin of that probability in
    every iteration. The authors' code is `batch_spread=4, ratio_window=0.005` on CartPole; there the parameter of the
    geometric distribution follows the size that was drawn, while here it stays that of its mean.

    Args:
        environment: as in `byzpg`.
        policy: as in `byzpg`.
        agents: as in `byzpg`.
        aggregator: as in `byzpg`; the algorithm was designed for the rule `fedpg-br`.
        optimizer: as in `byzpg`.
        byzantine: as in `byzpg`.
        assumed_byzantine: as in `byzpg`.
        attack: as in `byzpg`.
        schedule: as in `byzpg`.
        page: as in `byzpg`.
        batch_spread: the size of every large batch is drawn from {N − batch_spread, …, N + batch_spread}.
        ratio_window: the small steps end once the mean of π(a_t | s_t; θ_0)/π(a_t | s_t; θ_n) over the steps of the
            server's batch is farther than this from 1, where θ_0 are the parameters of the large batch. Until the next
            large batch the server takes no step. None for no early end.
        delivery: as in `byzpg`.
        unsafe: as in `byzpg`.

    References:
        Fan et al., Fault-tolerant federated reinforcement learning with theoretical guarantee, 2021; the early end is
        only in their code.
    """
    settings = page._replace(anchor="snapshot", batch_spread=batch_spread, ratio_window=ratio_window)
    settings.check()
    return byzpg(
        environment, policy, agents=agents, aggregator=aggregator, optimizer=optimizer, byzantine=byzantine,
        assumed_byzantine=assumed_byzantine, attack=attack, schedule=schedule, page=settings,
        p=page.B / (page.N + page.B), delivery=delivery, unsafe=unsafe,
    )  # fmt: skip
