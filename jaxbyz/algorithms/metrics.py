"""The numbers that describe one iteration, and how they are computed from what the agents did."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbyz.protocol.agreements import diameter
from jaxbyz.protocol.placement import FLOAT_BYTES, Places
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Page, Sampled

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


class StepResults(NamedTuple):
    """What the metrics need to know about an iteration besides the sampling, for all K agents.

    Attributes:
        aggregate_norms: `[K]`, norm of each agent's aggregate.
        shares: `[K, K]`, share of each sender (column) in each receiver's aggregate (row).
        finite_proposals: `[K]`, whether each agent's parameters were finite before agreement.
        parameters: `[K, D]`, parameters after agreement.
        rounds: `[]`, agreement rounds used.
        bytes_sent: `[]`, see `Metrics`.
        bytes_moved: `[]`, see `Metrics`.
        takes_part: `[K]`, whether each agent takes part in this iteration; None if all do.
    """

    aggregate_norms: Float[Array, " K"]
    shares: Float[Array, "K K"]
    finite_proposals: Bool[Array, " K"]
    parameters: Float[Array, "K D"]
    rounds: Array
    bytes_sent: Array
    bytes_moved: Array
    takes_part: Bool[Array, " K"] | None = None


def iteration_metrics(page: Page, coin: Array, sampled: Sampled, mask: Bool[Array, " K"], step: StepResults) -> Metrics:
    """Compute the metrics of one iteration; `mask` marks the Byzantine agents.

    Means over honest agents are means over those that take part; `diameter` and `finite` refer to all honest agents.
    If no honest agent takes part, means are over all of them, whose episodes are simulated all the same, and `finite`
    does not depend on their estimates, which nobody uses.
    """
    honest, estimated = ~mask, finite_rows(sampled.estimate)
    if step.takes_part is not None:
        nobody = ~jnp.any(honest & step.takes_part)
        honest, estimated = honest & (step.takes_part | nobody), estimated | nobody
    finite = step.finite_proposals & finite_rows(step.parameters)

    def honest_average(values: Array) -> Array:
        weight = honest.reshape(-1, *([1] * (values.ndim - 1)))
        return jnp.sum(jnp.where(weight, values, 0.0), axis=0) / jnp.maximum(jnp.sum(honest), 1)

    shares, returns = honest_average(step.shares), honest_average(sampled.returns)
    return Metrics(
        batch=jnp.where(coin, page.N, page.B).astype(jnp.int32),
        returns=returns,
        worst_agent=jnp.min(jnp.where(honest, sampled.returns, jnp.inf)),
        return_spread=jnp.sqrt(honest_average((sampled.returns - returns) ** 2)),
        length=honest_average(sampled.lengths),
        diameter=diameter(step.parameters, mask),
        coin=coin.astype(jnp.int32),
        ess=honest_average(sampled.ess),
        max_weight=jnp.max(jnp.where(honest, sampled.largest, 0.0)),
        byzantine_weight=jnp.sum(jnp.where(mask, shares, 0.0 * shares)),  # 0 · NaN keeps the NaN of unknown shares
        gradient_norm=honest_average(step.aggregate_norms),
        rounds=step.rounds,
        bytes_sent=step.bytes_sent,
        bytes_moved=step.bytes_moved,
        finite=(jnp.all(mask | finite) & jnp.any(honest & estimated)).astype(jnp.int32),
        shares=shares,
        byzantine=mask,
    )


def finite_rows(vectors: Float[Array, "K D"]) -> Bool[Array, " K"]:
    """Return whether each row has finite entries only."""
    return jnp.all(jnp.isfinite(vectors), axis=1)


def decentralised_bytes(
    K: int, D: int, rounds: Array, gradient_bytes: int | None = None, committee: int | None = None
) -> Array:
    """Bytes sent per iteration by K agents without a server: a gradient and κ parameter vectors from each to each.

    Args:
        K: the number of agents.
        D: the number of parameters.
        rounds: the agreement rounds κ.
        gradient_bytes: the size of a gradient message, if it is compressed.
        committee: the number of agents that each agent sends its parameters to, if it is not K.
    """
    if committee is not None:
        rounds = rounds * (committee / K)
    if gradient_bytes in (None, D * FLOAT_BYTES):
        return (1.0 + rounds) * float(K * K * D * FLOAT_BYTES)
    return float(K * K * gradient_bytes) + rounds * float(K * K * D * FLOAT_BYTES)


def central_bytes(K: int, D: int, workers_send: Array, gradient_bytes: int | None = None) -> Array:
    """Bytes sent per iteration with a server: parameters to K workers, and gradients back if the workers sampled."""
    if gradient_bytes in (None, D * FLOAT_BYTES):
        return jnp.where(workers_send, 2.0, 1.0) * float(K * D * FLOAT_BYTES)
    return float(K * D * FLOAT_BYTES) + jnp.where(workers_send, float(K * gradient_bytes), 0.0)


def decentralised_moved(places: Places, rule: Rule, D: int, rounds: Array) -> Array:
    """Bytes between devices without a server: estimates, parameters in κ + 1 gathers, metrics, and the rule state."""
    K = places.agents
    per_agent = (D + SUMMARY_FLOATS) + (1.0 + rounds) * D + (2 + K)  # 2 + K: norm, finite flag and shares
    state = jax.eval_shape(lambda: rule.init(K, D))
    # The adversary sees the rule state of agent 0 twice per iteration.
    shown = 2 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
    return places.bytes_moved(places.per_device * per_agent + shown)


def central_moved(places: Places, D: int, workers_send: Array) -> Array:
    """Bytes between devices with a server: only estimates, because every device holds a copy of the server's state."""
    return jnp.where(workers_send, places.bytes_moved(places.per_device * (D + SUMMARY_FLOATS)), 0.0)
