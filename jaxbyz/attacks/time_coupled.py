"""Attacks across time: messages that are unsuspicious in every iteration and push in one direction in all of them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbyz.attacks.alie import alie_z
from jaxbyz.attacks.base import Attack, MessageKind, View, same_row
from jaxbyz.attacks.honest_statistics import honest_mean, honest_std, unit
from jaxbyz.attacks.min_max import min_max_row
from jaxbyz.errors import check_value


class Trend(NamedTuple):
    """What an attack across time remembers.

    Attributes:
        direction: `[D]`, the direction of honest messages, as the attack averages it over time.
        iterations: `[]`, the number of gradient messages per agent so far.
    """

    direction: Float[Array, " D"]
    iterations: Int[Array, ""]


def _no_trend(K: int, D: int) -> Trend:
    return Trend(jnp.zeros(D), jnp.int32(0))


def drift(*, fraction: float = 1.0, period: int = 0, on: MessageKind = "gradients") -> Attack:
    """Push against the first honest gradient for ever, never farther out than two honest messages are apart.

    With p = −unit(μ_0), where μ_0 is the honest mean of the first iteration, every Byzantine agent sends
    μ_t + fraction·γ_t·p. γ_t is MinMax's (`min_max_row`): the message is no farther from any honest message than honest
    messages are from each other. A single iteration therefore shows nothing; the bias adds up because it never turns.

    Args:
        fraction: how much of the largest unsuspicious distance is used, in (0, 1].
        period: after how many iterations the direction is chosen anew; 0 for never.
    """
    check_value("drift: fraction", fraction, 0 < fraction <= 1, "above 0 and at most 1")
    check_value("drift: period", period, period >= 0, "at least 0")

    def begins(view: View) -> Bool[Array, ""]:
        """Whether the direction is that of this message."""
        return (view.memory.iterations == 0) | (view.step % period == 0 if period else False)

    def remember(view: View) -> Trend:
        first = unit(honest_mean(view.messages, view.mask))
        old: Trend = view.memory
        return Trend(jnp.where(begins(view), first, old.direction), old.iterations + 1)

    def row(view: View) -> Array:
        mean, memory = honest_mean(view.messages, view.mask), view.memory
        direction = jnp.where(begins(view), unit(mean), memory.direction)
        return mean + fraction * (min_max_row(view, -direction) - mean)

    return same_row(row, on, init=_no_trend, remember=remember)


def coupled_alie(*, z: float | None = None, decay: float = 0.9, on: MessageKind = "gradients") -> Attack:
    """A little is enough with signs that persist: send μ − z·s·sign(m), where m is the moving average of μ.

    ALIE shifts every coordinate in the same direction, whatever the agents are learning. This variant shifts each
    coordinate against the direction in which it has been moving, m ← β·m + (1 − β)·μ, so that the shifts of successive
    iterations add up instead of averaging out.

    Args:
        z: how many honest standard deviations s; by default that of ALIE.
        decay: β, the weight of the past in the moving average.
    """
    check_value("coupled-alie: decay", decay, 0 <= decay < 1, "at least 0 and below 1")

    def trend(view: View) -> Float[Array, " D"]:
        mean = honest_mean(view.messages, view.mask)
        return decay * view.memory.direction + (1.0 - decay) * mean

    def remember(view: View) -> Trend:
        return Trend(trend(view), view.memory.iterations + 1)

    def row(view: View) -> Array:
        shift = (alie_z(view) if z is None else z) * honest_std(view.messages, view.mask)
        mean = honest_mean(view.messages, view.mask)
        return mean - shift * jnp.sign(trend(view))

    return same_row(row, on, init=_no_trend, remember=remember)
