"""The living part of a batch of episodes, agent by agent in blocks of equal size.

A strip is one chunk of one episode, C steps long. Most strips of a batch are dead as soon as a few episodes outlive the
others by far. Where a step's formulas cost much more than fetching its numbers, a loop over blocks of living strips of
one agent each is cheaper than one over chunks of everybody.

Axes as in `jaxbyz.sampling.rollout`; S strips a block, Q blocks at most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

STEPS = 1024  # of a block
PARAMETERS = 1024  # with more of them a step's network costs a CPU much more than fetching its numbers


class Strips(NamedTuple):
    """chunk, lane: [Q, S], chunk = n where a block has room left; agent: [Q]; blocks: how many hold anything."""

    chunk: Int[Array, "Q S"]
    lane: Int[Array, "Q S"]
    agent: Int[Array, " Q"]
    blocks: Int[Array, ""]

    def take(self, x: Array, block: Array) -> Array:
        """From x [n, A, …, C, M] a block's [S, …, C], zero where nothing is."""
        return self._at(x, block).get(mode="fill", fill_value=0)

    def put(self, x: Array, block: Array, values: Array) -> Array:
        """x [n, A, …, C, M] with a block's [S, …, C] put back."""
        return self._at(x, block).set(values, mode="drop")

    def _at(self, x: Array, block: Array) -> Any:
        return x.at[(self.chunk[block], self.agent[block], *[slice(None)] * (x.ndim - 3), self.lane[block])]


def living(alive: Bool[Array, "n A C M"]) -> Strips:
    """The strips with a living step, an agent's own in blocks of their own."""
    n, A, C, M = alive.shape
    S = max(1, STEPS // C)
    Q = A * -(-n * M // S)
    alive = jnp.moveaxis(alive[:, :, 0], 1, 0).reshape(A, n * M)
    blocks = -(-jnp.sum(alive, axis=1, dtype=jnp.int32) // S)
    ends = jnp.cumsum(blocks)
    place = (ends - blocks)[:, None] * S + jnp.cumsum(alive, axis=1, dtype=jnp.int32) - 1
    strips = jnp.broadcast_to(jnp.arange(n * M, dtype=jnp.int32), (A, n * M))
    order = jnp.full(Q * S, n * M, jnp.int32).at[jnp.where(alive, place, Q * S)].set(strips, mode="drop")
    agent = jnp.searchsorted(ends, jnp.arange(Q, dtype=jnp.int32), side="right").astype(jnp.int32)
    order = order.reshape(Q, S)
    return Strips(order // M, order % M, agent, ends[-1])
