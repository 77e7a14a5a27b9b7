"""Definition 2 tried on one aggregator: the largest ratio found, and whether the error vanishes with α."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.attacks.base import honest_mean
from jaxbyz.certify.configurations import HONEST, honest_rows, inputs
from jaxbyz.certify.names import named_rule, refusal
from jaxbyz.certify.search import maximise, quick_jit
from jaxbyz.rules import Receiver, Rule

UNBOUNDED = 1e3  # no rule with a proof comes near: at K=13, f=3 proved bounds on the ratio are about 10 and less
KEYS = 8  # draws a random rule is averaged over while searching
FRESH = 512  # fresh draws over which the ratio of a random rule's worst input is reported
PROBE = (16, 64)  # numbers of agents for the test of α → 0, one liar among them
DECAY = 0.5  # least exponent: half-way between error ∝ α (1) and error that stays (0)


class AggregatorFinding(NamedTuple):
    """ratio: the largest ‖a − x̄‖² over Definition 2's spread, that is C_ra·α; decay: exponent p of error ∝ α^p."""

    ratio: float
    decay: float
    messages: np.ndarray
    mask: np.ndarray


def spread(messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """(1/(h(h−1))) Σ_{i,l honest} ‖x_i − x_l‖² = (2/(h−1)) Σ_i ‖x_i − x̄‖²: Definition 2's right side without C_ra·α."""
    gaps = jnp.where(mask[:, None], 0.0, messages - honest_mean(messages, mask)[None])
    return 2.0 * jnp.sum(gaps * gaps) / jnp.maximum(jnp.sum(~mask) - 1, 1)


def ratio(rule: Rule, keys: PRNGKeyArray, messages: Float[Array, "K D"], mask: Bool[Array, " K"]) -> Float[Array, ""]:
    """E‖a − x̄‖² / spread, the expectation over the rule's own keys; at the first honest receiver; from a fresh state.

    Infinite when the answer is not finite. Inputs whose honest spread is lost in rounding (below 10⁻⁸ of their size)
    count as zero: there the ratio would measure arithmetic.
    """
    receiver = jnp.argmin(mask)
    state = rule.init(*messages.shape)
    mean = honest_mean(messages, mask)

    def error(key: PRNGKeyArray) -> Array:
        answer = rule.apply(key, messages, Receiver(messages[receiver], receiver), state).rows[0]
        return jnp.sum(jnp.square(answer - mean))

    errors = jnp.mean(jax.vmap(error)(keys)) if rule.random else error(keys[0])
    below = spread(messages, mask)
    size = jnp.max(jnp.where(mask[:, None], 0.0, jnp.abs(messages)))
    sound = below > (1e-8 * size) ** 2
    value = errors / jnp.where(sound, below, 1.0)
    return jnp.where(sound, jnp.where(jnp.isfinite(errors), value, jnp.inf), 0.0)


def certify_aggregator(
    name: str, agents: int, byzantine: int, *, seed: int, starts: int, climbers: int, steps: int, dimension: int
) -> AggregatorFinding:
    """Search for the input on which the named rule is worst, and measure its decay with α."""
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        points, masks = inputs(seed, starts, agents, byzantine, dimension)

        def search(key: PRNGKeyArray, points: Array, masks: Array) -> Any:
            keys = jax.random.split(jax.random.fold_in(key, 1), KEYS)
            return maximise(
                key, lambda point, mask: ratio(rule, keys, point[0], mask), points, masks,
                climbers=climbers, steps=steps,
            )  # fmt: skip

        found = quick_jit(search)(jax.random.key(seed), jnp.asarray(points), jnp.asarray(masks))
        messages, mask = np.asarray(found.point[0]), np.asarray(found.context)
        value = replay_aggregator(name, agents, byzantine, messages, mask, seed) if rule.random else float(found.value)
        return AggregatorFinding(value, decay(name, seed), messages, mask)


def replay_aggregator(
    name: str, agents: int, byzantine: int, messages: np.ndarray, mask: np.ndarray, seed: int = 0
) -> float:
    """The ratio of one input, with fresh keys where the rule draws any."""
    with jax.enable_x64(True):
        rule = named_rule(name, agents, byzantine)
        keys = jax.random.split(jax.random.key(seed + 1_000_003), FRESH if rule.random else 1)
        return float(quick_jit(lambda x, m: ratio(rule, keys, x, m))(jnp.asarray(messages), jnp.asarray(mask)))


def decay(name: str, seed: int = 0) -> float:
    """p of error ∝ α^p: how the largest ratio over honest-only inputs falls from K=16 to K=64 at f = 1.

    Nobody lies here: H = [K] is one of the sets Definition 2 speaks of, and α = 1/K. A constant C_ra needs the ratio
    to fall at least like α (p ≥ 1). A rule that returns one message, or a median, is as far from the mean as a message
    is, however few the liars: p ≈ 0 and C_ra = Ω(1/α). NaN for a rule that cannot be built at these sizes.
    """
    if any(refusal(name, n, 1) for n in PROBE):
        return math.nan
    first, last = (_largest_alone(name, n, seed) for n in PROBE)
    if last <= 1e-12:
        return math.inf  # the mean itself
    return math.log(first / last) / math.log(PROBE[1] / PROBE[0])


def _largest_alone(name: str, n: int, seed: int) -> float:
    """The largest ratio over arrangements of n agents, all honest, for a rule that allows for one liar."""
    with jax.enable_x64(True):
        rule = named_rule(name, n, 1)
        rng = np.random.default_rng(seed)
        kinds = [kind for kind in HONEST if kind not in ("two", "heavy")]
        rows = [honest_rows(rng, kind, n, n, 1) for kind in kinds for _ in range(3)]
        for share in (0.2, 0.3, 0.4, 0.45):  # clusters of the same proportion at every n
            rows.append(np.where(np.arange(n)[:, None] < share * n, np.eye(1, n), 0.0))
        keys = jax.random.split(jax.random.key(seed), 8 * KEYS)
        each = quick_jit(lambda x: jax.lax.map(lambda one: ratio(rule, keys, one, jnp.zeros(n, bool)), x))
        return float(np.max(each(jnp.asarray(np.stack(rows)))))
