"""The interfaces of policies and networks.

Arrays are feature-first: observations `[O, L]` and distributions `[P, L]` have their lanes (episodes or time steps) on
the last axis. Every layer is then one matrix product `[out, in] @ [in, L]`, and activations run along contiguous
memory, which makes the paper's narrow networks faster on a CPU than lanes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments import ActionSpace


class Recurrence(NamedTuple):
    """How a policy with a memory goes through episodes.

    What it remembers of an episode is its carry, a tree of arrays `[L, …]`: one row per episode, as in flax.

    Attributes:
        start: `lanes -> carry`, at the start of episodes.
        unroll: `(tree, carry, observations [O, C, L]) -> (carry, distributions [P, C, L])` for C consecutive steps. The
            distribution of a step depends on the carry before it and on its own observation.
    """

    start: Callable[[int], Any]
    unroll: Callable[[Any, Any, Float[Array, "O C L"]], tuple[Any, Float[Array, "P C L"]]]


class Policy(NamedTuple):
    """Pure functions of one agent's policy over L lanes.

    Attributes:
        size: the number of parameters D.
        init: `key -> [D]`, initial parameters.
        unravel: `[D] -> tree`, the form of the parameters that `apply` takes. Call it once, outside of loops.
        apply: `(tree, observations [O, L]) -> [P, L]`, the distribution of the action in every lane: log-probabilities
            if actions are discrete, otherwise means followed by logarithms of standard deviations. A policy with a
            memory has `recurrence` instead.
        noise: `(key, steps, lanes) -> [steps, n, lanes]`, the random numbers that `sample` needs.
        sample: `(distribution [P, L], noise [n, L]) -> actions`, `[L]` if discrete, otherwise `[n, L]`.
        log_prob: `(distribution [P, L], actions) -> [L]`.
        entropy: `distribution [P, L] -> [L]`, for runs with an entropy bonus; None if it is not known.
        mode: `distribution [P, L] -> actions`, the most likely ones; None if they are those of the largest
            log-probability, or those of the noise zero if actions are continuous.
        follow: `(parameters [D], mean [O], variance [O]) -> [D]`, which moves the scales of observations among the
            parameters towards new ones; None if there are none.
        untrained: the number of parameters at the end that are such scales.
        recurrence: how it remembers what it has seen in an episode; None if it has no memory.
    """

    size: int
    init: Callable[[PRNGKeyArray], Float[Array, " D"]]
    unravel: Callable[[Float[Array, " D"]], Any]
    apply: Callable[[Any, Float[Array, "O L"]], Float[Array, "P L"]]
    noise: Callable[[PRNGKeyArray, int, int], Float[Array, "steps n lanes"]]
    sample: Callable[[Float[Array, "P L"], Float[Array, "n L"]], Array]
    log_prob: Callable[[Float[Array, "P L"], Array], Float[Array, " L"]]
    entropy: Callable[[Float[Array, "P L"]], Float[Array, " L"]] | None = None
    mode: Callable[[Float[Array, "P L"]], Array] | None = None
    follow: Callable[[Float[Array, " D"], Float[Array, " O"], Float[Array, " O"]], Float[Array, " D"]] | None = None
    untrained: int = 0
    recurrence: Recurrence | None = None


class Network(NamedTuple):
    """A network from which `distributions` builds a policy.

    It has one output per action dimension, or two if standard deviations depend on the state.

    Attributes:
        init: `key -> tree`, initial parameters.
        apply: `(tree, observations [O, L]) -> [n, L]`.
    """

    init: Callable[[PRNGKeyArray], Any]
    apply: Callable[[Any, Float[Array, "O L"]], Float[Array, "n L"]]


def initial_carry(policy: Policy, lanes: int) -> Any:
    """Return what a policy remembers at the start of episodes; nothing, `()`, without a memory."""
    return () if policy.recurrence is None else policy.recurrence.start(lanes)


def respond(policy: Policy, tree: Any, carry: Any, observations: Float[Array, "O L"]) -> tuple[Any, Array]:
    """Take one step: return what the policy then remembers, and the distribution `[P, L]` of the actions."""
    if policy.recurrence is None:
        return carry, policy.apply(tree, observations)
    carry, distributions = policy.recurrence.unroll(tree, carry, observations[:, None])
    return carry, distributions[:, 0]


def most_likely(policy: Policy, distribution: Float[Array, "P L"], actions: ActionSpace) -> Array:
    """Return the most likely actions: `[L]` if discrete, otherwise `[n, L]`."""
    if policy.mode is not None:
        return policy.mode(distribution)
    if actions.discrete:
        return jnp.argmax(distribution, axis=0).astype(jnp.int32)
    return policy.sample(distribution, jnp.zeros((actions.n, distribution.shape[1])))
