"""Attacks on participation, delay and loss: the adversary decides what chance would decide, within the same limits.

They choose which honest messages arrive, and can be combined with any attack on messages:

- liars always take part, and chance only decides which honest agents fill the other places;
- each gradient arrives at that one of its allowed ages which agrees least with the honest mean;
- each receiver loses the messages that help it most, as many as are lost on average.

If the rule is the mean of what arrives, no other choice of ages, and no other choice of as many losses, makes its inner
product with the honest mean μ smaller, because this product is the mean of the products of the messages with μ. The
wrappers of `jaxbyz.protocol.channel` use these functions with `arrivals="adversarial"`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.honest_statistics import mean_over


def liars_take_part(key: PRNGKeyArray, mask: Bool[Array, " K"], places: int) -> Int[Array, " m"]:
    """Return who takes part if liars always do: Byzantine agents first, then honest ones at random, in ascending order.

    Args:
        key: decides which honest agents take part, and which Byzantine ones if there are more than places.
        mask: `[K]`, True for Byzantine agents.
        places: how many agents take part, m.
    """
    drawn = jax.random.permutation(key, mask.shape[0])
    liars_first = jnp.argsort(~mask[drawn], stable=True)
    return jnp.sort(drawn[liars_first][:places])


def worst_ages(sent: Float[Array, "a K D"], mask: Bool[Array, " K"], sendings: Int[Array, " K"]) -> Int[Array, " K"]:
    """Return how old each gradient x is when it arrives: the age that minimises ⟨x, μ⟩.

    Here μ is the mean of the newest honest gradients.

    Args:
        sent: `[a, K, D]`, the last gradients of each agent, the newest first.
        mask: `[K]`, True for Byzantine agents, whose gradients do not count in μ.
        sendings: `[K]`, how many earlier gradients of each agent exist.
    """
    usable = jnp.all(jnp.isfinite(sent), axis=2)
    finite = jnp.where(usable[:, :, None], sent, 0.0)
    mean = mean_over(finite[0], ~mask & usable[0])
    help_of = jnp.einsum("akd,d->ak", finite, mean, precision=jax.lax.Precision.HIGHEST)
    exists = jnp.arange(sent.shape[0])[:, None] <= sendings[None]
    return jnp.argmin(jnp.where(usable & exists, help_of, jnp.inf), axis=0).astype(jnp.int32)


def worst_losses(
    rows: Float[Array, "n D"], honest: Bool[Array, " n"], spared: Bool[Array, " n"], origin: Float[Array, " D"],
    losses: int,
) -> Bool[Array, " n"]:  # fmt: skip
    """Return the messages that are lost on their way to one receiver.

    These are the messages x with the largest inner product ⟨x − o, μ − o⟩, where μ is the mean of the honest messages.
    For gradients the origin o is zero: the mean of the messages that arrive then points as little as possible along μ.
    For parameters o is the receiver's own vector: the receiver then moves as little as possible towards the others.

    Args:
        rows: `[n, D]`, what is sent to the receiver.
        honest: `[n]`, the senders that are not Byzantine; no message of a liar is lost.
        spared: `[n]`, messages that cannot be lost, such as the receiver's own.
        origin: `[D]`, the vector o.
        losses: the number of messages that are lost.
    """
    rows = jax.lax.stop_gradient(rows)
    usable = jnp.all(jnp.isfinite(rows), axis=1)
    differences = jnp.where((usable & honest)[:, None], rows - jax.lax.stop_gradient(origin)[None], 0.0)
    direction = mean_over(differences, usable & honest)
    help_of = jnp.matmul(differences, direction, precision=jax.lax.Precision.HIGHEST)
    scores = jnp.where(usable & honest & ~spared, help_of, -jnp.inf)
    chosen = jax.lax.top_k(scores, min(losses, rows.shape[0]))[1]
    return jnp.zeros_like(honest).at[chosen].set(True) & (scores > -jnp.inf)
