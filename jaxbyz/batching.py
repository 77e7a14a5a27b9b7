"""Leading axes: what rules for `vmap` (`jax.custom_batching`) have in common, and places to fill."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def batch_all(size: int, batched: Any, tree: Any) -> Any:
    """Give the leaves that are not mapped over the leading axis that the others have, of length `size`.

    batched: a tree of booleans of the same structure, as a batching rule is handed it.
    """

    def leaf(x: Array, is_batched: bool) -> Array:
        return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

    return jax.tree.map(leaf, tree, batched)


def filled(count: int, places: int) -> np.ndarray:
    """[places] 0, …, count − 1, and the last one again in what places are left."""
    return np.minimum(np.arange(places), count - 1)
