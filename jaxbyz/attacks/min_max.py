"""MinMax and MinSum: as far from the honest mean as the honest distances allow."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.attacks.base import Attack, MessageKind, View, same_row
from jaxbyz.attacks.honest_statistics import (
    honest_deviations,
    honest_mean,
    honest_squared_distances,
    honest_std,
    unit,
)
from jaxbyz.errors import check_choice

DIRECTIONS = ("std", "unit", "sign")


def perturbation(view: View, direction: str) -> Float[Array, " D"]:
    """Return the direction p of MinMax and MinSum: −s ("std"), −μ/‖μ‖ ("unit") or −sign(μ) ("sign")."""
    if direction == "std":
        return -honest_std(view.messages, view.mask)
    mean = honest_mean(view.messages, view.mask)
    return -unit(mean) if direction == "unit" else -jnp.sign(mean)


def min_max_row(view: View, p: Float[Array, " D"]) -> Float[Array, " D"]:
    """Return μ + γ·p with the largest γ for which max_i ‖m − x_i‖ ≤ max_{i,j} ‖x_i − x_j‖ over honest i, j.

    With d_i = x_i − μ and Δ² the largest squared distance, honest agent i allows γ up to the positive root of
    ‖p‖²γ² − 2γ⟨p, d_i⟩ + ‖d_i‖² − Δ² = 0, and γ is the smallest of these roots.
    """
    x, mask = view.messages, view.mask
    deviations = honest_deviations(x, mask)
    p = unit(p)  # the squares of squared norms would overflow
    b = deviations @ p
    c = jnp.maximum(jnp.max(honest_squared_distances(x, mask)) - jnp.sum(deviations * deviations, axis=1), 0.0)
    roots = b + jnp.sqrt(b * b + c)
    gamma = jnp.maximum(jnp.min(jnp.where(mask, jnp.inf, roots)), 0.0)
    return honest_mean(x, mask) + jnp.where(jnp.isfinite(gamma), gamma, 0.0) * p


def min_sum_row(view: View, p: Float[Array, " D"]) -> Float[Array, " D"]:
    """Return μ + γ·p with the largest γ for which Σ_i ‖m − x_i‖² ≤ S = max_i Σ_j ‖x_i − x_j‖² over honest i, j.

    γ = √((S − Σ_i ‖x_i − μ‖²) / (h‖p‖²)), where h is the number of honest agents.
    """
    x, mask = view.messages, view.mask
    deviations = honest_deviations(x, mask)
    slack = jnp.max(jnp.sum(honest_squared_distances(x, mask), axis=1)) - jnp.sum(deviations * deviations)
    gamma = jnp.sqrt(jnp.maximum(slack, 0.0) / jnp.maximum(jnp.sum(~mask), 1))
    return honest_mean(x, mask) + gamma * unit(p)


def _attack(row: Callable[[View, Array], Array], direction: str, on: MessageKind, equivocate: bool) -> Attack:
    check_choice("direction", direction, DIRECTIONS)
    return same_row(lambda view: row(view, perturbation(view, direction)), on, mirror_for_half=equivocate)


def min_max(*, direction: str = "std", on: MessageKind = "both", equivocate: bool = False) -> Attack:
    """MinMax: no farther from any honest message than two honest messages are from each other.

    No filter on distances can tell it from an honest message. The distance γ has a closed form (`min_max_row`).

    Args:
        direction: −s ("std"), −μ/‖μ‖ ("unit") or −sign(μ) ("sign").

    References:
        Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021.
    """
    return _attack(min_max_row, direction, on, equivocate)


def min_sum(*, direction: str = "std", on: MessageKind = "both", equivocate: bool = False) -> Attack:
    """MinSum: a sum of squared distances no larger than that of some honest message (`min_sum_row`).

    Less visible and weaker than MinMax, whose arguments it shares.

    References:
        Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021.
    """
    return _attack(min_sum_row, direction, on, equivocate)
