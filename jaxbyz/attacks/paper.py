"""The paper's three attacks (section 6): RandomAction, LargeNoise, AvgZero; and no attack at all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Interference, View


def no_attack() -> Attack:
    """Byzantine agents behave: for baselines."""
    return Attack()


def random_action() -> Attack:
    """Byzantine agents act uniformly at random and report the estimate they get from it."""

    def interfere(space: Any) -> Interference:
        return Interference(act=space.uniform_action)

    return Attack(interfere=interfere)


def large_noise(scale: float = 1000.0) -> Attack:
    """Byzantine agents send N(0, scale²) noise for gradients and parameters, drawn afresh for every receiver."""

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return scale * jax.random.normal(jax.random.fold_in(key, receiver), view.messages.shape, view.messages.dtype)

    return Attack(gradients=forge, parameters=forge, equivocates=True)


def avg_zero() -> Attack:
    """Byzantine agents collude so that the average of all gradients is zero: each sends −(1/f) Σ_honest g.

    f here is the number of Byzantines in this iteration. On parameters they behave, as the paper speaks of gradients.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        honest = jnp.sum(jnp.where(view.mask[:, None], 0.0, view.messages), axis=0)
        return jnp.broadcast_to(-honest / jnp.maximum(jnp.sum(view.mask), 1), view.messages.shape)

    return Attack(gradients=forge)
