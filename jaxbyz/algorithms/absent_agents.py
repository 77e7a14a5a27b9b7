"""Agents that do not take part in an iteration keep their state; `jaxbyz.protocol.participation` draws them."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.algorithms.agents import Agents
from jaxbyz.algorithms.base import State
from jaxbyz.algorithms.rounds import Protocol, Received
from jaxbyz.protocol.agreements import Agreed
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.participation import only_present
from jaxbyz.sampling.page import Drawn, Sampled


def _keep(now: Iteration, after: State, before: State, *names: str) -> State:
    """Return the state after a line of the algorithm, in which absent agents have what they had before."""
    return after._replace(**{name: only_present(now, getattr(after, name), getattr(before, name)) for name in names})


def with_absent_agents(agents: Agents) -> Agents:
    """Let absent agents keep what they learnt for themselves, and take no step."""

    def sample(now: Iteration, state: State) -> tuple[Drawn, State]:
        drawn, after = agents.sample(now, state)
        return drawn, _keep(now, after, state, "private")

    def optimise(now: Iteration, state: State, v: Array, own: Array) -> State:
        after = agents.optimise(now, state, v, own)
        return _keep(now, after, state, "parameters", "optimizer", "anchor", "estimate")

    return agents._replace(sample=sample, optimise=optimise)


def with_absent_receivers(protocol: Protocol) -> Protocol:
    """Let absent agents keep the memory of their rule and their parameters while the others exchange messages."""

    def exchange(now: Iteration, state: State, estimates: Sampled) -> tuple[Received, State]:
        received, after = protocol.exchange(now, state, estimates)
        return received, _keep(now, after, state, "rules")

    def agree(now: Iteration, state: State) -> Agreed:
        agreed, everyone = protocol.agree(now, state), now.places.gather(state.parameters)
        return agreed._replace(
            parameters=only_present(now, agreed.parameters, state.parameters),
            everyone=jnp.where(now.takes_part[:, None], agreed.everyone, everyone),
        )

    return Protocol(exchange, agree)
