"""What is known throughout one iteration: its number, its random keys, who is Byzantine, and where agents live."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.protocol.placement import Places

DELIVERY_STREAM = 2**32 - 1  # `split` uses the streams 0 to K + 2 of the same key


class IterationKeys(NamedTuple):
    """Random keys of one iteration: `[K]` for sampling, one for each kind of message, schedule and delivery."""

    agents: PRNGKeyArray
    gradients: PRNGKeyArray
    parameters: PRNGKeyArray
    schedule: PRNGKeyArray
    delivery: PRNGKeyArray


class Iteration(NamedTuple):
    """One iteration, or one of the messages of an iteration that uses its batch several times.

    Attributes:
        step: `[]`, the number t of the iteration.
        coin: `[]`, c_t: whether the batch is large.
        keys: random keys.
        mask: `[K]`, True for Byzantine agents.
        places: which agents are computed on this device.
        memory: what the attack remembers from earlier messages.
        number: `[]`, the number of the message; the constant 0 if there is only one.
        present: `[m]`, the agents that take part, in increasing order; None if all do.
    """

    step: Int[Array, ""]
    coin: Bool[Array, ""]
    keys: IterationKeys
    mask: Bool[Array, " K"]
    places: Places
    memory: Any = ()
    number: Int[Array, ""] | int = 0
    present: Int[Array, " m"] | None = None

    @property
    def takes_part(self) -> Bool[Array, " K"]:
        """`[K]`, whether each agent takes part."""
        if self.present is None:
            return jnp.ones_like(self.mask)
        return jnp.zeros_like(self.mask).at[self.present].set(True)

    def message(self, index: Int[Array, ""] | int, memory: Any) -> Iteration:
        """Return what is known during message number `index`; a constant index means that it is the only one."""
        return self._replace(keys=message_keys(self.keys, index), memory=memory, number=index)


def iteration_keys(run_key: PRNGKeyArray, step: Int[Array, ""], agents: int) -> IterationKeys:
    """Derive the keys of iteration t from the key of the run."""
    key = jax.random.fold_in(run_key, step)
    keys = jax.random.split(key, agents + 3)
    delivery = jax.random.fold_in(key, DELIVERY_STREAM)
    return IterationKeys(keys[:agents], keys[agents], keys[agents + 1], keys[agents + 2], delivery)


def message_keys(keys: IterationKeys, index: Int[Array, ""] | int) -> IterationKeys:
    """Return the keys of message number `index`; the only message has a constant index and keeps these keys."""
    if isinstance(index, int):
        return keys
    names = ("gradients", "parameters", "delivery")
    return keys._replace(**{name: jax.random.fold_in(getattr(keys, name), index) for name in names})
