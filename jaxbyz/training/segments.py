"""Train several seeds side by side, a segment of iterations at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Bool, PRNGKeyArray

from jaxbyz.algorithms import Algorithm, Metrics
from jaxbyz.training.devices import Shape
from jaxbyz.training.layout import make_layout, programs
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
    output_at: np.ndarray,
    *,
    length: int = 20,
    every: int | None = None,
    runs: Run | None = None,
    done: int = 0,
    shape: Shape | None = None,
    description: str | None = None,
) -> Iterator[TrainedSegment]:
    """Train all seeds and yield after every compiled call.

    The same program serves every segment, so where a run was cut does not change its numbers. Only the metrics leave
    the devices between segments.

    Args:
        algorithm: what to train with.
        keys: `[seeds]`, the random key of every run.
        coins: `[T]`, shared by all seeds, or `[seeds, T]`, one sequence per seed; then both branches are computed.
        output_at: `[seeds]`, T̂ of every run.
        length: the largest number of iterations per compiled call; segments end at multiples of it.
        every: segments also end at multiples of this number.
        runs: continue from these runs.
        done: the iterations that `runs` have done.
        shape: how seeds and agents are spread over the devices of all processes; by default what `choose_shape` finds.
        description: as in `programs`.
    """
    seeds, T = len(keys), coins.shape[-1]
    own_coins = coins.ndim == 2
    layout = make_layout(algorithm, seeds, shape)
    compiled = programs(layout, length, own_coins, description)
    index = layout.seed_at
    key_data, outputs = np.asarray(jax.random.key_data(keys))[index], np.asarray(output_at, np.int32)[index]

    def coins_of(first: int, n: int) -> np.ndarray:
        part = np.zeros((*coins.shape[:-1], length), bool)
        part[..., :n] = coins[..., first : first + n]
        return part[index] if own_coins else part

    padded = compiled.start(key_data) if runs is None else compiled.pad(runs)

    while done < T:
        n = min(length - done % length, T - done, T if every is None else every - done % every)
        padded, metrics = compiled.advance(padded, coins_of(done, n), outputs, np.int32(n))
        done += n
        yield TrainedSegment(
            done,
            jax.tree.map(lambda leaf, n=n: leaf[:seeds, :n], to_host(metrics)),
            compiled.trim(padded),
        )


def to_host(tree: Any) -> Any:
    """Return all arrays as whole NumPy arrays, in every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)
