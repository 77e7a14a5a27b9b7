"""Largest eigenvalues of small positive semi-definite matrices."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbyz.accelerate.platform import on_cpu


def largest_eigenvalues(matrices: Float[Array, "s n n"]) -> Float[Array, " s"]:
    """Return the largest eigenvalue of each positive semi-definite matrix.

    On a CPU as the largest singular value, because JAX computes eigenvectors even if only eigenvalues are asked for.
    """
    if on_cpu():
        return jnp.linalg.svd(matrices, compute_uv=False)[:, 0]
    return largest_eigenvalues_plain(matrices)


def largest_eigenvalues_plain(matrices: Float[Array, "s n n"]) -> Float[Array, " s"]:
    """Plain version of `largest_eigenvalues`."""
    return jnp.linalg.eigvalsh(matrices)[:, -1]
