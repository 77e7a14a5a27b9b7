"""The messages of one iteration. An iteration that uses its batch several times sends one message for each use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxbyz.algorithms.base import IterationKeys, State
from jaxbyz.algorithms.metrics import StepResults
from jaxbyz.sampling.page import Sampled

# (state, number of the message) -> (next state, what was sampled by all K agents, what the message did)
Round = Callable[[State, Int[Array, ""] | int], tuple[State, Sampled, StepResults]]


def message_keys(keys: IterationKeys, index: Int[Array, ""] | int) -> IterationKeys:
    """Return the keys of one message. The only message of an iteration uses the keys of the iteration."""
    if isinstance(index, int):
        return keys
    gradients, parameters = (jax.random.fold_in(key, index) for key in (keys.gradients, keys.parameters))
    return keys._replace(gradients=gradients, parameters=parameters)


def repeat(messages: int, one_message: Round, state: State) -> tuple[State, Sampled, StepResults]:
    """Send `messages` messages in turn; the program of one message is compiled once.

    Rounds and bytes are summed over the messages, norms and shares are averaged, and a proposal is finite if it was so
    every time.

    Args:
        messages: how many messages there are.
        one_message: the lines of the algorithm that follow the sampling. Its second argument is the number of the
            message, which is the constant 0 if there is only one.
        state: the state after sampling.
    """
    if messages == 1:
        return one_message(state, 0)

    def following(index: Array, carry: tuple[State, Sampled, StepResults]) -> tuple[State, Sampled, StepResults]:
        state, sampled, results = one_message(carry[0], index)
        return state, sampled, _added(carry[2], results)

    shapes: Any = jax.eval_shape(one_message, state, jnp.int32(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[1:])
    start = (state, zeros[0], zeros[1]._replace(finite_proposals=jnp.ones_like(zeros[1].finite_proposals)))
    state, sampled, total = jax.lax.fori_loop(0, messages, following, start)
    average = total._replace(aggregate_norms=total.aggregate_norms / messages, shares=total.shares / messages)
    return state, sampled, average


def _added(total: StepResults, new: StepResults) -> StepResults:
    """Return the results of the messages so far and of a new one."""
    return StepResults(
        aggregate_norms=total.aggregate_norms + new.aggregate_norms,
        shares=total.shares + new.shares,
        finite_proposals=total.finite_proposals & new.finite_proposals,
        parameters=new.parameters,
        rounds=total.rounds + new.rounds,
        bytes_sent=total.bytes_sent + new.bytes_sent,
        bytes_moved=total.bytes_moved + new.bytes_moved,
        takes_part=new.takes_part,
    )
