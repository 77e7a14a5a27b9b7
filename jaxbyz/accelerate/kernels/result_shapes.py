"""The shapes of what kernels return."""

from __future__ import annotations

import jax


def result_like(source: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Describe a result of the source's type. Under `shard_map`, it varies over the mesh axes that the source does."""
    kind = jax.typeof(source)
    name = "vma" if hasattr(kind, "vma") else "manual_axis_type"  # JAX 0.8; JAX 0.10
    return jax.ShapeDtypeStruct(shape, source.dtype, **{name: getattr(kind, name)})
