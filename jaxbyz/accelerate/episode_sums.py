"""Sums and maps over the steps of a batch of episodes.

Axes as in `jaxbyz.sampling.rollout.Episodes`: n chunks, A agents, C steps per chunk, M episodes per agent. Arrays of
steps are `[n, A, …, C, M]`. The functions that are summed or mapped take the steps of one agent as `[…, L]`, with all
of them on one axis. `chunks` is the number of chunks that contain a step that was taken, so that the others can be
skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbyz.accelerate.living_strips import in_parts, living_strips, strip_rounds
from jaxbyz.accelerate.platform import on_cpu, plain

# With more parameters per agent, a step of the network costs a CPU much more than fetching its numbers.
STRIPS_PARAMETERS = 1024


def layout(trees: Any) -> Literal["at once", "chunks", "blocks", "rounds"]:
    """Choose how a sum goes through the steps: `living_strips` explains blocks and rounds."""
    if plain():
        return "at once"
    if not on_cpu():
        return "rounds"
    parameters = sum(leaf[0].size for leaf in jax.tree.leaves(trees))
    return "blocks" if parameters > STRIPS_PARAMETERS else "chunks"


def sum_over_steps(
    function: Callable[[Any, Any], Any],
    trees: Any,
    steps: Any,
    alive: Bool[Array, "n A C M"],
    chunks: Int[Array, ""],
) -> Any:
    """Compute `function(tree, steps)` for each agent, where the function is a sum over steps.

    Args:
        function: `(tree, steps)` of one agent to a tree of sums over the L steps, to which steps that were not taken
            contribute zero, such as the gradient of a weighted log-likelihood.
        trees: the parameters, leaves `[A, …]`.
        steps: leaves `[n, A, …, C, M]`.
        alive: True at steps that were taken.
        chunks: the number of chunks with such a step.

    Returns:
        A tree with leaves `[A, …]`.
    """
    return repeatable_sum(function, trees, steps, alive, chunks)(trees, 0)


def repeatable_sum(
    function: Callable[[Any, Any], Any],
    trees: Any,
    steps: Any,
    alive: Bool[Array, "n A C M"],
    chunks: Int[Array, ""],
    parts: int = 1,
) -> Callable[[Any, Int[Array, ""] | int], Any]:
    """Return `(trees, part) -> sum over the steps of a part`, to be called in a loop that changes the trees.

    Chunk c belongs to part c mod `parts`. What does not depend on the trees is done once, outside of the loop. The
    other arguments are those of `sum_over_steps`; of `trees` only the shapes matter here.
    """
    start = _zeros(function, trees, steps)
    chosen = layout(trees)
    if chosen == "at once":

        def sum_part(trees: Any, part: Array | int) -> Any:
            return jax.vmap(function)(trees, jax.tree.map(lambda x: _all_steps(in_parts(x, parts)[:, part]), steps))

    elif chosen == "chunks":

        def sum_part(trees: Any, part: Array | int) -> Any:
            def add_chunk(i: Array, total: Any) -> Any:
                return jax.tree.map(jnp.add, total, jax.vmap(function)(trees, _chunk(steps, i * parts + part)))

            return jax.lax.fori_loop(0, (chunks - part + parts - 1) // parts, add_chunk, start)

    elif chosen == "rounds":
        rounds = strip_rounds(alive, parts)

        def sum_part(trees: Any, part: Array | int) -> Any:
            def add_round(r: Array, total: Any) -> Any:
                sums = jax.vmap(function)(trees, jax.tree.map(lambda x: rounds.take(x, part, r), steps))
                return jax.tree.map(jnp.add, total, sums)

            return jax.lax.fori_loop(0, rounds.rounds[part], add_round, start)

    else:
        strips = living_strips(alive, parts)
        blocks = strips.collect(steps)

        def sum_part(trees: Any, part: Array | int) -> Any:
            def add_block(b: Array, total: Any) -> Any:
                agent = strips.agent[b]
                tree = jax.tree.map(lambda leaf: leaf[agent], trees)
                sums = function(tree, jax.tree.map(lambda x: x[b], blocks))
                return jax.tree.map(lambda whole, x: whole.at[agent].add(x), total, sums)

            return jax.lax.fori_loop(*strips.part(part), add_block, start)

    return sum_part


def map_over_steps(
    function: Callable[[Any, Any], Float[Array, " L"]],
    trees: Any,
    steps: Any,
    alive: Bool[Array, "n A C M"],
    chunks: Int[Array, ""],
) -> Float[Array, "n A C M"]:
    """Compute `function(tree, steps)`, one number per step, for each agent; zero at steps that were not taken.

    Args and axes as in `sum_over_steps`.
    """
    n, A, C, M = alive.shape
    if plain():
        values = jax.vmap(function)(trees, jax.tree.map(_all_steps, steps)).reshape(A, n, C, M)
        return jnp.where(alive, jnp.moveaxis(values, 1, 0), 0.0)
    start = jnp.zeros(alive.shape, _zeros(function, trees, steps).dtype)
    if layout(trees) != "blocks":

        def map_chunk(c: Array, values: Array) -> Array:
            part = jax.vmap(function)(trees, _chunk(steps, c)).reshape(A, C, M)
            return values.at[c].set(jnp.where(alive[c], part, 0.0))

        return jax.lax.fori_loop(0, chunks, map_chunk, start)

    strips = living_strips(alive)

    def map_block(b: Array, values: Array) -> Array:
        tree = jax.tree.map(lambda leaf: leaf[strips.agent[b]], trees)
        part = function(tree, jax.tree.map(lambda x: strips.take(x, b), steps))
        return strips.put(values, b, jnp.where(strips.take(alive, b), part, 0.0))

    return jax.lax.fori_loop(0, strips.blocks, map_block, start)


def sum_from_each_step(
    values: Float[Array, "n A C M"], chunks: Int[Array, ""] | int, decay: float = 1.0
) -> Float[Array, "n A C M"]:
    """Compute Σ_{h≥t} decay^{h−t} x_h for every step t.

    Args:
        values: x, zero after the first `chunks` chunks.
        chunks: the number of chunks that can be different from zero.
        decay: the factor per step.
    """
    n, A, C, M = values.shape
    if plain():
        later = _decay_matrix(n * C, decay)
        by_time = jnp.moveaxis(values, 0, 1).reshape(A, n * C, M)
        sums = jnp.einsum("th,ahm->atm", later, by_time, precision=jax.lax.Precision.HIGHEST)
        return jnp.moveaxis(sums.reshape(A, n, C, M), 1, 0)
    later = _decay_matrix(C, decay)
    to_next_chunk = decay ** (C - jnp.arange(C, dtype=jnp.float32))

    def fill_chunk(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        following, sums = carry  # [A, M], the sum from the first step of the next chunk
        c = chunks - 1 - i
        part = jnp.einsum("th,ahm->atm", later, values[c], precision=jax.lax.Precision.HIGHEST)
        part = part + to_next_chunk[None, :, None] * following[:, None]
        return part[:, 0], sums.at[c].set(part)

    return jax.lax.fori_loop(0, chunks, fill_chunk, (jnp.zeros((A, M), values.dtype), jnp.zeros_like(values)))[1]


def _decay_matrix(size: int, decay: float) -> Float[Array, "size size"]:
    """Entry [t, h] is decay^{h−t} for h ≥ t, otherwise 0."""
    gap = jnp.arange(size)[None] - jnp.arange(size)[:, None]
    return jnp.where(gap >= 0, decay ** jnp.maximum(gap, 0).astype(jnp.float32), 0.0)


def _zeros(function: Callable[[Any, Any], Any], trees: Any, steps: Any) -> Any:
    """Zeros with the shapes of the function's results, `[A, …]`, for the steps of one chunk."""
    shapes = jax.eval_shape(lambda: jax.vmap(function)(trees, _chunk(steps, jnp.int32(0))))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _chunk(steps: Any, c: Array) -> Any:
    """Leaves `[n, A, …, C, M]` to the chunk's `[A, …, C·M]`."""
    return jax.tree.map(lambda x: _merge_lanes(x[c]), steps)


def _merge_lanes(x: Array) -> Array:
    """`[…, C, M]` to `[…, C·M]`."""
    return x.reshape(*x.shape[:-2], -1)


def _all_steps(x: Array) -> Array:
    """`[n, A, …, C, M]` to `[A, …, n·C·M]`."""
    return _merge_lanes(jnp.moveaxis(_merge_lanes(x), 0, -2))
