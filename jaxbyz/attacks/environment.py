"""Attacks in the environment: Byzantine agents act or record rewards wrongly, then compute estimates as prescribed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Interference
from jaxbyz.attacks.honest_statistics import overflow_safe_norm, unit
from jaxbyz.errors import check_value


def random_action() -> Attack:
    """RandomAction of the paper: Byzantine agents act uniformly at random and send the resulting estimate."""
    return Attack(interfere=lambda space: Interference(act=space.uniform_action))


def constant_action(*, action: float = 0.0) -> Attack:
    """Byzantine agents always take the same action, as with a stuck actuator.

    Args:
        action: with discrete actions, number ⌊action⌋, at most n − 1; with continuous actions, a fraction in [0, 1] of
            the range: low + action·(high − low).
    """
    check_value("action", action, action >= 0, "at least 0")

    def interfere(space: Any) -> Interference:
        allowed = space.discrete or action <= 1
        check_value("action", action, allowed, "between 0 and 1, a fraction of the continuous range")

        def act(draws: Array, chosen: Array) -> Array:
            if space.discrete:
                return jnp.full_like(chosen, min(int(action), int(space.n) - 1))
            low, high = jnp.asarray(space.low), jnp.asarray(space.high)
            return jnp.broadcast_to(low + action * (high - low), chosen.shape).astype(chosen.dtype)

        return Interference(act=act)

    return Attack(interfere=interfere)


def reward_flip(*, scale: float = 1.0) -> Attack:
    """Byzantine agents learn from −scale·r: their estimate has the right size and points the wrong way."""

    def flip(key: PRNGKeyArray, rewards: Array, alive: Array) -> Array:
        return -scale * jnp.where(alive, rewards, 0.0)

    return Attack(interfere=lambda space: Interference(rewards=flip))


def reward_shuffle() -> Attack:
    """Byzantine agents permute the rewards within each episode, so that the wrong actions get the credit.

    Without discounting, the return of the episode is unchanged. Nothing changes at all if every step earns the same
    reward, as in CartPole.
    """

    def shuffle(key: PRNGKeyArray, rewards: Array, alive: Array) -> Array:
        draws = jnp.where(alive, jax.random.uniform(key, rewards.shape), 2.0)
        source = jnp.argsort(draws, axis=0)  # the steps alive in random order, then the others
        target = jnp.argsort(~alive, axis=0, stable=True)  # the steps alive in order, then the others
        drawn = jnp.take_along_axis(jnp.where(alive, rewards, 0.0), source, axis=0)
        return jnp.put_along_axis(jnp.zeros_like(rewards), target, drawn, axis=0, inplace=False)

    return Attack(interfere=lambda space: Interference(rewards=shuffle))


def reward_poison(*, budget: float = 1.0) -> Attack:
    """Byzantine agents change their rewards in the way that turns their estimate furthest from the true one.

    Each computes its true estimate g, then the effect w_h of every reward on ⟨g, ĝ⟩, and learns from
    r − budget·‖r‖·w/‖w‖, the minimiser of ⟨g, ĝ⟩ over all rewards within the distance budget·‖r‖ of the true ones.
    With a critic, g comes from a private critic that is trained on true rewards, while the public one, which judges the
    batch that is sent, is trained on the poisoned rewards, as an honest agent would have trained it.

    Args:
        budget: the length of the change, relative to the length of the vector of all rewards of the batch.

    References:
        Ma, Etesami and Rathi, Reward poisoning on federated reinforcement learning, 2024.
    """
    check_value("reward-poison: budget", budget, 0 < budget < float("inf"), "a positive number")

    def poison(rewards: Array, effects: Array) -> Array:
        return rewards - budget * overflow_safe_norm(rewards) * unit(effects)

    return Attack(interfere=lambda space: Interference(poison=poison))
