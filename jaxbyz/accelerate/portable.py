"""Functions as files that run on every platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import export

from jaxbyz.accelerate.platform import trace_for

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def portable_function(function: Callable[..., Any], *arguments: Any) -> bytes:
    """Return a function of arrays `[batch, …]`, for any batch size, as a serialised `jax.export.Exported`.

    It is traced with the plain version of every function of this package, because a fast one would fix the platform.

    Args:
        function: what to write.
        *arguments: one tree per argument, with the shapes and types of one member of the batch.
    """
    (batch,) = export.symbolic_shape("batch")
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype), arguments)
    with trace_for("plain"):
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    return bytes(exported.serialize())
