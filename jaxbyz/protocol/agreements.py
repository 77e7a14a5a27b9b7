"""Averaging agreement: κ rounds of messages that bring the honest parameters together (Definition 4, Algorithm 3)."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.errors import UsageError
from jaxbyz.protocol import graphs
from jaxbyz.protocol.committees import committees
from jaxbyz.protocol.exchange import Adversary, copies, exchange, receive, round_keys
from jaxbyz.protocol.placement import Places
from jaxbyz.registry import Registry
from jaxbyz.rules import FIFTH, HALF, QUARTER, THIRD, Rule, mda, monna, trimmed_mean
from jaxbyz.rules.base import root
from jaxbyz.rules.clipped_gossip import clipped_gossip
from jaxbyz.rules.distances import squared_distances


class Agreement(NamedTuple):
    """Averaging agreement: in every round each agent sends its vector and applies a rule to the K vectors it receives.

    Attributes:
        rule: what an agent makes of the K vectors.
        rounds: the number of rounds κ; with a tolerance, the largest number of rounds.
        tolerance: stop once the honest diameter is at most this; None runs exactly κ rounds.
    """

    rule: Rule
    rounds: int
    tolerance: float | None = None


class Agreed(NamedTuple):
    """The result of an agreement.

    Attributes:
        parameters: `[R, D]`, what the R agents on this device hold.
        rounds: `[]`, the rounds that were used.
        everyone: `[K, D]`, what all agents hold.
    """

    parameters: Float[Array, "R D"]
    rounds: Array
    everyone: Float[Array, "K D"]


def theorem_rounds(N: int, agents: int, p: float) -> int:
    """Return κ = ⌈log2(N·K/p²)⌉, Theorem 2's Θ(log(N·K/p²)) with constant one.

    The constant is exact if every round halves the diameter. Against the worst equivocation, one round of MDA leaves
    3f/(K − f) of the diameter and one round of GDA 4f/(K − f). Both are below 1 exactly within the limits 1/4 and 1/5,
    and at most 1/2 for f ≤ K/7 and f ≤ K/9: see docs/rules.md.
    """
    return max(1, math.ceil(math.log2(N * agents) - 2 * math.log2(p)))


def diameter(parameters: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """Return Δ₂ of the honest agents, max over honest i, j of ‖θ_i − θ_j‖; `mask` marks the Byzantine agents."""
    both = ~mask[:, None] & ~mask[None, :]
    return root(jnp.max(jnp.where(both, squared_distances(parameters), 0.0)))


def run_agreement(
    key: PRNGKeyArray,
    agreement: Agreement | None,
    parameters: Float[Array, "R D"],
    adversary: Adversary,
    places: Places | None = None,
) -> Agreed:
    """Run Avg-Agree_κ among K agents under attack. Byzantine agents update their own state as prescribed.

    Args:
        key: random key of this agreement.
        agreement: the rule and its rounds; None leaves all parameters as they are.
        parameters: `[R, D]`, one row per agent on this device.
        adversary: who lies, and how.
        places: where agents live; by default all of them are on this device.

    A rule with memory starts anew in every round.
    """
    places = Places(parameters.shape[0]) if places is None else places
    everyone = places.gather(parameters)
    if agreement is None:
        return Agreed(parameters, jnp.int32(0), everyone)
    states = copies(agreement.rule.init(places.agents, parameters.shape[1]), places.per_device)

    def one_round(i: Array, everyone: Array) -> Array:
        outcome = exchange(key_of_round(key, i), agreement.rule, states, everyone, adversary, places, equal_states=True)
        return places.gather(outcome.rows)

    if agreement.tolerance is None:
        everyone = jax.lax.fori_loop(0, agreement.rounds, one_round, everyone)
        return Agreed(places.local(everyone), jnp.int32(agreement.rounds), everyone)

    tolerance = agreement.tolerance

    def apart(carry: tuple[Array, Array]) -> Array:
        i, everyone = carry
        return (i < agreement.rounds) & (diameter(everyone, adversary.mask) > tolerance)

    used, everyone = jax.lax.while_loop(
        apart, lambda carry: (carry[0] + 1, one_round(*carry)), (jnp.int32(0), everyone)
    )
    return Agreed(places.local(everyone), used, everyone)


def key_of_round(key: PRNGKeyArray, i: Array | int) -> PRNGKeyArray:
    """Return the key of round i, counted from 0, of the agreement with this key."""
    return jax.random.fold_in(key, i)


def agree_once(
    key: PRNGKeyArray, i: Array | int, rule: Rule, sent: Float[Array, "n D"], index: Array, row: Array
) -> Float[Array, " D"]:
    """Return what one agent holds after round i of an agreement, from the messages that it got.

    Args:
        key: random key of this agreement.
        i: the round, counted from 0.
        rule: the rule of the agreement.
        sent: `[n, D]`, the messages that the agent got; its own row is true.
        index: `[]`, its number.
        row: `[]`, the row of its own message.
    """
    if rule.committee is not None:
        raise UsageError("agreement=committees: runs within one program only")
    state = rule.init(*sent.shape)
    return receive(round_keys(key_of_round(key, i)), rule, state, sent, sent[row], index, row).rows


def gossip_on_graph(
    agents: int,
    byzantine: int = 0,
    graph: str = "complete",
    degree: int = 4,
    seed: int = 0,
    radius: float | None = None,
    neighbours: int | None = None,
    threshold: str = "he",
) -> Rule:
    """Return ClippedGossip on a named graph (complete, ring, torus or random-regular) with Metropolis weights."""
    weights = graphs.metropolis_weights(graphs.graph(graph, agents, degree=degree, seed=seed))
    return clipped_gossip(weights, byzantine, radius=radius, neighbours=neighbours, threshold=threshold)


agreements = Registry("agreement")
agreements.add("none", lambda: None, "no agreement: every agent keeps its own parameters")
agreements.add("mda", mda, "Minimum Diameter Averaging, exact (Algorithm 3)", QUARTER)
agreements.add(
    "gda",
    monna,
    "Greedy Diameter Averaging: mean of the n − f nearest vectors (appendix A.3)",
    FIFTH,
)
agreements.add("trimmed-mean", trimmed_mean, "coordinate-wise trimmed mean (El-Mhamdi et al. 2021)", THIRD)
READ_ON_RANDOM_GRAPHS = {"degree": ("graph", "random-regular"), "seed": ("graph", "random-regular")}
agreements.add(
    "clipped-gossip", gossip_on_graph, "clipped averaging with neighbours on a graph", HALF,
    read_if=READ_ON_RANDOM_GRAPHS,
)  # fmt: skip
agreements.add(
    "cs-gossip", partial(gossip_on_graph, threshold="cs+"),
    "CS₊-RG: averaging on a graph, clipped at the distance of the 2b-th farthest neighbour", HALF,
    read_if=READ_ON_RANDOM_GRAPHS,
)  # fmt: skip
agreements.add("committees", committees, "a rule within random committees, about K·log K messages per round", THIRD)
