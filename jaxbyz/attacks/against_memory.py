"""Attacks on rules that remember senders: they see what the rule remembers, and behave as long as they must."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import Attack, View, on_messages, same_row, sent_by_all
from jaxbyz.attacks.honest_statistics import honest_mean, unit
from jaxbyz.attacks.normalized import normalized
from jaxbyz.errors import check_choice, check_value

HARMS = ("downhill", "normalized")


def usual_length(view: View) -> Float[Array, ""]:
    """Return the median length of the honest messages: what is as long does not stand out."""
    lengths = jnp.linalg.norm(view.messages, axis=1)
    return jnp.nanmedian(jnp.where(view.mask, jnp.nan, lengths))


def downhill_row(view: View) -> Float[Array, " D"]:
    """Return −μ at the usual length, which is the most harmful message that does not stand out by its length."""
    return -usual_length(view) * unit(honest_mean(view.messages, view.mask))


def budget(*, reserve: float = 0.4, harm: str = "downhill") -> Attack:
    """Spend exactly as much trust as there is: harm while the rule trusts the sender, and earn trust otherwise.

    It reads the trust of every Byzantine sender from the memory of the rule. A sender whose trust is above the reserve
    sends a harmful message; the others send the honest mean at the usual length, which agrees best with new batches.
    Rules without memory are harmed in every message.

    Args:
        reserve: the trust that is kept, between 0 and 1.
        harm: the harmful message: `"downhill"`, which is −μ at the usual length, or that of the `"normalized"` attack.
    """
    check_value("budget: reserve", reserve, 0 <= reserve < 1, "at least 0 and below 1")
    check_choice("harm", harm, HARMS)
    turn = normalized().gradients
    assert turn is not None

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        downhill = sent_by_all(downhill_row(view), view)
        harmful = downhill if harm == "downhill" else turn(key, view, receiver)
        return jnp.where(_may_spend(view, reserve)[:, None], harmful, -downhill)

    return on_messages(forge, "gradients")


def _may_spend(view: View, reserve: float) -> Bool[Array, " K"]:
    """Tell which senders can afford to harm."""
    if view.senders is None:
        return jnp.ones_like(view.mask)
    return (view.senders.trust > reserve) & ~view.senders.excluded


def discredit() -> Attack:
    """Make the rule distrust honest senders, and harm meanwhile.

    The messages that begin a batch decide how senders are judged. There, all Byzantine agents but the first send the
    opposite of what the honest senders have sent so far, at the usual length, so that these seem to disagree with the
    new batch. The first one, and all of them in the later messages of the batch, push downhill.
    """

    def begins(view: View) -> Bool[Array, ""]:
        return view.step != view.memory

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        downhill = sent_by_all(downhill_row(view), view)
        if view.senders is None:
            return downhill
        against = sent_by_all(-usual_length(view) * unit(honest_mean(view.senders.past, view.mask)), view)
        first = jnp.arange(view.mask.shape[0]) == jnp.argmax(view.mask)
        return jnp.where((begins(view) & ~first)[:, None], against, downhill)

    def remember(view: View) -> Int[Array, ""]:
        return jnp.asarray(view.step, jnp.int32)

    return on_messages(forge, "gradients", init=lambda K, D: jnp.int32(-1), remember=remember)


def scattered(*, push: float = 0.5) -> Attack:
    """Push downhill, every sender with a deviation of its own, so that liars are no more alike than honest senders.

    The message of agent j is L·(−√push·unit(μ) + √(1 − push)·unit(x_j − μ)), where L is the usual length and x_j what
    the agent would send if it were honest.

    Args:
        push: the part of the squared length that pushes; with 1 all senders send the same.
    """
    check_value("scattered: push", push, 0 < push <= 1, "above 0 and at most 1")

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        mean = honest_mean(view.messages, view.mask)
        own = jax.vmap(unit)(view.messages - mean[None])
        return usual_length(view) * ((1.0 - push) ** 0.5 * own - push**0.5 * unit(mean)[None])

    return on_messages(forge, "gradients")


def sleeper(*, iterations: int = 15) -> Attack:
    """Behave until everybody trusts the sender, and push downhill from then on.

    Args:
        iterations: how long it behaves.
    """
    check_value("sleeper: iterations", iterations, iterations >= 0, "at least 0")

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return jax.lax.cond(
            view.step < iterations, lambda: view.messages, lambda: sent_by_all(downhill_row(view), view)
        )

    return on_messages(forge, "gradients")


def downhill() -> Attack:
    """Send −μ at the median length of the honest messages, so that lengths show nothing."""
    return same_row(downhill_row, "gradients")
