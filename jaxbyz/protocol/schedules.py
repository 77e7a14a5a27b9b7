"""Who is Byzantine in iteration t: the paper lets the honest set H_t change every iteration."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.registry import Registry

Schedule = Callable[[PRNGKeyArray, Int[Array, ""]], Bool[Array, " K"]]  # (key of the iteration, t) -> mask [K]


def fixed(agents: int, byzantine: int) -> Schedule:
    """The last f agents, always."""
    return lambda key, t: jnp.arange(agents) >= agents - byzantine


def rotating(agents: int, byzantine: int) -> Schedule:
    """f consecutive agents, starting one place further every iteration."""
    return lambda key, t: (jnp.arange(agents) - t) % agents < byzantine


def random(agents: int, byzantine: int) -> Schedule:
    """f agents drawn anew every iteration."""

    def mask(key: PRNGKeyArray, t: Int[Array, ""]) -> Bool[Array, " K"]:
        return jax.random.permutation(key, agents) < byzantine

    return mask


schedules = Registry("schedule")
schedules.add("fixed", fixed)
schedules.add("rotating", rotating)
schedules.add("random", random)
