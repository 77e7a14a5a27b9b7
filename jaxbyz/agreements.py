"""Averaging agreement: κ rounds of exchange that bring honest parameters together (Definition 4, Algorithm 3)."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz import graphs
from jaxbyz.attacks.base import Forge, Memory
from jaxbyz.communication import exchange
from jaxbyz.meshes import Places
from jaxbyz.registry import Registry
from jaxbyz.rules import FIFTH, HALF, QUARTER, THIRD, Rule, mda, monna, trimmed_mean
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.gossip import clipped_gossip


class Agreement(NamedTuple):
    """A rule applied to all parameters, round after round, every agent sending its new vector in each.

    rule:      what an agent makes of the K vectors it received
    rounds:    κ; with a tolerance, the most rounds
    tolerance: stop once the honest diameter is at most this; None runs exactly κ rounds
    """

    rule: Rule
    rounds: int
    tolerance: float | None = None


class Agreed(NamedTuple):
    """parameters [R, D] after agreement, of the agents that live here; rounds [] that were used; everyone's [K, D]."""

    parameters: Float[Array, "R D"]
    rounds: Array
    everyone: Float[Array, "K D"]


def theorem_rounds(N: int, agents: int, p: float) -> int:
    """κ = Θ(log(N·K/p²)) of Theorem 2, with constant one and base two, as if each round halved the diameter.

    Against the worst equivocation a round of MDA leaves 3f/(K − f) of it and one of GDA 4f/(K − f), both below 1
    exactly within their limits 1/4 and 1/5, and at most 1/2 for f ≤ K/7 and K/9: see docs/rules.md.
    """
    return max(1, math.ceil(math.log2(N * agents) - 2 * math.log2(p)))


def diameter(parameters: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """Δ₂ of honest agents: max_{i,j honest} ‖θ_i − θ_j‖."""
    both = ~mask[:, None] & ~mask[None, :]
    square = jnp.max(jnp.where(both, squared_distances(parameters), 0.0))
    apart = square > 0  # the gradient at zero is zero, not NaN
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)


def run_agreement(
    key: PRNGKeyArray,
    agreement: Agreement | None,
    parameters: Float[Array, "R D"],
    mask: Bool[Array, " K"],
    forge: Forge | None = None,
    *,
    equivocates: bool = False,
    memory: Memory = (),
    step: Array | int = 0,
    places: Places | None = None,
) -> Agreed:
    """Avg-Agree_κ among K agents under attack; every agent, Byzantine ones too, updates its state as prescribed.

    parameters are those of the agents that live here, which is everyone unless `places` says otherwise. Each round
    gathers once; the gathering after the last one serves whoever wants to measure the outcome.
    """
    places = Places(parameters.shape[0]) if places is None else places
    everyone = places.gather(parameters)
    if agreement is None:
        return Agreed(parameters, jnp.int32(0), everyone)
    states = _states(agreement.rule, places, parameters.shape[1])

    def once(i: Array, now: Array) -> Array:
        rows = exchange(
            jax.random.fold_in(key, i), agreement.rule, states, now, mask, forge,
            equivocates=equivocates, memory=memory, step=step, places=places,
        ).rows  # fmt: skip
        return places.gather(rows)

    if agreement.tolerance is None:
        everyone = jax.lax.fori_loop(0, agreement.rounds, once, everyone)
        return Agreed(places.mine(everyone), jnp.int32(agreement.rounds), everyone)

    tolerance = agreement.tolerance

    def unsettled(carry: tuple[Array, Array]) -> Array:
        i, now = carry
        return (i < agreement.rounds) & (diameter(now, mask) > tolerance)

    used, everyone = jax.lax.while_loop(unsettled, lambda carry: (carry[0] + 1, once(*carry)), (jnp.int32(0), everyone))
    return Agreed(places.mine(everyone), used, everyone)


def _states(rule: Rule, places: Places, D: int) -> Array:
    start = rule.init(places.agents, D)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (places.here, *jnp.shape(leaf))), start)


def _gossip(
    agents: int,
    byzantine: int = 0,
    graph: str = "complete",
    degree: int = 4,
    seed: int = 0,
    radius: float | None = None,
    neighbours: int | None = None,
) -> Rule:
    """ClippedGossip on a named graph: complete, ring, torus or random-regular, with Metropolis weights."""
    weights = graphs.metropolis_weights(graphs.graph(graph, agents, degree=degree, seed=seed))
    return clipped_gossip(weights, byzantine, radius=radius, neighbours=neighbours)


agreements = Registry("agreement")
agreements.add("none", lambda: None, "no agreement: every agent keeps its own parameters")
agreements.add("mda", mda, "Minimum Diameter Averaging, exact (Algorithm 3)", QUARTER)
agreements.add("gda", monna, "Greedy Diameter Averaging: mean of the nearest to one's own (appendix A.3)", FIFTH)

agreements.add("trimmed-mean", trimmed_mean, "coordinate-wise trimmed mean (El-Mhamdi et al. 2021)", THIRD)
agreements.add("clipped-gossip", _gossip, "clipped averaging with neighbours on a graph", HALF)
