"""One agent's part of an iteration, written once: `decbyzpg` maps it over K agents, a process runs it for itself.

The functions act on the rows of any number of agents, whose numbers `Iteration.places` selects. The state of a server
has one row, and a server uses `optimise` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.algorithms.base import State
from jaxbyz.algorithms.settings import Settings
from jaxbyz.attacks import Attack
from jaxbyz.environments import Environment, agent_params
from jaxbyz.protocol.exchange import copies
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.sampling.page import Drawn, Sampled, Sampler
from jaxbyz.sampling.scoring import SamplingInputs

PRIVATE_STREAM = 2**32 - 1  # `fold_in(run key, t)` is the key of iteration t, and no iteration has this number


class Agents(NamedTuple):
    """What agents compute between messages. `State` has one row per agent.

    Attributes:
        sample: `(iteration, State) -> (Drawn, State)`, line 5 of Algorithm 2: a batch, and what agents learnt from it
            for themselves.
        estimate: `(iteration, Drawn, θ [A, D]) -> Sampled`, line 6: the estimates that the messages of the agents hold.
        optimise: `(iteration, State, v [A, D], own estimates [A, D]) -> State`, line 8: a step along the aggregates v.
    """

    sample: Callable[[Iteration, State], tuple[Drawn, State]]
    estimate: Callable[[Iteration, Drawn, Float[Array, "A D"]], Sampled]
    optimise: Callable[[Iteration, State, Float[Array, "A D"], Float[Array, "A D"]], State]


def make_agents(environment: Environment, settings: Settings, attack: Attack, sampling: Sampler) -> Agents:
    """Build what agents compute between messages; the attack says which of them interfere in their environments."""
    optimizer = make_optimizer(settings)

    def sample(now: Iteration, state: State) -> tuple[Drawn, State]:
        drawn = sampling.either(now.coin, sampling_inputs(environment, settings, attack, now, state))
        return drawn, state._replace(private=drawn.private)

    def estimate(now: Iteration, drawn: Drawn, theta: Array) -> Sampled:
        return sampling.estimate(drawn, theta, now.number)

    def optimise(now: Iteration, state: State, v: Array, own: Array) -> State:
        updates, optimizer_state = jax.vmap(optimizer.update)(-v, state.optimizer, state.parameters)  # uphill
        proposed = optax.apply_updates(state.parameters, updates)
        estimate = own if settings.previous == "own" else v
        anchor, estimate = next_anchor(settings, now.coin, state, proposed, estimate)
        return state._replace(parameters=proposed, optimizer=optimizer_state, anchor=anchor, estimate=estimate)

    return Agents(sample, estimate, optimise)


def sampling_inputs(
    environment: Environment, settings: Settings, attack: Attack, now: Iteration, state: State
) -> SamplingInputs:
    """Return what the agents of a state sample with in this iteration."""
    own = agent_params(environment, state.key, settings.agents)
    everyone = (now.keys.agents, attack.interferers(now.memory, now.mask), own)
    keys, interferes, own = now.places.local(everyone)
    previous = previous_estimate(settings, state)
    return SamplingInputs(state.parameters, state.anchor, previous, keys, interferes, own, state.private)


def make_optimizer(settings: Settings, iterations: int | Array | None = None) -> optax.GradientTransformation:
    """Return the optimizer of the settings.

    If `eta_end` is set, the step size of a named optimizer decays to it linearly over `iterations`, and stays there.
    Without `iterations` it stays at `eta`, even if `eta_end` is set.
    """
    if not isinstance(settings.optimizer, str):
        return settings.optimizer
    eta, eta_end = settings.eta, settings.eta_end

    def decaying(count: Array) -> Any:
        if iterations is None:
            return eta
        assert eta_end is not None
        return eta_end + (eta - eta_end) * (1.0 - jnp.minimum(count / (iterations * settings.messages), 1.0))

    return getattr(optax, settings.optimizer)(eta if eta_end is None else decaying)


def initial_state(key: PRNGKeyArray, parameters: Float[Array, "R D"], settings: Settings, **others: Any) -> State:
    """Return the state before the first iteration of R agents that hold `parameters`; `others` are its other fields."""
    optimizer = jax.vmap(make_optimizer(settings).init)(parameters)
    return State(jnp.int32(0), key, parameters, parameters, jnp.zeros_like(parameters), optimizer, **others)


def initial_private(sampling: Sampler, key: PRNGKeyArray, agents: int) -> Any:
    """Return what agents keep for themselves at first, from the key of the run: they all start alike."""
    return copies(sampling.init(jax.random.fold_in(key, PRIVATE_STREAM)), agents)


def run_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """Return the key in the `State` of the run that starts from this key; the other half draws θ_0."""
    return jax.random.split(key)[0]


def previous_estimate(settings: Settings, state: State) -> Float[Array, "A D"]:
    """Return v_{t−1} as `PageSwitch.previous` defines it."""
    if settings.previous == "realized":
        return (state.parameters - state.anchor) / settings.eta
    return state.estimate


def next_anchor(
    settings: Settings, coin: Array, state: State, proposed: Float[Array, "A D"], estimate: Float[Array, "A D"]
) -> tuple[Float[Array, "A D"], Float[Array, "A D"]]:
    """Return the parameters and the estimate that the next small batch is compared with.

    Args:
        settings: `anchor` selects the parameters.
        coin: whether this iteration has a large batch.
        state: the state before the step.
        proposed: the parameters after the step, before agreement.
        estimate: the estimate of this iteration.
    """
    if settings.anchor == "proposed":
        return proposed, estimate
    if settings.anchor == "previous":
        return state.parameters, estimate
    return jnp.where(coin, state.parameters, state.anchor), jnp.where(coin, estimate, state.estimate)
