"""DnC: drop outliers along top singular vectors of random coordinates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxbyz.errors import check_value
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState, mix, normalised, usable
from jaxbyz.rules.covariance import projections
from jaxbyz.rules.distances import gram_matrix
from jaxbyz.rules.selection import lowest


def sampled_coordinates(key: PRNGKeyArray, D: int, count: int) -> Int[Array, " count"] | None:
    """Draw `count` coordinates with replacement, or return None, meaning all, if D ≤ count."""
    return None if count >= D else jax.random.randint(key, (count,), 0, D)


def dnc(byzantine: int = 0, *, rounds: int = 5, coordinates: int = 10_000, factor: float = 1.0) -> Rule:
    """Return the mean of the messages that divide-and-conquer never drops.

    Every round takes random coordinates and drops the c·f messages with the largest squared projections on the top
    singular vector of the centred messages. No worst-case bound holds, because f messages can be far in different
    directions, while one round looks at one. So it has no breakdown point; the registered limit is 1/2. Cost
    rounds·(n²·min(D, coordinates) + n³). If D ≤ `coordinates`, all coordinates are used and one round is enough. An
    unusable message is always dropped; if no message were left, those dropped least often stay.

    Args:
        byzantine: the number of messages f that it defends against.
        rounds: the number of random draws.
        coordinates: the number of coordinates per draw.
        factor: the factor c.

    References:
        Shejwalkar & Houmansadr, Manipulating the Byzantine, 2021.
    """
    check_value("dnc: rounds", rounds, rounds >= 1, "at least 1")
    check_value("dnc: coordinates", coordinates, coordinates >= 1, "at least 1")

    def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
        n, D = messages.shape
        drop = min(n - 1, int(factor * byzantine))
        ok = usable(messages)
        safe = jax.lax.stop_gradient(jnp.where(ok[:, None], messages, 0.0))

        def kept(key: PRNGKeyArray) -> Array:
            picked = sampled_coordinates(key, D, coordinates)
            gram, _ = gram_matrix(safe if picked is None else safe[:, picked])
            share = ok / jnp.maximum(jnp.sum(ok), 1).astype(gram.dtype)
            _, tau = projections(gram, share)
            return lowest(jnp.where(ok, tau, jnp.inf), n - drop) > 0

        draws = 1 if coordinates >= D else rounds
        times_kept = jnp.sum(jax.lax.map(kept, jax.random.split(key, draws)), axis=0)
        times_kept = jnp.where(ok, times_kept, -1)
        weights = normalised((times_kept == jnp.max(times_kept)).astype(messages.dtype), ok)
        return Outcome(mix(weights[None], messages), weights[None], state)

    return Rule(apply, random=True, averages=True)
