"""Two ways to the same result, chosen by looking at the numbers, or by whether there is a batch of them."""

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
    return alone_or_batched(
        lambda holds, *operands: jax.lax.cond(holds, quick, safe, *operands),
        lambda holds, *operands: safe(*operands),
        holds,
        *operands,
    )


def alone_or_batched(alone: Callable[..., Any], batched: Callable[..., Any], *operands: Any) -> Any:
    """alone(*operands), or batched(*operands) under `vmap`. Without a derivative, as `shortcut`."""
    choose = jax.custom_batching.custom_vmap(alone)

    @choose.def_vmap
    def _batch(size: int, mapped: list[Any], *operands: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda here: 0 if here else None, tuple(mapped))
        result = jax.vmap(batched, in_axes=axes, axis_size=size)(*operands)
        return result, jax.tree.map(lambda _: True, result)

    return choose(*operands)
