"""The steps of a batch that were taken, in blocks of equal size.

A *strip* is one chunk of one episode: C consecutive steps. As soon as a few episodes outlive the others, most strips of
a batch contain no step that was taken. If a step costs much more than fetching its numbers, a loop over living strips
is cheaper than a loop over the chunks of all episodes. There are two such loops. On a CPU, `living_strips` makes
blocks, each of one agent. On a GPU, which needs more work at a time, `strip_rounds` makes rounds, each with strips of
all agents.

The chunks can be dealt out to P parts in turn, chunk c to part c mod P, each in blocks or rounds of its own.

Axes: n chunks, A agents, C steps per chunk, M episodes per agent, S strips per block, at most Q blocks or R rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# Steps per block, at most: with more, the activations of a network no longer fit into a CPU's fastest cache.
BLOCK_STEPS = 256
# Strips per block and episode, at most: with more, most places of a block are empty if a batch is small and its
# episodes are short.
STRIPS_PER_EPISODE = 2
# Steps of each agent per round.
ROUND_STEPS = 1024


class LivingStrips(NamedTuple):
    """Where the living strips are.

    Attributes:
        chunk: `[Q, S]`, the chunk of each strip; n or more at places of a block that are not used.
        episode: `[Q, S]`, the episode of each strip.
        agent: `[Q]`, the agent of each block.
        ends: `[P]`, the number of blocks up to the end of each part; those of the first part come first.
    """

    chunk: Int[Array, "Q S"]
    episode: Int[Array, "Q S"]
    agent: Int[Array, " Q"]
    ends: Int[Array, " P"]

    @property
    def blocks(self) -> Int[Array, ""]:
        """The number of blocks that contain a strip."""
        return self.ends[-1]

    def part(self, part: Int[Array, ""] | int) -> tuple[Array, Array]:
        """Return the first block of a part and that after its last."""
        return jnp.where(part > 0, self.ends[part - 1], 0), self.ends[part]

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


def in_parts(x: Array, parts: int) -> Array:
    """Deal out chunks, `[n, …]` to `[⌈n/P⌉, P, …]`, with zeros after the last one."""
    rows = -(-len(x) // parts)
    missing = jnp.zeros((rows * parts - len(x), *x.shape[1:]), x.dtype)
    return jnp.concatenate([x, missing]).reshape(rows, parts, *x.shape[1:])


def _living(alive: Bool[Array, "n A C M"], parts: int) -> Bool[Array, "P A strips"]:
    """Return for each strip of a part whether it contains a step that was taken; those of a chunk are neighbours."""
    strips = in_parts(alive[:, :, 0], parts).transpose(1, 2, 0, 3)
    return strips.reshape(parts, alive.shape[1], -1)


def living_strips(alive: Bool[Array, "n A C M"], parts: int = 1) -> LivingStrips:
    """Collect the strips that contain a step that was taken, those of each part and agent in blocks of their own."""
    _, A, C, M = alive.shape
    S = max(1, min(BLOCK_STEPS // C, STRIPS_PER_EPISODE * M))
    is_alive = _living(alive, parts).reshape(parts * A, -1)  # a group is an agent's share of a part
    G, size = is_alive.shape
    Q = G * -(-size // S)
    blocks = -(-jnp.sum(is_alive, axis=1, dtype=jnp.int32) // S)
    ends = jnp.cumsum(blocks)
    place = (ends - blocks)[:, None] * S + jnp.cumsum(is_alive, axis=1, dtype=jnp.int32) - 1
    strips = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (G, size))
    order = jnp.full(Q * S, size, jnp.int32).at[jnp.where(is_alive, place, Q * S)].set(strips, mode="drop")
    group = jnp.searchsorted(ends, jnp.arange(Q, dtype=jnp.int32), side="right").astype(jnp.int32)
    order = order.reshape(Q, S)
    chunk = order // M * parts + (group // A)[:, None]  # at least n where a place is not used
    return LivingStrips(chunk, order % M, group % A, ends[A - 1 :: A])


class StripRounds(NamedTuple):
    """Where the living strips are, S strips of each agent in every round.

    Attributes:
        chunk: `[P, R, A, S]`, the chunk of each strip; n or more at places that are not used.
        episode: `[P, R, A, S]`, the episode of each strip.
        rounds: `[P]`, the number of rounds of each part that contain a strip.
    """

    chunk: Int[Array, "P R A S"]
    episode: Int[Array, "P R A S"]
    rounds: Int[Array, " P"]

    def take(self, x: Array, part: Array | int, r: Array) -> Array:
        """Gather a round `[A, …, C·S]` from an array `[n, A, …, C, M]`; unused places are zero.

        Neighbouring strips are mostly those of neighbouring episodes, which are neighbours in memory as well.
        """

        def of_agent(x: Array, chunk: Array, episode: Array) -> Array:
            features = [slice(None)] * (x.ndim - 2)  # and the C steps
            strips = x.at[(chunk, *features, episode)].get(mode="fill", fill_value=0)  # [S, …, C]
            return jnp.moveaxis(strips, 0, -1).reshape(*strips.shape[1:-1], -1)

        return jax.vmap(of_agent, in_axes=(1, 0, 0))(x, self.chunk[part, r], self.episode[part, r])


def strip_rounds(alive: Bool[Array, "n A C M"], parts: int = 1) -> StripRounds:
    """Collect the strips that contain a step that was taken in rounds, those of each part in rounds of their own."""
    _, A, C, M = alive.shape
    is_alive = _living(alive, parts)
    size = is_alive.shape[2]
    S = min(size, max(1, ROUND_STEPS // C))
    places = jnp.where(is_alive, jnp.arange(size, dtype=jnp.int32), size)
    R = -(-size // S)
    order = jnp.pad(jnp.sort(places), ((0, 0), (0, 0), (0, R * S - size)), constant_values=size)
    order = order.reshape(parts, A, R, S).swapaxes(1, 2)
    chunk = order // M * parts + jnp.arange(parts, dtype=jnp.int32)[:, None, None, None]
    most = jnp.max(jnp.sum(is_alive, axis=2, dtype=jnp.int32), axis=1)  # strips of one agent
    return StripRounds(chunk, order % M, -(-most // S))
