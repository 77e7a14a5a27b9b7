"""Messages in some iterations only; in the others, every agent takes a step along its own estimate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.algorithms.base import State
from jaxbyz.algorithms.rounds import Protocol, Received
from jaxbyz.protocol.agreements import Agreed
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.sampling.page import Sampled


def with_local_steps(protocol: Protocol, every: int) -> Protocol:
    """Exchange messages in every `every`-th iteration only; in the others, agents step along their own estimates."""

    def choose(now: Iteration, together: Any, alone: Any) -> Any:
        exchanging = (now.step + 1) % every == 0
        return jax.tree.map(lambda a, b: jnp.where(exchanging, a, b), together, alone)

    def exchange(now: Iteration, state: State, estimates: Sampled) -> tuple[Received, State]:
        received, after = protocol.exchange(now, state, estimates)
        only_oneself: Array = now.places.local(jnp.eye(now.places.agents, dtype=estimates.estimate.dtype))
        own = received._replace(rows=estimates.estimate, shares=only_oneself, sent=False)
        names = ("rules", "channel", "attack_memory")
        kept = {name: choose(now, getattr(after, name), getattr(state, name)) for name in names}
        return choose(now, received, own), after._replace(**kept)

    def agree(now: Iteration, state: State) -> Agreed:
        everyone = now.places.gather(state.parameters)
        return choose(now, protocol.agree(now, state), Agreed(state.parameters, jnp.int32(0), everyone))

    return Protocol(exchange, agree)
