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


class Policy(NamedTuple):
    """Pure functions of one agent's policy over L lanes.

    Attributes:
        size: the number of parameters D.
        init: `key -> [D]`, initial parameters.
        unravel: `[D] -> tree`, the form of the parameters that `apply` takes. Call it once, outside of loops.
        apply: `(tree, observations [O, L]) -> [P, L]`, the distribution of the action in every lane: log-probabilities
            if actions are discrete, otherwise means followed by logarithms of standard deviations.
        noise: `(key, steps, lanes) -> [steps, n, lanes]`, the random numbers that `sample` needs.
        sample: `(distribution [P, L], noise [n, L]) -> actions`, `[L]` if discrete, otherwise `[n, L]`.
        log_prob: `(distribution [P, L], actions) -> [L]`.
        entropy: `distribution [P, L] -> [L]`, for runs with an entropy bonus; None if it is not known.
        mode: `distribution [P, L] -> actions`, the most likely ones; None if they are those of the largest
            log-probability, or those of the noise zero if actions are continuous.
        follow: `(parameters [D], mean [O], variance [O]) -> [D]`, which moves the scales of observations among the
            parameters towards new ones; None if there are none.
        untrained: the number of parameters at the end that are such scales.
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


class Network(NamedTuple):
    """A network from which `distributions` builds a policy.

    It has one output per action dimension, or two if standard deviations depend on the state.

    Attributes:
        init: `key -> tree`, initial parameters.
        apply: `(tree, observations [O, L]) -> [n, L]`.
    """

    init: Callable[[PRNGKeyArray], Any]
    apply: Callable[[Any, Float[Array, "O L"]], Float[Array, "n L"]]


def most_likely(policy: Policy, distribution: Float[Array, "P L"], actions: ActionSpace) -> Array:
    """Return the most likely actions: `[L]` if discrete, otherwise `[n, L]`."""
    if policy.mode is not None:
        return policy.mode(distribution)
    if actions.discrete:
        return jnp.argmax(distribution, axis=0).astype(jnp.int32)
    return policy.sample(distribution, jnp.zeros((actions.n, distribution.shape[1])))
