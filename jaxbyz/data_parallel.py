"""Robust rules in data-parallel training: in place of `jax.lax.pmean`, and before an optimizer of optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError, check_value
from jaxbyz.rules import Rule, RuleState
from jaxbyz.trees import apply_rule, count_senders


def robust_mean(
    rule: Rule | str | Callable[..., Array],
    axis_name: Any,
    *,
    byzantine: int = 0,
    unsafe: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Return a function that replaces `jax.lax.pmean(tree, axis_name)` by a rule.

    The function `(tree, key=None) -> tree` can be called wherever an axis has this name: inside `jax.shard_map`,
    `jax.pmap` and `jax.vmap`. Every shard gathers the trees of all K shards and applies the rule, so that all hold the
    same result, unless the rule depends on the receiver (`"monna"`). A rule with memory starts from its initial state.

    Args:
        rule: as in `aggregate`.
        axis_name: the name of the axis, or several names.
        byzantine: how many shards the rule defends against.
        unsafe: allow more Byzantine shards than a named rule tolerates.
        **options: options of a named rule.

    Raises:
        UsageError: when the function is called, if the rule draws random numbers and gets no key, or if the tree does
            not differ between shards.
    """

    def mean(tree: Any, key: PRNGKeyArray | None = None) -> Any:
        K, index = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
        built = make_rule(rule, K, byzantine, unsafe=unsafe, **options)
        if built.random and key is None:
            raise UsageError(f"key: must be given to the function, because the rule {rule} draws random numbers")
        checked = _varies(index)
        if checked and not all(_varies(leaf) for leaf in jax.tree.leaves(tree)):
            raise UsageError(
                f"robust_mean: the tree is the same on all shards of axis {axis_name}, because JAX sums gradients of "
                "replicated parameters by itself: give check_vma=False to jax.shard_map, or call jax.lax.pcast on the "
                "parameters before jax.grad"
            )
        gathered = jax.tree.map(lambda leaf: _gather(leaf, axis_name, checked), tree)
        key = jax.random.key(0) if key is None else key
        return apply_rule(built, key, gathered, index if built.personal else 0)[0]

    return mean


def _varies(array: Array) -> bool:
    """Return whether `shard_map` knows that an array differs between shards; it does not if `check_vma=False`."""
    kind = jax.typeof(array)
    return bool(kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying)


def _gather(leaf: Array, axis_name: Any, checked: bool) -> Array:
    """Return the leaves of all shards, `[K, …]`, which `shard_map` then knows to be the same on all of them."""
    if not checked:
        return jax.lax.all_gather(leaf, axis_name)
    if hasattr(jax.lax, "all_gather_invariant"):  # JAX 0.8
        return jax.lax.all_gather_invariant(leaf, axis_name)
    return jax.lax.all_gather(leaf, axis_name, to="invarying")


class AggregationState(NamedTuple):
    """What `aggregate_gradients` remembers.

    Attributes:
        step: `[]`, the number of updates so far.
        rule: the state of the rule.
    """

    step: Int[Array, ""]
    rule: RuleState


def aggregate_gradients(
    rule: Rule | str | Callable[..., Array],
    agents: int,
    *,
    byzantine: int = 0,
    unsafe: bool = False,
    seed: int = 0,
    **options: Any,
) -> optax.GradientTransformation:
    """Build the optax transformation that turns the gradients of K agents, leaves `[K, …]`, into one, leaves `[…]`.

    Chain it before an optimizer: `optax.chain(aggregate_gradients("rfa", 8, byzantine=2), optax.adam(1e-3))`. A rule
    with memory keeps it in the state of the optimizer.

    Args:
        rule: as in `aggregate`.
        agents: the number of agents K.
        byzantine: how many agents the rule defends against.
        unsafe: allow more Byzantine agents than a named rule tolerates.
        seed: of the random numbers, for rules that draw them.
        **options: options of a named rule.

    Raises:
        UsageError: if the rule does not tolerate so many Byzantine agents; at an update, if the gradients do not have
            the leading axis K.
    """
    check_value("byzantine", byzantine, 0 <= byzantine < agents, f"from 0 to {agents - 1}")
    built = make_rule(rule, agents, byzantine, unsafe=unsafe, **options)

    def init(parameters: Any) -> AggregationState:
        return AggregationState(
            jnp.int32(0), built.init(agents, sum(leaf.size for leaf in jax.tree.leaves(parameters)))
        )

    def update(gradients: Any, state: AggregationState, parameters: Any = None) -> tuple[Any, AggregationState]:
        if (given := count_senders("gradients", gradients)) != agents:
            raise UsageError(
                f"agents={agents}: the gradients have a leading axis of {given}; it must be that of the agents"
            )
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        result, memory = apply_rule(built, key, gradients, 0, state.rule)
        return result, AggregationState(state.step + 1, memory)

    return optax.GradientTransformation(init, update)
