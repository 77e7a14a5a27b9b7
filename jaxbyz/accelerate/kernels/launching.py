"""What the kernels share: tiles, and the launch itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax


def stacked(parts: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Parts of equal shapes along a new first axis, the rest of it zero."""
    number = lax.broadcasted_iota(jnp.int32, shape, 0)
    whole = jnp.zeros(shape, parts[0].dtype)
    for i, part in enumerate(parts):
        whole = jnp.where(number == i, part[None], whole)
    return whole


def power_of_two(count: int) -> int:
    """The least that is not below `count`: shapes of what Triton holds."""
    return 1 << (count - 1).bit_length()


def launch(
    kernel: Callable,
    grid: tuple[int, ...],
    in_specs: list,
    out_specs: list,
    shapes: list[tuple[int, ...]],
    tables: list[jax.Array],
    interpret: bool,
) -> list[jax.Array]:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    kinds = [jax.typeof(table) for table in tables]
    varying = {"vma": frozenset().union(*(kind.vma for kind in kinds))} if hasattr(kinds[0], "vma") else {}
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32, **varying) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
    )(*tables)
