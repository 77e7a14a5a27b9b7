"""The numbers that describe one iteration, and how they are computed from what the agents did."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.protocol.agreements import Agreement, diameter
from jaxbyz.protocol.channel import Channel, sized
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.placement import FLOAT_BYTES, Places
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Sampled
from jaxbyz.sampling.settings import Batches

SUMMARY_FLOATS = len(Sampled._fields) - 1  # numbers gathered from other devices beside each estimate


class Metrics(NamedTuple):
    """One iteration in numbers. Every field is a scalar unless a shape is given.

    Attributes:
        batch: trajectories per agent that were sampled in this iteration: N, B, or what FedPG-BR draws; 0 if it waits.
        returns: mean undiscounted return over the honest agents' trajectories.
        worst_agent: the lowest mean return of an honest agent.
        return_spread: standard deviation of the honest agents' mean returns, each in its own environment.
        length: mean episode length of the honest agents.
        diameter: largest distance between the parameters of two honest agents after agreement.
        coin: 1 if the batch was large.
        ess: effective sample size of the importance weights divided by B, mean over honest agents; 1 for a large batch.
        max_weight: largest importance weight of an honest agent.
        byzantine_weight: total share of Byzantine messages in the aggregate, mean over honest receivers; NaN if the
            rule does not report shares.
        gradient_norm: mean norm of the honest receivers' aggregates.
        rounds: agreement rounds used.
        bytes_sent: bytes sent by all agents and the server, D floats per message, counted as in the paper; all-to-all
            messages are assumed even on a graph.
        bytes_moved: bytes that crossed between devices if the agents are spread over several.
        finite: 1 if the parameters of all honest agents are finite before and after agreement, and at least one honest
            estimate is finite. Robust rules replace non-finite messages by zeros, so the result alone would hide it.
        shares: `[K]`, share of each sender in the aggregate, mean over honest receivers; zero if the server
            sampled alone.
        byzantine: `[K]`, True for Byzantine agents.
    """

    batch: Array
    returns: Array
    worst_agent: Array
    return_spread: Array
    length: Array
    diameter: Array
    coin: Array
    ess: Array
    max_weight: Array
    byzantine_weight: Array
    gradient_norm: Array
    rounds: Array
    bytes_sent: Array
    bytes_moved: Array
    finite: Array
    shares: Array
    byzantine: Array


class Measured(NamedTuple):
    """What an iteration did, for all K agents; the metrics are computed from it.

    Attributes:
        sampled: what the agents sampled, with their estimates.
        aggregate_norms: `[K]`, norm of each agent's aggregate.
        shares: `[K, K]`, share of each sender (column) in each receiver's aggregate (row).
        finite_proposals: `[K]`, whether each agent's parameters were finite before agreement.
        parameters: `[K, D]`, parameters after agreement.
        exchanges: `[]`, how often gradients were sent.
        rounds: `[]`, agreement rounds used.
    """

    sampled: Sampled
    aggregate_norms: Float[Array, " K"]
    shares: Float[Array, "K K"]
    finite_proposals: Bool[Array, " K"]
    parameters: Float[Array, "K D"]
    exchanges: Array
    rounds: Array

    def followed_by(self, new: Measured) -> Measured:
        """Return the sums over this and a later message of the same iteration."""
        return new._replace(
            aggregate_norms=self.aggregate_norms + new.aggregate_norms,
            shares=self.shares + new.shares,
            finite_proposals=self.finite_proposals & new.finite_proposals,
            exchanges=self.exchanges + new.exchanges,
            rounds=self.rounds + new.rounds,
        )


class Bytes(NamedTuple):
    """The bytes of one iteration: those sent as the paper counts them, and those that crossed between devices."""

    sent: Array
    moved: Array


def iteration_metrics(settings: Batches, now: Iteration, measured: Measured, transferred: Bytes) -> Metrics:
    """Compute the metrics of one iteration.

    Means over honest agents are means over those that take part; `diameter` and `finite` consider the parameters of all
    honest agents. If no honest agent takes part, means are over all honest agents, because the episodes of absent ones
    are simulated as well. In that case `finite` ignores the estimates, because nobody uses them.
    """
    sampled, mask = measured.sampled, now.mask
    honest, estimated = ~mask, finite_rows(sampled.estimate)
    if now.present is not None:
        nobody = ~jnp.any(honest & now.takes_part)
        honest, estimated = honest & (now.takes_part | nobody), estimated | nobody
    finite = measured.finite_proposals & finite_rows(measured.parameters)

    def honest_average(values: Array) -> Array:
        weight = honest.reshape(-1, *([1] * (values.ndim - 1)))
        return jnp.sum(jnp.where(weight, values, 0.0), axis=0) / jnp.maximum(jnp.sum(honest), 1)

    shares, returns = honest_average(measured.shares), honest_average(sampled.returns)
    return Metrics(
        batch=jnp.where(now.coin, settings.N, settings.B).astype(jnp.int32),
        returns=returns,
        worst_agent=jnp.min(jnp.where(honest, sampled.returns, jnp.inf)),
        return_spread=jnp.sqrt(honest_average((sampled.returns - returns) ** 2)),
        length=honest_average(sampled.lengths),
        diameter=diameter(measured.parameters, mask),
        coin=now.coin.astype(jnp.int32),
        ess=honest_average(sampled.ess),
        max_weight=jnp.max(jnp.where(honest, sampled.largest, 0.0)),
        byzantine_weight=jnp.sum(jnp.where(mask, shares, 0.0 * shares)),  # 0 · NaN keeps the NaN of unknown shares
        gradient_norm=honest_average(measured.aggregate_norms),
        rounds=measured.rounds,
        bytes_sent=transferred.sent,
        bytes_moved=transferred.moved,
        finite=(jnp.all(mask | finite) & jnp.any(honest & estimated)).astype(jnp.int32),
        shares=shares,
        byzantine=mask,
    )


def finite_rows(vectors: Float[Array, "K D"]) -> Bool[Array, " K"]:
    """Return whether each row has finite entries only."""
    return jnp.all(jnp.isfinite(vectors), axis=1)


Transferred = Callable[[Places, Measured], Bytes]


def transferred_between_agents(
    channel: Channel, rule: Rule, agreement: Agreement | None, D: int, messages: int
) -> Transferred:
    """Return what counts the bytes of an iteration without a server: those sent, and those moved between devices.

    Args:
        channel: how messages travel.
        rule: the rule for gradients.
        agreement: how agents agree on parameters.
        D: the number of parameters.
        messages: the number of messages per iteration.
    """

    def gathers(measured: Measured) -> Array | float:
        """Return how often devices gather parameters; without a tolerance also if local steps discard the result."""
        if agreement is None or agreement.tolerance is not None:
            return measured.rounds
        return float(agreement.rounds * messages)

    def transferred(places: Places, measured: Measured) -> Bytes:
        moved = decentralised_moved(places, sized(rule, channel.voters), D, messages, gathers(measured))
        return Bytes(decentralised_bytes(channel, agreement, D, measured), moved)

    return transferred


def decentralised_bytes(channel: Channel, agreement: Agreement | None, D: int, measured: Measured) -> Array:
    """Return the bytes sent without a server: gradients, and parameters in every round, from each agent to each.

    Within committees, every agent sends its parameters to the members of its committee only.
    """
    pairs = channel.present**2
    committee = None if agreement is None else agreement.rule.committee
    reached = 1.0 if committee is None else committee / channel.present
    gradients = measured.exchanges * float(pairs * channel.message_bytes(D))
    return gradients + measured.rounds * reached * float(pairs * D * FLOAT_BYTES)


def decentralised_moved(places: Places, rule: Rule, D: int, messages: int, rounds: Array | float) -> Array:
    """Return the bytes between devices without a server.

    Every message gathers estimates, parameters before the first round and after each round, metrics, and the state of
    the rule twice: once to forge messages and once for `Attack.remember`.
    """
    K = places.agents
    per_agent = messages * ((D + SUMMARY_FLOATS) + D + (2 + K)) + rounds * D  # 2 + K: norm, finite flag and shares
    state = jax.eval_shape(lambda: rule.init(K, D))
    shown = 2 * messages * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
    return places.bytes_moved(places.per_device * per_agent + shown)


def transferred_with_server(channel: Channel, D: int, messages: int) -> Transferred:
    """Return what counts the bytes of an iteration with a server: parameters to every worker, and gradients back.

    Between devices only estimates are moved, because every device holds a copy of the server's state.
    """
    workers = channel.present

    def transferred(places: Places, measured: Measured) -> Bytes:
        parameters = float(messages * workers * D * FLOAT_BYTES)
        sent = parameters + measured.exchanges * float(workers * channel.message_bytes(D))
        return Bytes(sent, measured.exchanges * places.bytes_moved(places.per_device * (D + SUMMARY_FLOATS)))

    return transferred
