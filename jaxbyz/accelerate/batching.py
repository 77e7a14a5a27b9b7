"""Batching rules and group loops: how leading axes are mapped so that programs stay fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxbyz.accelerate.platform import interpret_kernels, on_cpu, plain, traced_for

# Episodes that a CPU handles at a time. More do not fit into the cache; with fewer, the fixed cost per step dominates.
GROUP_LANES = 1024


def batch_all(size: int, batched: Any, tree: Any) -> Any:
    """Broadcast the leaves that are not mapped over, so that all leaves have the mapped leading axis.

    Args:
        size: the length of the mapped axis.
        batched: a tree of booleans of the same structure, as `jax.custom_batching` passes it to a batching rule.
        tree: the arguments of the batching rule.
    """

    def leaf(x: Array | int, is_batched: bool) -> Array | int:
        return x if is_batched else jnp.broadcast_to(x, (size, *jnp.shape(x)))

    return jax.tree.map(leaf, tree, batched)


def repeat_last(count: int, places: int) -> np.ndarray:
    """Return the indices 0, …, count − 1, followed by copies of the last one up to length `places`."""
    return np.minimum(np.arange(places), count - 1)


def fold_mapped_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `vmap` extend the first axis instead of adding a new one: a call on `[S, A, …]` becomes one on `[S·A, …]`.

    Every argument and result of `function` has the same first axis, of agents or lanes, whose members do not depend on
    each other. Plain `vmap` of a while loop would run until every member has ended and copy everything it carries under
    a select.

    The function is traced once per platform and shape. Without that, JAX would trace it again wherever it is mapped: a
    program of LunarLander would trace the physics 13 times instead of 3.
    """

    @cache
    def traced_once(platform: str, interpreted: bool) -> Callable[..., Any]:
        return jax.jit(lambda *arguments: function(*arguments))  # `jit` finds earlier traces by this new function

    @jax.custom_batching.custom_vmap
    def folded(*arguments: Any) -> Any:
        return traced_once(traced_for(), interpret_kernels())(*arguments)

    @folded.def_vmap
    def rule(size: int, batched: list[bool], *arguments: Any) -> tuple[Any, Any]:
        everyone = batch_all(size, tuple(batched), arguments)
        result = folded(*jax.tree.map(lambda x: x.reshape(size * x.shape[1], *x.shape[2:]), everyone))
        result = jax.tree.map(lambda x: x.reshape(size, x.shape[0] // size, *x.shape[1:]), result)
        return result, jax.tree.map(lambda _: True, result)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments) if plain() else folded(*arguments)

    return call


def map_groups(function: Callable[..., Any], episodes: int) -> Callable[..., Any]:
    """On a CPU, call `function` for groups of agents in turn: a group ends with its own longest episode.

    Every argument and result of `function` has the agent axis first, and agents do not depend on each other.

    Args:
        function: what to compute for all agents.
        episodes: the number of episodes per agent, which decides how many agents form a group.
    """

    def grouped(*arguments: Any) -> Any:
        A = jax.tree.leaves(arguments)[0].shape[0]
        groups = min(A, max(1, round(A * episodes / GROUP_LANES))) if on_cpu() else 1
        if groups == 1:
            return function(*arguments)
        per_group = -(-A // groups)
        members = repeat_last(A, groups * per_group).reshape(groups, per_group)
        results = jax.lax.map(lambda some: function(*jax.tree.map(lambda x: x[some], arguments)), members)
        return jax.tree.map(lambda x: x.reshape(groups * per_group, *x.shape[2:])[:A], results)

    return grouped


def map_in_batches(function: Callable[[Any], Any], inputs: Any, at_once: int) -> Any:
    """Map `function` over the leading axis of `inputs`, at most `at_once` members at a time.

    All batches have the same size, and the last one is filled up with copies of the last member, so that the program of
    a batch is traced and compiled once. `lax.map` with a batch size traces the remainder a second time.
    """
    count = jax.tree.leaves(inputs)[0].shape[0]
    batches = -(-count // at_once)
    if batches <= 1:
        return jax.vmap(function)(inputs)
    size = -(-count // batches)
    members = repeat_last(count, batches * size).reshape(batches, size)
    results = jax.lax.map(lambda some: jax.vmap(function)(jax.tree.map(lambda x: x[some], inputs)), members)
    return jax.tree.map(lambda x: x.reshape(batches * size, *x.shape[2:])[:count], results)


def cond_on_coin(coin: Array, if_true: Callable[..., Any], if_false: Callable[..., Any], *operands: Any) -> Any:
    """Choose a branch by a coin, as `lax.cond` does, and still run a single branch under `vmap` if the coin is shared.

    The branches may use constants of their own, such as an environment's tables, but must take every traced value as
    an operand. If the coin itself is mapped over, both branches run and the results are selected.
    """

    @jax.custom_batching.custom_vmap
    def choose(coin: Array, *operands: Any) -> Any:
        return jax.lax.cond(coin, if_true, if_false, *operands)

    @choose.def_vmap
    def rule(size: int, batched: list[Any], coin: Array, *operands: Any) -> tuple[Any, Any]:
        operands = batch_all(size, tuple(batched[1:]), operands)
        if batched[0]:
            both = jax.vmap(if_true)(*operands), jax.vmap(if_false)(*operands)
            result = jax.tree.map(lambda a, b: jnp.where(coin.reshape(-1, *[1] * (a.ndim - 1)), a, b), *both)
        else:
            result = cond_on_coin(coin, jax.vmap(if_true), jax.vmap(if_false), *operands)
        return result, jax.tree.map(lambda _: True, result)

    return jax.lax.cond(coin, if_true, if_false, *operands) if plain() else choose(coin, *operands)
