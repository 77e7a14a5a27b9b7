"""Definition 2 tried on one aggregator: the largest error ratio, and whether the error vanishes with α."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.attacks.honest_statistics import honest_deviations, honest_mean
from jaxbyz.certify.rule_names import named_rule, refusal
from jaxbyz.certify.starting_inputs import HONEST_ARRANGEMENTS, aggregation_inputs, honest_rows
from jaxbyz.certify.worst_input import Budget, WorstInput, find_worst_input
from jaxbyz.rules import Receiver, Rule

SEARCH_DRAWS = 8  # draws over which a random rule is averaged during the search
FRESH_KEYS = 512  # new draws over which the ratio of a random rule's worst input is reported
DECAY_AGENTS = (16, 64)  # numbers of agents between which the decay is measured


class AggregatorFinding(NamedTuple):
    """What the search found for one aggregator.

    Attributes:
        ratio: the largest ‖a − x̄‖² over Definition 2's spread, that is, C_ra·α.
        decay: the exponent p of error ∝ α^p.
        messages: `[K, D]`, the input with this ratio.
        mask: `[K]`, its Byzantine rows.
    """

    ratio: float
    decay: float
    messages: np.ndarray
    mask: np.ndarray


def honest_variation(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """Return Definition 2's right side without C_ra·α.

    (1/(h(h−1))) Σ_{i,l honest} ‖x_i − x_l‖² = (2/(h−1)) Σ_i ‖x_i − x̄‖².
    """
    deviations = honest_deviations(messages, mask)
    return 2.0 * jnp.sum(deviations * deviations) / jnp.maximum(jnp.sum(~mask) - 1, 1)


def error_ratio(
    rule: Rule, keys: PRNGKeyArray, messages: Float[Array, "K D"], mask: Bool[Array, " K"]
) -> Float[Array, ""]:
    """Return E‖a − x̄‖² over `honest_variation`, at the first honest receiver and from the rule's initial state.

    The ratio is infinite if the aggregate is not finite. It is zero if the honest variation is lost in rounding (below
    10⁻⁸ of the size of the messages), because it would only measure rounding errors there.

    Args:
        rule: the aggregator.
        keys: random keys of the rule; the expectation is the average over them if the rule is random.
        messages: `[K, D]`, one row per sender.
        mask: `[K]`, True for Byzantine senders.
    """
    receiver = jnp.argmin(mask)
    state = rule.init(*messages.shape)
    mean = honest_mean(messages, mask)

    def squared_error(key: PRNGKeyArray) -> Array:
        aggregate = rule.apply(key, messages, Receiver(messages[receiver], receiver), state).rows[0]
        return jnp.sum(jnp.square(aggregate - mean))

    error = jnp.mean(jax.vmap(squared_error)(keys)) if rule.random else squared_error(keys[0])
    variation = honest_variation(messages, mask)
    size = jnp.max(jnp.where(mask[:, None], 0.0, jnp.abs(messages)))
    measurable = variation > (1e-8 * size) ** 2
    ratio = error / jnp.where(measurable, variation, 1.0)
    return jnp.where(measurable, jnp.where(jnp.isfinite(error), ratio, jnp.inf), 0.0)


def search_aggregator(name: str, agents: int, byzantine: int, seed: int, budget: Budget) -> AggregatorFinding:
    """Search for the input on which the named aggregator is worst, and measure how its error decays with α."""
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        points, masks = aggregation_inputs(seed, budget.starts, agents, byzantine, budget.dimension_for(agents))

        def search(key: PRNGKeyArray, points: Array, masks: Array) -> WorstInput:
            keys = jax.random.split(jax.random.fold_in(key, 1), SEARCH_DRAWS)
            return find_worst_input(
                key, lambda point, mask: error_ratio(rule, keys, point[0], mask), points, masks, budget
            )

        worst = fast_compiling_jit(search)(jax.random.key(seed), jnp.asarray(points), jnp.asarray(masks))
        messages, mask = np.asarray(worst.point[0]), np.asarray(worst.context)
        ratio = measure_ratio(name, agents, byzantine, messages, mask, seed) if rule.random else float(worst.value)
        return AggregatorFinding(ratio, error_decay(name, seed), messages, mask)


def measure_ratio(
    name: str, agents: int, byzantine: int, messages: np.ndarray, mask: np.ndarray, seed: int = 0
) -> float:
    """Return the error ratio of one input, averaged over new keys if the rule is random."""
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        keys = jax.random.split(jax.random.key(seed + 1_000_003), FRESH_KEYS if rule.random else 1)
        ratio = fast_compiling_jit(lambda x, m: error_ratio(rule, keys, x, m))
        return float(ratio(jnp.asarray(messages), jnp.asarray(mask)))


def error_decay(name: str, seed: int = 0) -> float:
    """Return p of error ∝ α^p: how the largest ratio of honest inputs falls from K = 16 to K = 64 at f = 1.

    Nobody is Byzantine here: H = [K] is one of the sets of Definition 2, and α = 1/K. A constant C_ra needs a ratio
    that falls at least like α (p ≥ 1). A rule that returns one message, or a median, is as far from the mean as a
    message is, however few agents are Byzantine: then p ≈ 0 and C_ra = Ω(1/α). NaN if the rule cannot be built for
    these numbers of agents.
    """
    if any(refusal(name, n, 1) for n in DECAY_AGENTS):
        return math.nan
    few, many = (_largest_honest_ratio(name, n, seed) for n in DECAY_AGENTS)
    if many <= 1e-12:
        return math.inf  # the mean itself
    return math.log(few / many) / math.log(DECAY_AGENTS[1] / DECAY_AGENTS[0])


def _largest_honest_ratio(name: str, n: int, seed: int) -> float:
    """Return the largest ratio over arrangements of n honest agents, for a rule that defends against one Byzantine."""
    with jax.enable_x64(True):
        rule = named_rule(name, n, 1)
        rng = np.random.default_rng(seed)
        arrangements = [kind for kind in HONEST_ARRANGEMENTS if kind not in ("two clusters", "heavy tails")]
        inputs = [honest_rows(rng, kind, n, n, 1) for kind in arrangements for _ in range(3)]
        for share in (0.2, 0.3, 0.4, 0.45):  # two clusters of the same proportion for every n
            inputs.append(np.where(np.arange(n)[:, None] < share * n, np.eye(1, n), 0.0))
        keys = jax.random.split(jax.random.key(seed), 8 * SEARCH_DRAWS)
        nobody = jnp.zeros(n, bool)
        ratios = fast_compiling_jit(lambda x: jax.lax.map(lambda rows: error_ratio(rule, keys, rows, nobody), x))
        return float(np.max(ratios(jnp.asarray(np.stack(inputs)))))
