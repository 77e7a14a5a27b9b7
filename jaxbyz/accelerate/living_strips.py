"""The steps of a batch that were taken, in blocks of equal size.

A *strip* is one chunk of one episode: C consecutive steps. As soon as a few episodes outlive the others, most strips of
a batch contain no step that was taken. If a step costs much more than fetching its numbers, a loop over blocks of
living strips, each block of one agent, is cheaper than a loop over the chunks of all episodes.

Axes: n chunks, A agents, C steps per chunk, M episodes per agent, S strips per block, at most Q blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# Steps per block: with more, the activations of a network no longer fit into a CPU's fastest cache, and more places of
# each agent's last block are empty.
BLOCK_STEPS = 256


class LivingStrips(NamedTuple):
    """Where the living strips are.

    Attributes:
        chunk: `[Q, S]`, the chunk of each strip; n at places of a block that are not used.
        episode: `[Q, S]`, the episode of each strip.
        agent: `[Q]`, the agent of each block.
        blocks: the number of blocks that contain a strip.
    """

    chunk: Int[Array, "Q S"]
    episode: Int[Array, "Q S"]
    agent: Int[Array, " Q"]
    blocks: Int[Array, ""]

    def take(self, x: Array, block: Array) -> Array:
        """Gather a block `[…, S·C]` from an array `[n, A, …, C, M]`; unused places are zero."""
        strips = self._strips(x, block).get(mode="fill", fill_value=0)  # [S, …, C]
        return jnp.moveaxis(strips, 0, -2).reshape(*strips.shape[1:-1], -1)

    def collect(self, steps: Any) -> Any:
        """Gather all blocks, `[Q, …, S·C]`, of every array `[n, A, …, C, M]` of a tree."""
        shapes = jax.eval_shape(lambda: jax.tree.map(lambda x: self.take(x, jnp.int32(0)), steps))
        places = jax.tree.map(lambda block: jnp.zeros((len(self.agent), *block.shape), block.dtype), shapes)

        def add_block(b: Array, blocks: Any) -> Any:
            return jax.tree.map(lambda all_blocks, x: all_blocks.at[b].set(self.take(x, b)), blocks, steps)

        return jax.lax.fori_loop(0, self.blocks, add_block, places)

    def put(self, x: Array, block: Array, values: Array) -> Array:
        """Write a block `[…, S·C]` back into an array `[n, A, …, C, M]`."""
        strips = values.reshape(*values.shape[:-1], -1, x.shape[-2])
        return self._strips(x, block).set(jnp.moveaxis(strips, -2, 0), mode="drop")

    def _strips(self, x: Array, block: Array) -> Any:
        features = [slice(None)] * (x.ndim - 3)  # and the C steps
        return x.at[(self.chunk[block], self.agent[block], *features, self.episode[block])]


def living_strips(alive: Bool[Array, "n A C M"]) -> LivingStrips:
    """Collect the strips that contain a step that was taken, those of each agent in blocks of their own."""
    n, A, C, M = alive.shape
    S = max(1, BLOCK_STEPS // C)
    Q = A * -(-n * M // S)
    is_alive = jnp.moveaxis(alive[:, :, 0], 1, 0).reshape(A, n * M)
    blocks = -(-jnp.sum(is_alive, axis=1, dtype=jnp.int32) // S)
    ends = jnp.cumsum(blocks)
    place = (ends - blocks)[:, None] * S + jnp.cumsum(is_alive, axis=1, dtype=jnp.int32) - 1
    strips = jnp.broadcast_to(jnp.arange(n * M, dtype=jnp.int32), (A, n * M))
    order = jnp.full(Q * S, n * M, jnp.int32).at[jnp.where(is_alive, place, Q * S)].set(strips, mode="drop")
    agent = jnp.searchsorted(ends, jnp.arange(Q, dtype=jnp.int32), side="right").astype(jnp.int32)
    order = order.reshape(Q, S)
    return LivingStrips(order // M, order % M, agent, ends[-1])
