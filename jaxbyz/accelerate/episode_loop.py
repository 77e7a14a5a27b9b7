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

from jaxbyz.accelerate.kernels import scan_in_kernel
from jaxbyz.accelerate.platform import kernels_run, on_cpu, plain

SURVIVORS = 1 / 8  # when only this share of the lanes of a costly environment is alive, they are gathered


class Simulation(NamedTuple):
    """How the M lanes of one agent advance.

    Attributes:
        draw: `(agent, chunk) -> drawn`, all random numbers of one chunk, leaves `[C, …, M]`.
        step: `(agent, lanes, drawn, t) -> (lanes, record)` for one time step. `lanes` is a NamedTuple with a field
            `alive`, `[M]`; leaves of `drawn`, of `lanes` and of `record` are `[…, M]`. Lanes do not depend on each
            other, and the record of a lane that is not alive is zero.
        chunk_size: the number of steps per chunk, C.
        chunks: the number of chunks, n, after which every lane has ended.
        costly: whether one step costs far more than gathering its lanes.
    """

    draw: Callable[[Any, Int[Array, ""]], Any]
    step: Callable[[Any, Any, Any, Int[Array, ""]], tuple[Any, Any]]
    chunk_size: int
    chunks: int
    costly: bool = False


class Progress(NamedTuple):
    """The state of the loop over chunks.

    Attributes:
        chunk: the number of chunks that have been run.
        lanes: leaves `[A, …, M]`.
        record: leaves `[n, A, …, C, M]`, zero in the chunks that have not been run.
    """

    chunk: Int[Array, ""]
    lanes: Any
    record: Any


def run_episodes(simulation: Simulation, agents: Any, lanes: Any) -> Progress:
    """Run the lanes of A agents until all have ended.

    The loop stops after the chunk in which the last lane ends. The last living lanes of a costly environment are
    gathered on a CPU, so that the dead ones no longer cost anything.

    Args:
        simulation: how the lanes of one agent advance.
        agents: what `draw` and `step` know of each agent, leaves `[A, …]`.
        lanes: the lanes at time 0, leaves `[A, …, M]`.
    """
    if plain():
        return run_to_the_last_step(simulation, agents, lanes)
    survivors = int(lanes.alive.size * SURVIVORS) if simulation.costly and on_cpu() else 0
    _, part = jax.eval_shape(partial(_run_chunk, simulation, agents), lanes, jnp.int32(0))
    record = jax.tree.map(lambda x: jnp.zeros((simulation.chunks, *x.shape), x.dtype), part)
    progress = _run_chunks(simulation, agents, Progress(jnp.int32(0), lanes, record), _write_chunk, survivors)
    return _finish_survivors(simulation, agents, progress, survivors) if survivors else progress


def run_to_the_last_step(simulation: Simulation, agents: Any, lanes: Any) -> Progress:
    """Compute what `run_episodes` does with one scan over all n·C steps: its plain version."""
    n, C = simulation.chunks, simulation.chunk_size

    def one_agent(agent: Any, lanes: Any) -> tuple[Any, Any]:
        drawn = jax.vmap(lambda chunk: simulation.draw(agent, chunk))(jnp.arange(n))
        drawn = jax.tree.map(lambda x: x.reshape(n * C, *x.shape[2:]), drawn)
        return jax.lax.scan(lambda lanes, x: simulation.step(agent, lanes, *x), lanes, (drawn, jnp.arange(n * C)))

    lanes, record = jax.vmap(one_agent, out_axes=(0, 1))(agents, lanes)  # record: [n·C, A, …, M]
    record = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(n, C, *x.shape[1:]), 1, -2), record)
    steps_alive = jnp.max(jnp.sum(record.alive, axis=(0, 2), dtype=jnp.int32))
    return Progress(-(-steps_alive // C), lanes, record)


def scan_steps(step: Callable, agents: Any, lanes: Any, drawn: Any, first: Int[Array, ""]) -> tuple[Any, Any]:
    """Advance the lanes of A agents by C steps; on a GPU in one kernel, if the step can be traced for it.

    Args:
        step: as in `Simulation`.
        agents: leaves `[A, …]`.
        lanes: leaves `[A, …, M]`.
        drawn: the random numbers of the C steps, leaves `[C, A, …, M]`.
        first: the number of the first step.

    Returns:
        The lanes afterwards, and the record with leaves `[C, A, …, M]`.
    """
    if kernels_run():
        result = scan_in_kernel(step, agents, lanes, drawn, first)
        if result is not None:
            return result
    C = jax.tree.leaves(drawn)[0].shape[0]
    times = first + jnp.arange(C, dtype=jnp.int32)

    def one_agent(agent: Any, lanes: Any, drawn: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda lanes, x: step(agent, lanes, *x), lanes, (drawn, times))

    return jax.vmap(one_agent, in_axes=(0, 0, 1), out_axes=(0, 1))(agents, lanes, drawn)


def _run_chunk(simulation: Simulation, agents: Any, lanes: Any, chunk: Int[Array, ""]) -> tuple[Any, Any]:
    """Run one chunk; the leaves of its record are `[A, …, C, M]`."""
    drawn = jax.vmap(simulation.draw, in_axes=(0, None), out_axes=1)(agents, chunk)
    lanes, record = scan_steps(simulation.step, agents, lanes, drawn, chunk * simulation.chunk_size)
    return lanes, jax.tree.map(lambda x: jnp.moveaxis(x, 0, -2), record)


def _run_chunks(
    simulation: Simulation, agents: Any, start: Progress, write: Callable[[Array, Array, Array], Array], until: int
) -> Progress:
    """Run chunks while more than `until` lanes are alive; `write(record, chunk, part)` stores what a chunk recorded."""

    def running(now: Progress) -> Array:
        return (now.chunk < simulation.chunks) & (jnp.sum(now.lanes.alive, dtype=jnp.int32) > until)

    def advance(now: Progress) -> Progress:
        lanes, part = _run_chunk(simulation, agents, now.lanes, now.chunk)
        record = jax.tree.map(lambda whole, x: write(whole, now.chunk, x), now.record, part)
        return Progress(now.chunk + 1, lanes, record)

    return jax.lax.while_loop(running, advance, start)


def _write_chunk(record: Array, chunk: Array, part: Array) -> Array:
    return record.at[chunk].set(part)


def _finish_survivors(simulation: Simulation, agents: Any, progress: Progress, count: int) -> Progress:
    """Continue with the last living lanes, at most `count`; each becomes an agent with a single lane."""
    A, M = progress.lanes.alive.shape
    index = jnp.flatnonzero(progress.lanes.alive, size=count, fill_value=A * M)
    owner, lane = index // M, index % M  # owner = A if fewer lanes are alive: out of range, so nothing is written

    def at_survivors(x: Array, *before: Array) -> Any:
        """Index the survivors of an array `[*before, A, …, M]`; the indexed shape is `[count, …]`."""
        features = [slice(None)] * (x.ndim - 2 - len(before))
        return x.at[(*before, owner, *features, lane)]

    def draw(survivor: tuple[Any, Array], chunk: Array) -> Any:
        """The random numbers that this lane would have had beside the other lanes of its agent."""
        agent, lane = survivor
        return jax.tree.map(lambda x: x[..., lane, None], simulation.draw(agent, chunk))

    def step(survivor: tuple[Any, Array], lanes: Any, drawn: Any, t: Array) -> tuple[Any, Any]:
        return simulation.step(survivor[0], lanes, drawn, t)

    def write(record: Array, chunk: Array, part: Array) -> Array:
        return at_survivors(record, chunk).set(part[..., 0], mode="drop")

    survivors = (jax.tree.map(lambda x: x.at[owner].get(mode="clip"), agents), lane)
    lanes = jax.tree.map(lambda x: at_survivors(x).get(mode="clip")[..., None], progress.lanes)
    lanes = lanes._replace(alive=lanes.alive & (index < A * M)[:, None])
    alone = simulation._replace(draw=draw, step=step)
    end = _run_chunks(alone, survivors, progress._replace(lanes=lanes), write, until=0)
    return end._replace(
        lanes=jax.tree.map(lambda x, part: at_survivors(x).set(part[..., 0], mode="drop"), progress.lanes, end.lanes)
    )
