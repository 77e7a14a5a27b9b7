"""Train several seeds side by side, a segment of iterations at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Bool, PRNGKeyArray

from jaxbyz.algorithms import Algorithm, Metrics
from jaxbyz.environments import check_episodes
from jaxbyz.training.devices import Shape
from jaxbyz.training.layout import Vary, make_layout, programs
from jaxbyz.training.run import Run


class TrainedSegment(NamedTuple):
    """What `segments` yields.

    Attributes:
        done: iterations so far.
        metrics: `[seeds, n]`, the metrics of this segment's n iterations, on the host.
        runs: the runs after this segment, `[seeds, …]`.
    """

    done: int
    metrics: Metrics
    runs: Run


def segments(
    algorithm: Algorithm,
    keys: PRNGKeyArray,
    coins: Bool[np.ndarray, " T"] | Bool[np.ndarray, "seeds T"],
    output_at: np.ndarray | Callable[[int], np.ndarray],
    *,
    length: int = 20,
    every: int | None = None,
    runs: Run | None = None,
    done: int = 0,
    shape: Shape | None = None,
    description: str | None = None,
    vary: Vary | None = None,
    numbers: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Iterator[TrainedSegment]:
    """Train all seeds and yield after every compiled call.

    The same program serves every segment, so where a run was cut does not change its numbers. Only the metrics leave
    the devices between segments.

    Args:
        algorithm: what to train with.
        keys: `[seeds]`, the random key of every run.
        coins: `[T]`, shared by all seeds, or `[seeds, T]`, one sequence per seed; then both branches are computed.
        output_at: `[seeds]`, T̂ of every run; or a function that returns the T̂ of runs which end after this many
            iterations, with which a run has the output of one that ends where it is stopped.
        length: the largest number of iterations per compiled call; segments end at multiples of it.
        every: segments also end at multiples of this number.
        runs: continue from these runs.
        done: the iterations that `runs` have done.
        shape: how seeds and agents are spread over the devices of all processes; by default what `choose_shape` finds.
        description: as in `programs`.
        vary: as in `Layout`, if the runs differ in numbers that `algorithm` does not have.
        numbers: `[seeds]` each, the arguments of `vary`.

    Raises:
        EnvironmentFailure: if an environment outside of the compiled programs failed in the next segment.
    """
    seeds, T = len(keys), coins.shape[-1]
    own_coins = coins.ndim == 2
    layout = make_layout(algorithm, seeds, shape, vary)
    compiled = programs(layout, length, own_coins, description)
    index = layout.seed_at
    key_data = np.asarray(jax.random.key_data(keys))[index]
    output_of = output_at if callable(output_at) else lambda done: output_at

    def coins_of(first: int, n: int) -> np.ndarray:
        part = np.zeros((*coins.shape[:-1], length), bool)
        part[..., :n] = coins[..., first : first + n]
        return part[index] if own_coins else part

    inputs = {name: np.asarray(values)[index] for name, values in numbers.items()}
    padded = compiled.start(key_data, inputs) if runs is None else compiled.pad(runs)

    while done < T:
        n = min(length - done % length, T - done, T if every is None else every - done % every)
        output = np.asarray(output_of(done + n), np.int32)[index]
        padded, metrics = compiled.advance(padded, coins_of(done, n), output, np.int32(n), inputs)
        done += n
        measured = jax.tree.map(lambda leaf, n=n: leaf[:seeds, :n], to_host(metrics))
        check_episodes(algorithm.environment)
        yield TrainedSegment(done, measured, compiled.trim(padded))


def to_host(tree: Any) -> Any:
    """Return all arrays as whole NumPy arrays, in every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)
