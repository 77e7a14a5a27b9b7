"""Optimal IPM and optimal ALIE: the scale that does most damage to the rule in use, from a grid."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.alie import alie_row
from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages, rule_output, sent_by_all, with_forged_rows
from jaxbyz.attacks.honest_statistics import angle, honest_mean, overflow_safe_norm
from jaxbyz.attacks.ipm import ipm_row
from jaxbyz.errors import check_choice

LINE_SEARCH_DRAWS = 4  # draws over which the effect on a random rule is averaged
LINE_SEARCH_OBJECTIVES = ("distance", "angle")
Effect = Callable[[Float[Array, "K D"], PRNGKeyArray], Float[Array, ""]]


def scale_grid(dtype: jnp.dtype, least: float = 0.01, most: float = 100.0, tries: int = 24) -> Float[Array, " tries"]:
    """Return scales in geometric steps, because damage changes with the order of magnitude."""
    return jnp.geomspace(least, most, tries).astype(dtype)


def effect_on_rule(view: View, objective: str) -> Effect:
    """Return the function `(forged [K, D], key) -> []` that measures what forged messages do to the aggregate.

    With a the aggregate of what is sent, the effect is ‖a − μ‖ for "distance", and for "angle" the angle between a and
    the aggregate of the messages that all agents would send if they were honest. It is averaged over a few keys if the
    rule is random.
    """
    mean = honest_mean(view.messages, view.mask)

    def on_one_key(key: PRNGKeyArray, messages: Array) -> Array:
        output = rule_output(view, messages, key=key)
        if objective == "angle":
            return angle(output, rule_output(view, view.messages, key=key))
        return overflow_safe_norm(output - mean)

    def effect(forged: Float[Array, "K D"], key: PRNGKeyArray) -> Float[Array, ""]:
        messages = with_forged_rows(view, forged)
        if not view.averages_over_keys:
            return on_one_key(key, messages)
        return jnp.mean(jax.vmap(on_one_key, (0, None))(jax.random.split(key, LINE_SEARCH_DRAWS), messages))

    return effect


def _most_damaging(
    row: Callable[[View, Array], Array],
    candidates: Callable[[jnp.dtype], Array],
    objective: str,
    on: MessageKind,
    equivocate: bool,
) -> Attack:
    """Make the attack that sends `row(view, c)` with the candidate c that has the largest effect on the aggregate."""
    check_choice("objective", objective, LINE_SEARCH_OBJECTIVES)

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        scales = candidates(view.messages.dtype)
        effect = effect_on_rule(view, objective)
        moved = jax.vmap(lambda c: effect(sent_by_all(row(view, c), view), key))(scales)
        return sent_by_all(row(view, scales[jnp.argmax(moved)]), view)

    return on_messages(forge, on, mirror_for_half=equivocate, searches=True)


def opt_ipm(
    *,
    least: float = 0.01,
    most: float = 100.0,
    tries: int = 24,
    objective: str = "distance",
    on: MessageKind = "gradients",
    equivocate: bool = False,
) -> Attack:
    """Optimal IPM: −ε·μ with the ε of a geometric grid that moves this rule's aggregate furthest from μ.

    Args:
        least: the smallest ε.
        most: the largest ε.
        tries: the number of scales; each costs one application of the rule.
        objective: `"distance"` of the aggregate from μ, or the `"angle"` by which it is turned.

    References:
        Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021; ByzFL's "Optimal IPM".
    """
    return _most_damaging(ipm_row, lambda dtype: scale_grid(dtype, least, most, tries), objective, on, equivocate)


def opt_alie(
    *,
    least: float = 0.01,
    most: float = 100.0,
    tries: int = 24,
    objective: str = "distance",
    on: MessageKind = "both",
    equivocate: bool = False,
) -> Attack:
    """Optimal ALIE: μ + z·s with the z of a geometric grid, of either sign, that moves this rule's aggregate furthest.

    The arguments are those of `opt_ipm`, with |z| in place of ε; each try costs two applications of the rule.

    References:
        Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021; ByzFL's "Optimal ALIE".
    """

    def both_signs(dtype: jnp.dtype) -> Array:
        grid = scale_grid(dtype, least, most, tries)
        return jnp.concatenate([-grid, grid])

    return _most_damaging(alie_row, both_signs, objective, on, equivocate)
