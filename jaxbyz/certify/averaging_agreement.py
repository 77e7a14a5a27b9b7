"""Definition 4 tried on one agreement rule: contraction of the honest diameter, and drift of the honest mean."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.attacks.honest_statistics import honest_mean, honest_squared_distances
from jaxbyz.certify.rule_names import named_rule
from jaxbyz.certify.starting_inputs import agreement_inputs
from jaxbyz.certify.worst_input import Budget, WorstInput, find_worst_input
from jaxbyz.rules import Receiver, Rule

Witness = dict[str, np.ndarray]  # "parameters" [K, D], "forged" [G − 1, K, D], "mask" [K], "receivers" [2]


class AgreementFinding(NamedTuple):
    """What the search found for one round of an agreement, in honest diameters before the round.

    Attributes:
        contraction: the distance of two honest agents after the round.
        drift: the distance that the honest mean moves.
        contraction_witness: the round with this contraction.
        drift_witness: the round with this drift.
    """

    contraction: float
    drift: float
    contraction_witness: Witness
    drift_witness: Witness


def _output(
    rule: Rule, key: PRNGKeyArray, parameters: Array, forged: Array, mask: Array, receiver: Array
) -> Float[Array, " D"]:
    """Return what one receiver holds after the round if the Byzantine senders send it `forged`."""
    messages = jnp.where(mask[:, None], forged, parameters)
    return rule.apply(key, messages, Receiver(parameters[receiver], receiver), rule.init(*parameters.shape)).rows[0]


def _in_diameters(difference: Float[Array, " D"], parameters: Array, mask: Array) -> Float[Array, ""]:
    """Return ‖difference‖ over the honest diameter; zero if the diameter is lost in rounding."""
    squared_length = jnp.sum(jnp.square(difference))
    squared_diameter = jnp.max(honest_squared_distances(parameters, mask))
    size = jnp.max(jnp.where(mask[:, None], 0.0, jnp.abs(parameters)))
    measurable = squared_diameter > (1e-7 * size) ** 2
    ratio = jnp.sqrt(jnp.maximum(squared_length, 1e-300) / jnp.where(measurable, squared_diameter, 1.0))
    return jnp.where(measurable, jnp.where(jnp.isfinite(squared_length), ratio, jnp.inf), 0.0)


def contraction(
    rule: Rule, key: PRNGKeyArray, point: Float[Array, "3 K D"], mask: Bool[Array, " K"], pair: Int[Array, " 2"]
) -> Float[Array, ""]:
    """Return ‖θ̂_i − θ̂_l‖ after one round, in honest diameters before it.

    Args:
        rule: what every agent applies.
        key: random key of the rule.
        point: `[3, K, D]`: the parameters, what agent i is sent, what agent l is sent.
        mask: `[K]`, True for Byzantine agents.
        pair: `[2]`, the honest agents i and l.
    """
    first, second = (_output(rule, key, point[0], point[1 + r], mask, pair[r]) for r in range(2))
    return _in_diameters(first - second, point[0], mask)


def drift(rule: Rule, key: PRNGKeyArray, point: Float[Array, "G K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """Return how far the honest mean moves in one round, in honest diameters before it.

    Args:
        rule: what every agent applies.
        key: random key of the rule.
        point: `[G, K, D]`: the parameters, and what receivers are sent: one group per receiver for a personal rule, and
            one group for all receivers otherwise.
        mask: `[K]`, True for Byzantine agents.
    """
    parameters = point[0]
    if rule.personal:
        receivers = jnp.arange(parameters.shape[0])
        outputs = jax.vmap(lambda forged, r: _output(rule, key, parameters, forged, mask, r))(point[1:], receivers)
        after = honest_mean(outputs, mask)
    else:
        after = _output(rule, key, parameters, point[1], mask, jnp.argmin(mask))
    return _in_diameters(after - honest_mean(parameters, mask), parameters, mask)


def _measure(what: str, rule: Rule, key: PRNGKeyArray, point: Array, mask: Array, pair: Array) -> Array:
    """Return the contraction or the drift under a key that is derived from the key of the search."""
    rule_key = jax.random.fold_in(key, 1)
    return (
        contraction(rule, rule_key, point, mask, pair) if what == "contraction" else drift(rule, rule_key, point, mask)
    )


def search_agreement(name: str, agents: int, byzantine: int, seed: int, budget: Budget) -> AgreementFinding:
    """Search for the worst round. The set G of Definition 4 is the set of all K − f honest agents.

    That is the hardest choice: with fewer Byzantine agents, the honest agents outside G act like Byzantine ones that
    send the same to everyone. One round suffices: the definition must hold for κ = 1, and what holds for every round
    holds for κ rounds.
    """
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)

        def worst(what: str, groups: int) -> tuple[float, Witness]:
            def search(key: PRNGKeyArray, points: Array, masks: Array, pairs: Array) -> WorstInput:
                return find_worst_input(
                    key,
                    lambda point, context: _measure(what, rule, key, point, *context),
                    points,
                    (masks, pairs),
                    budget,
                )

            dimension = budget.dimension_for(agents)
            starts = agreement_inputs(seed, budget.starts, agents, byzantine, dimension, groups)
            found = fast_compiling_jit(search)(jax.random.key(seed), *map(jnp.asarray, starts))
            point, mask, pair = map(np.asarray, (found.point, *found.context))
            witness = {"parameters": point[0], "forged": point[1:], "mask": mask, "receivers": pair}
            return float(found.value), witness

        largest_contraction, contraction_witness = worst("contraction", 2)
        largest_drift, drift_witness = worst("drift", agents if rule.personal else 1)
        return AgreementFinding(largest_contraction, largest_drift, contraction_witness, drift_witness)


def measure_round(name: str, agents: int, byzantine: int, witness: Witness, what: str, seed: int = 0) -> float:
    """Return the "contraction" or the "drift" of one round, under the key that a search with this seed uses."""
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        point = jnp.concatenate([jnp.asarray(witness["parameters"])[None], jnp.asarray(witness["forged"])])
        mask, pair, key = jnp.asarray(witness["mask"]), jnp.asarray(witness["receivers"]), jax.random.key(seed)
        return float(fast_compiling_jit(lambda x: _measure(what, rule, key, x, mask, pair))(point))
