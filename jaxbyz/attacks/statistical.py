"""Attacks that hide within the honest spread: a little is enough (ALIE), MinMax, MinSum, mimic."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Place, View, honest_mean, honest_squares, honest_std, on_messages, same_for_all
from jaxbyz.attacks.line_search import length
from jaxbyz.errors import UsageError

DIRECTIONS = ("std", "unit", "sign")


def alie_z(view: View) -> Float[Array, ""]:
    """[] z = Φ⁻¹((n−f−k)/(n−f)), k = ⌊n/2+1⌋−f supporters needed for a majority, f Byzantine in this iteration.

    The probability is kept within [1/2, 0.999]: below one half the lie would change sides, at one it is infinite.
    """
    n = view.mask.shape[0]
    f = jnp.sum(view.mask)
    supporters = n // 2 + 1 - f
    share = (n - f - supporters) / jnp.maximum(n - f, 1)
    return jax.scipy.special.ndtri(jnp.clip(share, 0.5, 0.999)).astype(view.messages.dtype)


def alie(*, z: float | None = None, sign: float = -1.0, on: Place = "both", equivocate: bool = False) -> Attack:
    """A little is enough: every Byzantine agent sends μ ± z·s, s the honest standard deviation in each coordinate.

    z as in `alie_z` unless given. With `equivocate`, half of the honest receivers get μ − z·s, the others μ + z·s.
    On both kinds of messages. Baruch et al. 2019.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        x, mask = view.messages, view.mask
        factor = alie_z(view) if z is None else z
        return same_for_all(honest_mean(x, mask) + sign * factor * honest_std(x, mask), view)

    return on_messages(forge, on, mirrored=equivocate)


def perturbation(view: View, direction: str) -> Float[Array, " D"]:
    """[D] the direction p of MinMax and MinSum: −s ("std"), −μ/‖μ‖ ("unit") or −sign(μ) ("sign")."""
    mean = honest_mean(view.messages, view.mask)
    if direction == "std":
        return -honest_std(view.messages, view.mask)
    if direction == "unit":
        return -_unit(mean)
    if direction == "sign":
        return -jnp.sign(mean)
    raise UsageError(f"direction={direction!r}: one of {', '.join(DIRECTIONS)}")


def furthest_by_max(view: View, p: Float[Array, " D"]) -> Float[Array, " D"]:
    """[D] MinMax's point μ + γ·p."""
    x, mask = view.messages, view.mask
    mean = honest_mean(x, mask)
    gaps = jnp.where(mask[:, None], 0.0, x - mean[None])
    p = _unit(p)  # squares of squared lengths would overflow
    b = gaps @ p
    c = jnp.maximum(jnp.max(honest_squares(x, mask)) - jnp.sum(gaps * gaps, axis=1), 0.0)
    roots = b + jnp.sqrt(b * b + c)
    gamma = jnp.maximum(jnp.min(jnp.where(mask, jnp.inf, roots)), 0.0)
    return mean + jnp.where(jnp.isfinite(gamma), gamma, 0.0) * p


def furthest_by_sum(view: View, p: Float[Array, " D"]) -> Float[Array, " D"]:
    """[D] MinSum's point μ + γ·p."""
    x, mask = view.messages, view.mask
    mean = honest_mean(x, mask)
    gaps = jnp.where(mask[:, None], 0.0, x - mean[None])
    room = jnp.max(jnp.sum(honest_squares(x, mask), axis=1)) - jnp.sum(gaps * gaps)
    return mean + jnp.sqrt(jnp.maximum(room, 0.0) / jnp.maximum(jnp.sum(~mask), 1)) * _unit(p)


def _unit(p: Float[Array, " D"]) -> Float[Array, " D"]:
    """p/‖p‖, zero for zero."""
    return p / jnp.maximum(length(p), jnp.finfo(p.dtype).tiny)


def min_max(*, direction: str = "std", on: Place = "both", equivocate: bool = False) -> Attack:
    """MinMax: μ + γ·p with the largest γ for which max_i ‖m − x_i‖ ≤ max_{i,j} ‖x_i − x_j‖ over honest i, j.

    In closed form: with d_i = x_i − μ and Δ² the largest squared distance, honest i allows γ up to the positive root of
    ‖p‖²γ² − 2γ⟨p, d_i⟩ + ‖d_i‖² − Δ² = 0, and γ is the least of these. No farther from any honest message than two
    honest ones are from each other, so no distance filter sees it. Shejwalkar & Houmansadr 2021.
    """
    _check(direction)

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return same_for_all(furthest_by_max(view, perturbation(view, direction)), view)

    return on_messages(forge, on, mirrored=equivocate)


def min_sum(*, direction: str = "std", on: Place = "both", equivocate: bool = False) -> Attack:
    """MinSum: μ + γ·p with the largest γ for which Σ_i ‖m − x_i‖² ≤ max_i Σ_j ‖x_i − x_j‖² over honest i, j.

    In closed form γ = √((S − Σ_i ‖x_i − μ‖²) / (h‖p‖²)), S the right side, h the number of honest agents. Stealthier
    and weaker than MinMax. Shejwalkar & Houmansadr 2021.
    """
    _check(direction)

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return same_for_all(furthest_by_sum(view, perturbation(view, direction)), view)

    return on_messages(forge, on, mirrored=equivocate)


def _check(direction: str) -> None:
    if direction not in DIRECTIONS:
        raise UsageError(f"direction={direction!r}: one of {', '.join(DIRECTIONS)}")


def mimic(*, target: int = 0, on: Place = "both") -> Attack:
    """Every Byzantine agent repeats one honest agent, the `target`-th of the honest: m = x_i.

    Nothing in the messages is out of the ordinary; one agent's data is counted f+1 times. Karimireddy et al. 2022.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        honest = ~view.mask
        wanted = jnp.minimum(target, jnp.maximum(jnp.sum(honest) - 1, 0))
        chosen = jnp.argmax((jnp.cumsum(honest) - 1 == wanted) & honest)
        return same_for_all(view.messages[chosen], view)

    return on_messages(forge, on)


class Spread(NamedTuple):
    """What mimic with warm-up remembers.

    direction: [D] z, along which honest messages spread most
    along:     [K] Σ_t ⟨z, x_i − μ⟩
    seen:      [] iterations so far
    """

    direction: Float[Array, " D"]
    along: Float[Array, " K"]
    seen: Int[Array, ""]


def mimic_warmup(*, warmup: int = 10, on: Place = "both") -> Attack:
    """Mimic the honest agent farthest along the direction of largest honest spread, learnt while training runs.

    z ← t/(t+1)·z + 1/(t+1)·w/‖w‖ with w = Σ_i d_i ⟨d_i, z⟩, d_i = x_i − μ (one power-iteration step on every
    iteration's spread), and a_i ← a_i + ⟨z, d_i⟩. After `warmup` iterations all repeat argmax_i |a_i| of the honest;
    before, the first honest agent. Karimireddy et al. 2022.
    """

    def init(K: int, D: int) -> Spread:
        # any fixed start that is not likely orthogonal to the spread: alternating signs are no data's mean direction
        start = jnp.where(jnp.arange(D) % 2 == 0, 1.0, -1.0) / jnp.sqrt(1.0 * D)
        return Spread(start, jnp.zeros(K), jnp.int32(0))

    def remember(view: View) -> Spread:
        old: Spread = view.memory
        gaps = jnp.where(view.mask[:, None], 0.0, view.messages - honest_mean(view.messages, view.mask)[None])
        w = (gaps @ old.direction) @ gaps
        norm = jnp.linalg.norm(w)
        unit = jnp.where(norm > 0, w / jnp.where(norm > 0, norm, 1.0), old.direction)
        t = old.seen.astype(w.dtype)
        direction = jnp.where(old.seen == 0, unit, (t * old.direction + unit) / (t + 1.0))
        return Spread(direction, old.along + gaps @ direction, old.seen + 1)

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        farthest = jnp.argmax(jnp.where(view.mask, -1.0, jnp.abs(view.memory.along)))
        chosen = jnp.where(view.memory.seen >= warmup, farthest, jnp.argmin(view.mask))
        return same_for_all(view.messages[chosen], view)

    return on_messages(forge, on, init=init, remember=remember)
