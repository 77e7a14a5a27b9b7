"""Schedules: who is Byzantine in iteration t. The paper lets the honest set H_t change in every iteration."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.registry import Registry

# (key of the iteration, t) -> mask [K], True for Byzantine agents
Schedule = Callable[[PRNGKeyArray, Int[Array, ""]], Bool[Array, " K"]]


def fixed(agents: int, byzantine: int) -> Schedule:
    """Always the last f agents."""
    return lambda key, t: jnp.arange(agents) >= agents - byzantine


def rotating(agents: int, byzantine: int) -> Schedule:
    """f consecutive agents, shifted by one in every iteration."""
    return lambda key, t: (jnp.arange(agents) - t) % agents < byzantine


def random(agents: int, byzantine: int) -> Schedule:
    """f agents drawn at random in every iteration."""
    return lambda key, t: jax.random.permutation(key, agents) < byzantine


schedules = Registry("schedule")
schedules.add("fixed", fixed, "always the last f agents")
schedules.add("rotating", rotating, "f consecutive agents, shifted by one in every iteration")
schedules.add("random", random, "f agents drawn at random in every iteration")
