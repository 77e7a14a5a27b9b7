"""The Normalized attack: turn the aggregate as far away from its own direction as the rule allows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages, sent_by_all
from jaxbyz.attacks.honest_statistics import honest_mean, unit
from jaxbyz.attacks.line_search import effect_on_rule, scale_grid
from jaxbyz.attacks.min_max import DIRECTIONS, perturbation


def normalized_rows(view: View, scales: Float[Array, " S"]) -> Float[Array, "C D"]:
    """Return the candidates μ + λ‖μ‖·p̂ for every unit direction p̂ of MinMax and every scale λ, C = 3·S of them."""
    mean = honest_mean(view.messages, view.mask)
    directions = jnp.stack([unit(perturbation(view, direction)) for direction in DIRECTIONS])
    lengths = scales * jnp.linalg.norm(mean)
    return (mean[None, None] + lengths[None, :, None] * directions[:, None]).reshape(-1, mean.shape[0])


def normalized(
    *,
    least: float = 0.01,
    most: float = 100.0,
    tries: int = 16,
    on: MessageKind = "gradients",
    equivocate: bool = False,
) -> Attack:
    """Maximise the angle between the aggregate before and after the attack, first over directions, then over lengths.

    Rules bound how far the aggregate moves, but an optimizer that normalises its steps, as Adam does, only keeps the
    direction. All Byzantine agents send μ + λ‖μ‖·p̂, where p̂ is one of the unit directions −s, −μ and −sign(μ), λ comes
    from a geometric grid, and the pair is chosen that turns the aggregate of this rule furthest.

    Args:
        least: the smallest λ.
        most: the largest λ.
        tries: the number of scales; each costs three applications of the rule.

    References:
        Fang, Wang and Gong, Provably robust federated reinforcement learning, 2025.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        rows = normalized_rows(view, scale_grid(view.messages.dtype, least, most, tries))
        effect = effect_on_rule(view, "angle")
        turned = jax.vmap(lambda row: effect(sent_by_all(row, view), key))(rows)
        return sent_by_all(rows[jnp.argmax(turned)], view)

    return on_messages(forge, on, mirror_for_half=equivocate, searches=True)
