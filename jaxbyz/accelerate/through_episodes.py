"""Maps and gradients through whole episodes, whose steps depend on the earlier ones through a carry.

Axes as in `jaxbyz.accelerate.episode_sums`: n chunks, A agents, C steps per chunk, M episodes per agent. Functions take
one chunk of one agent, with steps `[…, C, M]` and a carry of leaves `[M, …]`. Where the platform is not the plain one,
chunks after the last step that was taken are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbyz.accelerate.platform import plain


def gradient_through_episodes(
    function: Callable[[Any, Any, Any], tuple[Any, Float[Array, ""]]],
    trees: Any,
    carries: Any,
    steps: Any,
    chunks: Int[Array, ""],
) -> Any:
    """Differentiate the sum of a function over all chunks, also through the carry: backpropagation through time.

    The carries at the start of every chunk are kept, and a chunk is computed again when it is differentiated.

    Args:
        function: `(tree, carry, steps of a chunk) -> (carry, [])` of one agent, a sum over the steps of the chunk to
            which steps that were not taken contribute zero.
        trees: what to differentiate with respect to, leaves `[A, …]`.
        carries: the carries at the start of the episodes, leaves `[A, M, …]`.
        steps: leaves `[n, A, …, C, M]`.
        chunks: the number of chunks with a step that was taken.

    Returns:
        A tree with leaves `[A, …]`.
    """
    all_agents = jax.vmap(function)
    n = jax.tree.leaves(steps)[0].shape[0]
    if plain():

        def total(trees: Any) -> Array:
            return jnp.sum(jax.lax.scan(lambda carries, part: all_agents(trees, carries, part), carries, steps)[1])

        return jax.grad(total)(trees)

    def advance(c: Array, now: tuple[Any, Any]) -> tuple[Any, Any]:
        carries, starts = now
        starts = jax.tree.map(lambda kept, x: kept.at[c].set(x), starts, carries)
        return all_agents(trees, carries, _chunk(steps, c))[0], starts

    def go_back(i: Array, now: tuple[Any, Any]) -> tuple[Any, Any]:
        sums, of_carries = now
        c = chunks - 1 - i
        start = jax.tree.map(lambda kept: kept[c], starts)
        (_, value), pull_back = jax.vjp(lambda t, carries: all_agents(t, carries, _chunk(steps, c)), trees, start)
        of_trees, of_carries = pull_back((of_carries, jnp.ones_like(value)))
        return jax.tree.map(jnp.add, sums, of_trees), of_carries

    starts = jax.tree.map(lambda x: jnp.zeros((n, *x.shape), x.dtype), carries)
    _, starts = jax.lax.fori_loop(0, chunks, advance, (carries, starts))
    zeros = jax.tree.map(jnp.zeros_like, (trees, carries))
    return jax.lax.fori_loop(0, chunks, go_back, zeros)[0]


def map_through_episodes(
    function: Callable[[Any, Any, Any], tuple[Any, Float[Array, "… C M"]]],
    trees: Any,
    carries: Any,
    steps: Any,
    chunks: Int[Array, ""],
) -> tuple[Any, Float[Array, "n A … C M"]]:
    """Compute the carries after the last chunk, and the function's values at every step; zero in chunks not computed.

    Args:
        function: `(tree, carry, steps of a chunk) -> (carry, […, C, M])` of one agent.
        trees: parameters, leaves `[A, …]`.
        carries: as in `gradient_through_episodes`.
        steps: as in `gradient_through_episodes`.
        chunks: as in `gradient_through_episodes`.
    """
    all_agents = jax.vmap(function)
    if plain():
        return jax.lax.scan(lambda carries, part: all_agents(trees, carries, part), carries, steps)
    n = jax.tree.leaves(steps)[0].shape[0]
    part = jax.eval_shape(lambda: all_agents(trees, carries, _chunk(steps, jnp.int32(0)))[1])

    def advance(c: Array, now: tuple[Any, Array]) -> tuple[Any, Array]:
        carries, values = all_agents(trees, now[0], _chunk(steps, c))
        return carries, now[1].at[c].set(values)

    return jax.lax.fori_loop(0, chunks, advance, (carries, jnp.zeros((n, *part.shape), part.dtype)))


def _chunk(steps: Any, c: Array) -> Any:
    return jax.tree.map(lambda x: x[c], steps)
