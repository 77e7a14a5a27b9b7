"""Functions as files that run on every platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import export

from jaxbyz.accelerate.platform import trace_for

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def portable_function(function: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any) -> bytes:
    """Return a function of `[batch, *shape]`, for any batch size, as a serialised `jax.export.Exported`.

    It is traced with the plain version of every function of this package, because a fast one would fix the platform.
    """
    (batch,) = export.symbolic_shape("batch")
    with trace_for("plain"):
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(jax.ShapeDtypeStruct((batch, *shape), dtype))
    return bytes(exported.serialize())
