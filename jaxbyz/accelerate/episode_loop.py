"""The loop that runs the episodes of all agents until the last one has ended.

A *lane* is one running episode. The lane axis is the last axis of every array here, and the agent axis comes before all
axes of features. Time is cut into chunks of C steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxbyz.accelerate.platform import plain


class Simulation(NamedTuple):
    """How the M lanes of one agent advance.

    Attributes:
        draw: `(agent, chunk) -> drawn`, all random numbers of one chunk, leaves `[C, …, M]`.
        step: `(agent, lanes, drawn, t) -> (lanes, record)` for one time step. `lanes` is a NamedTuple with a field
            `alive`, `[M]`; leaves of `drawn`, of `lanes` and of `record` are `[…, M]`. Lanes do not depend on each
            other, and the record of a lane that is not alive is zero.
        chunk_size: the number of steps per chunk, C.
        chunks: the number of chunks, n, after which every lane has ended.
    """

    draw: Callable[[Any, Int[Array, ""]], Any]
    step: Callable[[Any, Any, Any, Int[Array, ""]], tuple[Any, Any]]
    chunk_size: int
    chunks: int


class LoopState(NamedTuple):
    """The state of the loop over chunks.

    Attributes:
        chunk: the number of chunks that have been run.
        lanes: leaves `[A, …, M]`.
        record: leaves `[n, A, …, C, M]`, zero in the chunks that have not been run.
    """

    chunk: Int[Array, ""]
    lanes: Any
    record: Any


def run_episodes(simulation: Simulation, agents: Any, lanes: Any) -> LoopState:
    """Run the lanes of A agents until all have ended, and stop after the chunk in which the last one ends.

    Args:
        simulation: how the lanes of one agent advance.
        agents: what `draw` and `step` know of each agent, leaves `[A, …]`.
        lanes: the lanes at time 0, leaves `[A, …, M]`.
    """
    if plain():
        return run_to_horizon(simulation, agents, lanes)
    run_chunk = jax.jit(partial(_run_chunk, simulation))  # jitted, so that it is traced only once
    _, part = jax.eval_shape(run_chunk, agents, lanes, jnp.int32(0))
    record = jax.tree.map(lambda x: jnp.zeros((simulation.chunks, *x.shape), x.dtype), part)

    def running(now: LoopState) -> Array:
        return (now.chunk < simulation.chunks) & jnp.any(now.lanes.alive)

    def advance(now: LoopState) -> LoopState:
        lanes, part = run_chunk(agents, now.lanes, now.chunk)
        return LoopState(now.chunk + 1, lanes, jax.tree.map(lambda a, x: a.at[now.chunk].set(x), now.record, part))

    return jax.lax.while_loop(running, advance, LoopState(jnp.int32(0), lanes, record))


def run_to_horizon(simulation: Simulation, agents: Any, lanes: Any) -> LoopState:
    """Compute what `run_episodes` does with one scan over all n·C steps: its plain version."""
    n, C = simulation.chunks, simulation.chunk_size

    def one_agent(agent: Any, lanes: Any) -> tuple[Any, Any]:
        drawn = jax.vmap(lambda chunk: simulation.draw(agent, chunk))(jnp.arange(n))
        drawn = jax.tree.map(lambda x: x.reshape(n * C, *x.shape[2:]), drawn)
        return jax.lax.scan(lambda lanes, x: simulation.step(agent, lanes, *x), lanes, (drawn, jnp.arange(n * C)))

    lanes, record = jax.vmap(one_agent, out_axes=(0, 1))(agents, lanes)  # record: [n·C, A, …, M]
    record = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(n, C, *x.shape[1:]), 1, -2), record)
    steps_alive = jnp.max(jnp.sum(record.alive, axis=(0, 2), dtype=jnp.int32))
    return LoopState(-(-steps_alive // C), lanes, record)


def _run_chunk(simulation: Simulation, agents: Any, lanes: Any, chunk: Int[Array, ""]) -> tuple[Any, Any]:
    """Run one chunk; the leaves of its record are `[A, …, C, M]`."""
    drawn = jax.vmap(simulation.draw, in_axes=(0, None), out_axes=1)(agents, chunk)
    times = chunk * simulation.chunk_size + jnp.arange(simulation.chunk_size, dtype=jnp.int32)

    def one_agent(agent: Any, lanes: Any, drawn: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda lanes, x: simulation.step(agent, lanes, *x), lanes, (drawn, times))

    lanes, record = jax.vmap(one_agent, in_axes=(0, 0, 1), out_axes=(0, 1))(agents, lanes, drawn)
    return lanes, jax.tree.map(lambda x: jnp.moveaxis(x, 0, -2), record)
