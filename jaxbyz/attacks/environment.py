"""What a Byzantine agent does wrong in its own environment, before it honestly computes its estimate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Interference
from jaxbyz.errors import UsageError


def constant_action(*, action: float = 0.0) -> Attack:
    """Byzantine agents always take the same action: a stuck actuator.

    Discrete actions: number ⌊action⌋, at most n − 1. Continuous: low + action·(high − low), action in [0, 1].
    """
    if action < 0:
        raise UsageError(f"action={action}: at least 0")

    def interfere(space: Any) -> Interference:
        if not space.discrete and action > 1:
            raise UsageError(f"action={action}: a continuous action is a fraction of the range, between 0 and 1")

        def act(u: Array, chosen: Array) -> Array:
            if space.discrete:
                return jnp.full_like(chosen, min(int(action), int(space.n) - 1))
            low, high = jnp.asarray(space.low), jnp.asarray(space.high)
            return jnp.broadcast_to(low + action * (high - low), chosen.shape).astype(chosen.dtype)

        return Interference(act=act)

    return Attack(interfere=interfere)


def reward_flip(*, scale: float = 1.0) -> Attack:
    """Byzantine agents learn from −scale·r: an estimate of the right size that points the wrong way."""

    def flip(key: PRNGKeyArray, rewards: Array, alive: Array) -> Array:
        return -scale * jnp.where(alive, rewards, 0.0)

    return Attack(interfere=lambda space: Interference(rewards=flip))


def reward_shuffle() -> Attack:
    """Byzantine agents permute the rewards of each episode over its steps: credit goes to the wrong actions.

    The return from the start is unchanged without discounting. Where every step earns the same (CartPole) nothing
    changes.
    """

    def shuffle(key: PRNGKeyArray, rewards: Array, alive: Array) -> Array:
        draws = jnp.where(alive, jax.random.uniform(key, rewards.shape), 2.0)
        source = jnp.argsort(draws, axis=0)  # the living steps first, in random order
        target = jnp.argsort(~alive, axis=0, stable=True)  # the living steps first, in order
        drawn = jnp.take_along_axis(jnp.where(alive, rewards, 0.0), source, axis=0)
        return jnp.put_along_axis(jnp.zeros_like(rewards), target, drawn, axis=0, inplace=False)

    return Attack(interfere=lambda space: Interference(rewards=shuffle))
