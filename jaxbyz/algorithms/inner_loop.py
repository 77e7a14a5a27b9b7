"""The inner loop of FedPG-BR: a large batch of random size, and small steps that end early if the policy has moved far.

FedPG-BR draws the length of its inner loop; here the loop lasts until the next coin that shows a large batch. If it
ends early, the server waits for that coin: the iterations in between change nothing and count no trajectories.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxbyz.algorithms.base import IterationKeys, State, choose
from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.sampling.page import Page

BATCH_STREAM = 2**32 - 2  # of the key of the gradient messages, which is also split into three


def large_batch_size(page: Page, keys: IterationKeys) -> Int[Array, ""]:
    """Draw the size of a large batch, which all workers are told."""
    if not page.batch_spread:
        return jnp.int32(page.N)
    key = jax.random.fold_in(keys.gradients, BATCH_STREAM)
    return jax.random.randint(key, (), page.N - page.batch_spread, page.N + page.batch_spread + 1)


def end_inner_loop(page: Page, coin: Array, before: State, after: State, ratio: Array | tuple[()]) -> State:
    """Return the state after an iteration, in which the server takes no step if its inner loop has ended.

    Args:
        page: its `ratio_window` is the largest distance of the mean ratio from 1 with which the loop goes on.
        coin: whether this iteration had a large batch, which starts a new loop.
        before: the state before this iteration.
        after: the state after it if the server takes its step.
        ratio: `[1]`, the mean ratio of the server's small batch.
    """
    if page.ratio_window is None:
        return after
    ended: Bool[Array, ""] = ~coin & (before.ended | (jnp.abs(jnp.asarray(ratio)[0] - 1.0) > page.ratio_window))
    kept = ("parameters", "anchor", "estimate", "optimizer")
    chosen = {name: choose(ended, getattr(before, name), getattr(after, name)) for name in kept}
    return after._replace(**chosen, ended=ended)


def count_trajectories(page: Page, coin: Array, keys: IterationKeys, before: State, metrics: Metrics) -> Metrics:
    """Return the metrics of an iteration with the trajectories that FedPG-BR sampled; none after its loop ended."""
    if page.ratio_window is None and not page.batch_spread:
        return metrics
    small = jnp.int32(page.B) if page.ratio_window is None else jnp.where(before.ended, 0, page.B)
    return metrics._replace(batch=jnp.where(coin, large_batch_size(page, keys), small).astype(jnp.int32))
