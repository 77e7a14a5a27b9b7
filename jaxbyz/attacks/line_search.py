"""Attacks that try scales against the rule in use: optimal IPM and optimal ALIE."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.base import Attack, Place, View, honest_mean, honest_std, on_messages, same_for_all, sent, tried

SAMPLES = 4  # keys over which the effect on a rule that draws random numbers is averaged


def scales(least: float, most: float, tries: int) -> Float[Array, " tries"]:
    """[tries] scales in geometric steps: damage changes with the order of magnitude, and often drops to nothing."""
    return jnp.geomspace(least, most, tries)


def length(vector: Float[Array, " D"]) -> Float[Array, ""]:
    """‖v‖ without overflow; infinite when an entry is not finite. Its gradient is finite everywhere, zero included."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vector)))
    ok = jnp.isfinite(largest) & (largest > 0)
    unit = jnp.where(ok, vector / jnp.where(ok, largest, 1.0), 0.0)
    size = jnp.where(ok, largest, 1.0) * jnp.sqrt(jnp.where(ok, jnp.sum(unit * unit), 1.0))
    return jnp.where(ok, size, jnp.where(largest == 0, 0.0, jnp.inf))


def distance_moved(view: View, forged: Float[Array, "K D"], key: PRNGKeyArray) -> Float[Array, ""]:
    """‖rule(sent) − μ‖, averaged over a few keys if the rule draws random numbers."""
    mean = honest_mean(view.messages, view.mask)
    wire = sent(view, forged)
    if not (view.random and view.trial is not None):
        return length(tried(view, wire, key=key) - mean)
    keys = jax.random.split(key, SAMPLES)
    return jnp.mean(jax.vmap(lambda k: length(tried(view, wire, key=k) - mean))(keys))


def best_scale(
    key: PRNGKeyArray, view: View, row: Callable[[Array], Array], candidates: Float[Array, " tries"]
) -> Float[Array, ""]:
    """[] the candidate c whose lie row(c) [D] moves the aggregate furthest from the honest mean."""
    moved = jax.vmap(lambda c: distance_moved(view, same_for_all(row(c), view), key))(candidates)
    return candidates[jnp.argmax(moved)]


def opt_ipm(
    *, least: float = 0.01, most: float = 100.0, tries: int = 24, on: Place = "gradients", equivocate: bool = False
) -> Attack:
    """Optimal IPM: −ε·μ with the ε of a geometric grid that moves this rule's aggregate furthest from μ.

    Costs `tries` applications of the rule. Shejwalkar & Houmansadr 2021; ByzFL's "Optimal IPM".
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        mean = honest_mean(view.messages, view.mask)
        best = best_scale(key, view, lambda c: -c * mean, scales(least, most, tries).astype(mean.dtype))
        return same_for_all(-best * mean, view)

    return on_messages(forge, on, mirrored=equivocate)


def opt_alie(
    *, least: float = 0.01, most: float = 100.0, tries: int = 24, on: Place = "both", equivocate: bool = False
) -> Attack:
    """Optimal ALIE: μ + z·s with the z of a geometric grid, of either sign, that moves this rule's aggregate furthest.

    Costs 2·`tries` applications of the rule. Shejwalkar & Houmansadr 2021; ByzFL's "Optimal ALIE".
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        mean, std = honest_mean(view.messages, view.mask), honest_std(view.messages, view.mask)
        grid = scales(least, most, tries).astype(mean.dtype)
        best = best_scale(key, view, lambda c: mean + c * std, jnp.concatenate([-grid, grid]))
        return same_for_all(mean + best * std, view)

    return on_messages(forge, on, mirrored=equivocate)
