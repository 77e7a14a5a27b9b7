"""PAGE-PG and the federations that average without any defence, for comparison."""

from __future__ import annotations

from dataclasses import replace

from jaxbyz.algorithms.base import Algorithm
from jaxbyz.algorithms.byzpg import server_algorithm
from jaxbyz.algorithms.decbyzpg import decentralised_algorithm
from jaxbyz.algorithms.settings import Settings, without_channel
from jaxbyz.algorithms.traits import RARELY_READ, Traits, algorithm
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy
from jaxbyz.protocol.channel_options import CHANNEL_OPTIONS, make_channel
from jaxbyz.rules import mean
from jaxbyz.sampling.settings import check_sampling

SVRPG_PERIOD = 4  # one large batch, then three small steps
NAIVE_IGNORES = RARELY_READ | {"aggregator"}
DEC_PAGE_PG_IGNORES = NAIVE_IGNORES - {"audit"}


def with_mean(settings: Settings) -> Settings:
    """Return settings that aggregate with the mean of the messages that arrive, and without agreement."""
    skip_missing = make_channel(settings, settings.agents).leaves_gaps or settings.audit > 0
    return replace(settings, aggregator=mean(skip_missing=skip_missing), pre_aggregator="none", agreement=None)


@algorithm(Traits(naive=True, single=True, ignores=NAIVE_IGNORES | CHANNEL_OPTIONS | {"local_steps"}))
def page_pg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build PAGE-PG: one agent alone (Gargiani et al. 2022)."""
    alone = replace(
        without_channel(settings), agents=1, byzantine=0, attack=None, schedule="fixed", local_steps=1, audit=0.0
    )
    return decentralised_algorithm(environment, policy, with_mean(alone))


@algorithm(Traits(naive=True, ignores=DEC_PAGE_PG_IGNORES))
def dec_page_pg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build Dec-PAGE-PG: DecByzPG with the mean and without agreement; not fault-tolerant."""
    return decentralised_algorithm(environment, policy, with_mean(settings))


@algorithm(
    Traits(central=True, server_samples=True, naive=True, ignores=NAIVE_IGNORES - {"small_batches"} | {"local_steps"})
)
def fed_page_pg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build Fed-PAGE-PG: ByzPG with the mean; not fault-tolerant."""
    return server_algorithm(environment, policy, with_mean(settings))


@algorithm(
    Traits(
        central=True, server_samples=True, snapshot=True, naive=True, ignores=NAIVE_IGNORES | {"p", "local_steps"},
        instead={"baseline": "leave-one-out", "advantages": "plain", "epochs": 1, "minibatches": 1, "local_eta": None,
                 "N": 16, "B": 4},
    )
)  # fmt: skip
def svrpg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build SVRPG: the mean of the workers' large batches, then a few small steps of the server.

    `period` is one large batch plus the number of small steps; 4 if it is None.

    References:
        Papini et al., Stochastic variance-reduced policy gradient, 2018.
    """
    period = SVRPG_PERIOD if settings.period is None else settings.period
    settings = replace(settings, anchor="snapshot", small_batches=None, period=period)
    check_sampling(settings)
    return server_algorithm(environment, policy, with_mean(settings))
