"""A quick way and a safe way to the same result, chosen by looking at the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array


def shortcut(holds: Array, quick: Callable[..., Any], safe: Callable[..., Any], *operands: Any) -> Any:
    """quick(*operands) where `holds`, otherwise safe(*operands), which must be right in either case.

    A single call runs one of the two. Over a batch a branch would be a choice between two finished results, so there
    only `safe` is run, and what was computed for the other alone is never executed. For use inside a function with a
    derivative of its own: this one has none.
    """

    @jax.custom_batching.custom_vmap
    def choose(holds: Array, *operands: Any) -> Any:
        return jax.lax.cond(holds, quick, safe, *operands)

    @choose.def_vmap
    def _batch(size: int, batched: list[Any], holds: Array, *operands: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda mapped: 0 if mapped else None, tuple(batched[1:]))
        result = jax.vmap(safe, in_axes=axes, axis_size=size)(*operands)
        return result, jax.tree.map(lambda _: True, result)

    return choose(holds, *operands)
