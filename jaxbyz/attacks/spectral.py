"""The spectral attack on gossip: pull the two halves of the graph that are least connected away from each other."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages, sent_by_all
from jaxbyz.attacks.honest_statistics import honest_deviations, overflow_safe_norm


def fiedler_vector(weights: Float[Array, "K K"], mask: Bool[Array, " K"]) -> Float[Array, " K"]:
    """Return the eigenvector of the second smallest eigenvalue of the Laplacian of the honest agents' graph.

    It solves min Σ_ij W_ij (e_i − e_j)² over unit vectors with Σ_i e_i = 0: its signs divide the graph where it is
    easiest to cut. Entries of Byzantine agents are zero.

    Args:
        weights: `[K, K]`, symmetric mixing weights.
        mask: `[K]`, True for Byzantine agents.
    """
    honest = ~mask
    among = jnp.where(honest[:, None] & honest[None] & ~jnp.eye(len(mask), dtype=bool), weights, 0.0)
    degrees = jnp.sum(among, axis=1)
    # The constant vector, whose eigenvalue is 0, and the Byzantine agents are moved to the end of the spectrum.
    last = 2.0 * jnp.max(degrees) + 1.0
    ones = honest / jnp.sqrt(jnp.maximum(jnp.sum(honest), 1.0))
    laplacian = jnp.diag(jnp.where(honest, degrees, last)) - among + last * jnp.outer(ones, ones)
    return jnp.where(honest, jnp.linalg.eigh(laplacian)[1][:, 0], 0.0)


def spectral(*, scale: float = 1.0, on: MessageKind = "parameters") -> Attack:
    """Send receiver i the message x_i + scale·r_i·(e_i/max|e|)·u.

    e is the Fiedler vector of the honest agents' graph, u the unit vector along Σ_i e_i x_i, the disagreement between
    the two halves of the graph that are least connected, and r_i the distance from x_i to its farthest honest
    neighbour, so that the forged message is not an outlier among the messages that i receives. Every receiver is pushed
    along u on its own side, which slows gossip most where the graph already makes it slow. Without a graph, all weights
    are equal, and e is any vector with zero sum.

    Args:
        scale: the length of the push in units of r_i.

    References:
        Gaucher, Dieuleveut and Hendrikx, Unified breakdown analysis for Byzantine robust gossip, 2025.
    """

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        x, mask = view.messages, view.mask
        K = len(mask)
        weights = jnp.ones((K, K), x.dtype) if view.weights is None else jnp.asarray(view.weights, x.dtype)
        e = fiedler_vector(weights, mask)
        disagreement = e @ honest_deviations(x, mask)
        norm = overflow_safe_norm(disagreement)
        anywhere = jnp.full_like(disagreement, 1.0 / jnp.sqrt(1.0 * disagreement.shape[0]))
        u = jnp.where(norm > 0, disagreement / jnp.where(norm > 0, norm, 1.0), anywhere)
        neighbours = (weights[receiver] > 0) & ~mask
        own = x[receiver]
        distances = jnp.sqrt(jnp.sum((x - own[None]) ** 2, axis=1))
        reach = jnp.max(jnp.where(neighbours, distances, 0.0))
        side = e[receiver] / jnp.maximum(jnp.max(jnp.abs(e)), jnp.finfo(x.dtype).tiny)
        return sent_by_all(own + scale * reach * side * u, view)

    return on_messages(forge, on, equivocates=True)
