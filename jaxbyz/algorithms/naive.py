"""PAGE-PG and the federations that average without any defence, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import optax
from jaxtyping import Array

from jaxbyz.algorithms.base import DEFAULT_DELIVERY, DEFAULT_PAGE, Algorithm
from jaxbyz.algorithms.byzpg import byzpg
from jaxbyz.algorithms.decbyzpg import decbyzpg
from jaxbyz.attacks import Attack
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy
from jaxbyz.protocol.delivery import Delivery
from jaxbyz.protocol.schedules import Schedule
from jaxbyz.rules import mean
from jaxbyz.sampling.page import Page


def page_pg(
    environment: Environment,
    policy: Policy,
    *,
    optimizer: optax.GradientTransformation,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
) -> Algorithm:
    """Build PAGE-PG: one agent alone (Gargiani et al. 2022). Arguments as in `decbyzpg`."""
    return dec_page_pg(environment, policy, agents=1, optimizer=optimizer, page=page, p=p, period=period)


def dec_page_pg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    delivery: Delivery = DEFAULT_DELIVERY,
    local_steps: int = 1,
) -> Algorithm:
    """Build Dec-PAGE-PG: DecByzPG with the mean and without agreement; not fault-tolerant. Arguments as there."""
    return decbyzpg(
        environment, policy, agents=agents, aggregator=mean(skip_missing=delivery.leaves_gaps), agreement=None,
        optimizer=optimizer, byzantine=byzantine, attack=attack, schedule=schedule, page=page, p=p, period=period,
        delivery=delivery, local_steps=local_steps,
    )  # fmt: skip


def fed_page_pg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    server_samples: bool = True,
    delivery: Delivery = DEFAULT_DELIVERY,
) -> Algorithm:
    """Build Fed-PAGE-PG: ByzPG with the mean; not fault-tolerant. Arguments as in `byzpg`."""
    return byzpg(
        environment, policy, agents=agents, aggregator=mean(skip_missing=delivery.leaves_gaps), optimizer=optimizer,
        byzantine=byzantine, attack=attack, schedule=schedule, page=page, p=p, period=period,
        server_samples=server_samples, delivery=delivery, unsafe=True,
    )  # fmt: skip
