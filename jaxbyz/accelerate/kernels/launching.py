"""What all kernels share: tiles and the launch itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.platform import interpret_kernels


def stack_into(parts: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Stack arrays along a new first axis, padded with zeros to the given shape."""
    number = lax.broadcasted_iota(jnp.int32, shape, 0)
    whole = jnp.zeros(shape, parts[0].dtype)
    for i, part in enumerate(parts):
        whole = jnp.where(number == i, part[None], whole)
    return whole


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`. Triton's arrays have such sides."""
    return 1 << (count - 1).bit_length()


def launch(
    kernel: Callable,
    grid: tuple[int, ...],
    in_specs: list,
    out_specs: list,
    out_shapes: list[tuple[int, ...]],
    inputs: list[jax.Array],
) -> list[jax.Array]:
    """Call a Pallas kernel whose results are float32, on the GPU with Triton or interpreted on other devices."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    types = [jax.typeof(array) for array in inputs]
    # Under `shard_map`, the results vary over all mesh axes that an input varies over.
    varying = {"vma": frozenset().union(*(kind.vma for kind in types))} if hasattr(types[0], "vma") else {}
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32, **varying) for shape in out_shapes],
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret_kernels(),
    )(*inputs)
