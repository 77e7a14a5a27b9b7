"""The gradient-found attack: forged messages improved by differentiating through the rule that they must deceive."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.ascent import Climber, ascend
from jaxbyz.attacks.base import Attack, Forge, MessageKind, View, rule_output, with_forged_rows
from jaxbyz.attacks.fedpg_br_attacks import ranges_of
from jaxbyz.attacks.gradient_found_starts import (
    Ingredients,
    families_of_starts,
    in_subspace,
    ingredients_of_starts,
)
from jaxbyz.attacks.honest_statistics import (
    angle,
    honest_mean,
    honest_squared_distances,
    honest_std,
    overflow_safe_norm,
)
from jaxbyz.errors import check_choice, check_value

OBJECTIVES = ("distance", "inner", "angle", "diameter")
FARTHEST = 1e4  # how far the ascent may carry a message, in honest spreads; starts may be farther away
ASCENT_DRAWS = 8  # draws over which the damage to a random rule is averaged during the search
FINAL_KEYS = 64  # draws on which the finalists are compared if the rule is random
WIDE = 4096  # messages of this many parameters are searched in a subspace, if the rule permits it
EXACT = jax.lax.Precision.HIGHEST
Damage = Callable[[Float[Array, "G K D"]], Float[Array, ""]]


class Effort(NamedTuple):
    """The options of the search, as `gradient_found` explains them."""

    steps: int
    restarts: int
    reach: float | None


def gradient_found(
    *,
    objective: str | None = None,
    steps: int = 30,
    restarts: int = 8,
    reach: float | None = None,
    on: MessageKind = "both",
) -> Attack:
    """Send the most damaging messages that projected ascent through the rule in use finds.

    Maximises damage(z) over the Byzantine rows z_b with ‖z_b − μ‖ ≤ reach·s, where s² = (1/h) Σ_i ‖x_i − μ‖² is the
    squared honest spread. With a the aggregate of what is sent, `objective` defines the damage:

    - distance: ‖a − μ‖ (default on gradients).
    - inner: −⟨a, μ⟩/‖μ‖.
    - angle: the angle between a and the aggregate of what all agents would send if they were honest, in radians.
    - diameter: ‖a_i − a_j‖ of two honest receivers, each of which is sent its own messages (default on parameters).
      They are the two that are farthest apart before; every other receiver is sent what the nearer of the two is sent.

    The search starts from the default messages of the finite attacks that send every receiver the same, the grids of
    optimal IPM and ALIE, a copy of every honest message, and, without `reach`, a message that is too large for a robust
    rule to use. Climbers start at the best of each family and propose, in turn, a step along the gradient, one along
    gradient plus noise, and one outwards and one inwards on the ray from μ (`jaxbyz.attacks.ascent`). The damage is
    never below that of the best start; for a random rule this holds on average, because the adversary does not know the
    rule's key.

    Costs about 80 + K + restarts·steps applications of the rule, the latter with a backward pass. For a random rule
    each of them is averaged over several keys. A rule that sees only inner products (`Rule.rotates`) cannot tell
    messages from rotated ones. Long messages to such a rule are searched in the space that the honest messages, the
    starts and 2K random directions span. Nothing is lost: for any Byzantine messages, this space has others with the
    same inner products.

    Args:
        objective: the damage to maximise.
        steps: steps of each climber; 0 sends the best start.
        restarts: the number of climbers.
        reach: the largest distance from μ in honest spreads. None leaves the starts where they are; against an
            unbounded rule such as the mean, the huge start then wins.
    """
    if objective is not None:
        check_choice("objective", objective, OBJECTIVES)
    check_choice("on", on, get_args(MessageKind))
    for option, value, least in (("steps", steps, 0), ("restarts", restarts, 1)):
        check_value(option, value, value >= least, f"at least {least}")
    check_value("reach", reach, reach is None or 0 < reach < math.inf, "positive and finite")
    effort = Effort(steps, restarts, reach)
    on_gradients = None if on == "parameters" else objective or "distance"
    on_parameters = None if on == "gradients" else objective or "diameter"
    return Attack(
        gradients=None if on_gradients is None else _forge(on_gradients, effort),
        parameters=None if on_parameters is None else _forge(on_parameters, effort),
        equivocates="diameter" in (on_gradients, on_parameters),
        searches=True,
    )


def _forge(objective: str, effort: Effort) -> Forge:
    """Return the function that forges messages."""
    reach = effort.reach

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        vectors, ranges = ingredients_of_starts(key, view), ranges_of(view.messages)
        if not view.rotates or view.messages.shape[1] < WIDE:
            return best_messages(key, view, vectors, ranges, receiver)
        vectors, basis = in_subspace(vectors)
        found = best_messages(key, view._replace(messages=vectors.messages), vectors, ranges, receiver)
        return jnp.matmul(found, basis.T, precision=EXACT)

    def best_messages(
        key: PRNGKeyArray, view: View, vectors: Ingredients, ranges: Array, receiver: Array
    ) -> Float[Array, "K D"]:
        """Search from the starts. Inside, messages are measured from μ in honest spreads."""
        families = families_of_starts(view, vectors, ranges, huge=reach is None)
        key_damage, key_climb, key_final = jax.random.split(jax.random.fold_in(key, 1), 3)
        mean, spread = honest_mean(view.messages, view.mask), honest_spread(view)
        pair = farthest_pair(view)
        damage = damage_function(key_damage, view, objective, pair, ASCENT_DRAWS)
        final_damage = (
            damage_function(key_final, view, objective, pair, FINAL_KEYS) if view.averages_over_keys else None
        )
        families = [
            jnp.broadcast_to((rows - mean[None, None]) / spread, (len(rows), *view.messages.shape)) for rows in families
        ]
        if objective == "diameter":  # one receiver of the pair starts with the message, the other with its mirror image
            families = [jnp.stack([rows, -rows], axis=1) for rows in families]
        else:
            families = [rows[:, None] for rows in families]
        if reach is not None:
            families = [project(rows, reach) for rows in families]
        best = search(key_climb, damage, final_damage, families, view.mask, effort)
        if objective != "diameter":
            return mean[None] + spread * best[0]
        distances = jnp.sum((view.messages[pair] - view.messages[receiver][None]) ** 2, axis=1)
        second = jnp.where(distances[0] == distances[1], receiver % 2 == 1, distances[1] < distances[0])
        return mean[None] + spread * jnp.where(second, best[1], best[0])

    return forge


def honest_spread(view: View) -> Float[Array, ""]:
    """Return s = √((1/h) Σ ‖x_i − μ‖²) of the honest messages; if they are all equal, ‖μ‖, or 1 if that is zero."""
    spread = jnp.linalg.norm(honest_std(view.messages, view.mask))
    norm = jnp.linalg.norm(honest_mean(view.messages, view.mask))
    return jnp.where(spread > 0, spread, jnp.where(norm > 0, norm, 1.0))


def farthest_pair(view: View) -> Int[Array, " 2"]:
    """Return the two honest agents that are farthest apart; twice the first honest agent if all are equal."""
    squares = honest_squared_distances(view.messages, view.mask)
    K = squares.shape[0]
    pair = jnp.argmax(squares)
    return jnp.where(jnp.max(squares) > 0, jnp.stack([pair // K, pair % K]), jnp.argmin(view.mask))


def damage_function(key: PRNGKeyArray, view: View, objective: str, pair: Int[Array, " 2"], draws: int) -> Damage:
    """Return the damage of forged messages `[G, K, D]`, in honest spreads; infinite if the aggregate is not
    finite. An angle is in radians, and π then.

    Args:
        key: random key of the rule, as the adversary guesses it.
        view: what the adversary sees.
        objective: one of `OBJECTIVES`; G is 2 for "diameter" and 1 for the others.
        pair: `[2]`, the receivers whose distance is the diameter.
        draws: the number of keys over which damage to a random rule is averaged.
    """
    mean, spread = honest_mean(view.messages, view.mask), honest_spread(view)
    norm = jnp.linalg.norm(mean)
    mean_direction = mean / jnp.where(norm > 0, norm, 1.0)

    def damage(key: PRNGKeyArray, forged: Array) -> Array:
        messages = jax.vmap(lambda rows: with_forged_rows(view, mean[None] + spread * rows))(forged)
        if objective == "diameter":
            outputs = [rule_output(view, messages[i], key=key, receiver=pair[i]) for i in range(2)]
            return overflow_safe_norm((outputs[0] - outputs[1]) / spread)
        output = rule_output(view, messages[0], key=key)
        if objective == "angle":
            return angle(output, rule_output(view, view.messages, key=key))
        if objective == "inner":
            value = -jnp.sum(output * mean_direction) / spread
            return jnp.where(jnp.isfinite(value), value, jnp.inf)
        return overflow_safe_norm((output - mean) / spread)

    if not view.averages_over_keys:
        return lambda forged: damage(key, forged)
    keys = jax.random.split(key, draws)
    return lambda forged: jnp.mean(jax.vmap(damage, (0, None))(keys, forged))


def project(rows: Float[Array, "... D"], reach: float) -> Float[Array, "... D"]:
    """Move every row into the ball of radius `reach` about the origin, which is the honest mean here."""
    norms = jax.vmap(overflow_safe_norm)(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:-1], 1)
    return jnp.where(norms > reach, rows * (reach / jnp.maximum(norms, reach)), rows)


def search(
    key: PRNGKeyArray,
    damage: Damage,
    final_damage: Damage | None,
    families: list[Float[Array, "C G K D"]],
    mask: Bool[Array, " K"],
    effort: Effort,
) -> Float[Array, "G K D"]:
    """Return the most damaging messages found from the best start of each family; never below the best start.

    With `final_damage`, climbers and starts are compared by it in the end: an average over a few draws of a random rule
    is easily raised by luck.
    """
    starts = jnp.concatenate(families)
    values = jax.vmap(damage)(starts)
    best_of_families, begin = [], 0
    for family in families:
        best_of_families.append(begin + jnp.argmax(values[begin : begin + family.shape[0]]))
        begin += family.shape[0]
    winners = jnp.stack(best_of_families)
    # Climbers start at the families' winners, best first; any further ones at the best of all.
    ranked = winners[jnp.argsort(-values[winners])]
    index = jnp.arange(effort.restarts)
    chosen = jnp.where(index < len(winners), ranked[index % len(winners)], ranked[0])
    best_start = starts[chosen[0]]
    if effort.steps == 0:
        return best_start

    G, K, D = best_start.shape
    draws = jax.random.normal(key, (effort.restarts, effort.steps, G, K + D), starts.dtype)
    limit = FARTHEST if effort.reach is None else effort.reach
    found = ascend(lambda forged, _: damage(forged), _moves(mask, limit), starts[chosen], draws)
    if final_damage is not None:
        finalists = jnp.concatenate([found.point, starts[winners]])
        return finalists[jnp.argmax(jax.lax.map(final_damage, finalists))]
    top = jnp.argmax(found.value)
    # If nothing was gained, return the start itself: its numbers are then exactly those of the attack it comes from.
    return jnp.where(found.value[top] > values[chosen[0]], found.point[top], best_start)


def _moves(mask: Bool[Array, " K"], limit: float) -> Callable[[Array, Climber, Array], Array]:
    """Return the proposals, in turn: gradient, gradient plus noise, outwards, inwards; projected into the ball."""
    byzantine = mask[None, :, None]

    def propose(i: Array, now: Climber, draws: Float[Array, "G K+D"]) -> Array:
        K = mask.shape[0]
        common, by_sender = draws[:, None, K:], draws[:, :K, None]
        noise = common / jnp.sqrt(1.0 * common.shape[-1]) * (1.0 + 0.5 * by_sender)
        norm = jnp.sqrt(jnp.sum(now.slope**2) / jnp.maximum(jnp.sum(mask), 1))
        uphill = now.slope / jnp.where(norm > 0, norm, 1.0)
        turn = i % 4
        along_gradient = uphill + jnp.where((turn == 1) | (norm == 0), noise, 0.0)
        along_ray = jnp.where(turn == 2, 1.0, -0.5) * now.point
        move = jnp.where(byzantine, jnp.where(turn < 2, along_gradient, along_ray), 0.0)
        proposal = now.point + now.step * move
        return jnp.where(jnp.isfinite(proposal), project(proposal, limit), now.point)

    return propose
