"""DecByzPG as a single agent carries it out: what it computes between the messages that it sends and receives.

`decbyzpg` computes all K agents in one program. Here are the same lines of Algorithm 2 for agent `index`, with the same
functions and random keys, so that K agents in K processes compute the numbers of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxbyz.algorithms.base import (
    IterationKeys,
    State,
    always_large,
    initial_critics,
    iteration_keys,
    next_anchor,
    optimizer_step,
    previous_estimate,
)
from jaxbyz.algorithms.messages import message_keys
from jaxbyz.attacks import Attack
from jaxbyz.environments import Environment, agent_params
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import Agreement, agree_once
from jaxbyz.protocol.communication import receive, round_keys
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Drawn, Page, Sampled, sampler


class Proposal(NamedTuple):
    """What an agent knows after its optimizer step.

    Attributes:
        state: its state with the parameters θ̃_{t+1}, before agreement. The iteration and the critic are those before.
        norm: `[]`, norm of its aggregate.
        shares: `[n]`, share of each sender in its aggregate.
    """

    state: State
    norm: Float[Array, ""]
    shares: Float[Array, " n"]


class OneAgent(NamedTuple):
    """The computations of one agent as pure functions. `State` has one row, and `index` is the number of the agent.

    An iteration sends one gradient, or several if it uses its batch several times; `m` is the number of the message.

    Attributes:
        init: `State -> State`, with the critic that this agent starts with, if agents have critics.
        sample: `(State, coin, index) -> Drawn`, line 5 of Algorithm 2. It contains the critic of the next iteration.
        estimate: `(Drawn, θ [1, D], m) -> Sampled`, line 6.
        propose: `(State, coin, m, index, row, own [D], messages [n, D]) -> Proposal`, lines 7 and 8. `own` is the
            estimate of this agent and `row` its row among the n ≤ K messages that arrived, −1 if it has none.
        agree: `(State, m, i, index, row, messages [n, D]) -> [D]`, round i of line 9.
        messages: the number of gradients that are sent per iteration.
        rounds: the number of agreement rounds κ after each of them.
    """

    init: Callable[[State], State]
    sample: Callable[[State, Array, Array], Drawn]
    estimate: Callable[[Drawn, Array, Array], Sampled]
    propose: Callable[[State, Array, Array, Array, Array, Array, Array], Proposal]
    agree: Callable[[State, Array, Array, Array, Array, Array], Array]
    messages: int
    rounds: int


def one_agent(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule,
    agreement: Agreement | None,
    optimizer: optax.GradientTransformation,
    attack: Attack,
    page: Page,
    p: float,
    period: int | None,
    interferes: bool = False,
) -> OneAgent:
    """Build the computations of one agent of DecByzPG.

    Args:
        environment: the task.
        policy: the policy that is trained.
        agents: the number of agents K.
        aggregator: the rule for gradients.
        agreement: the rule for parameters and its rounds, or None. It must not have a tolerance, because no agent
            knows the honest diameter.
        optimizer: the optax optimizer.
        attack: only its interference with the agent's own environment is used.
        page: batch sizes and estimator.
        p: the probability of a large batch.
        period: a large batch every `period` iterations instead of the coin.
        interferes: whether this agent applies the attack to its own environment.
    """
    K = agents
    sampling = sampler(environment, policy, page, attack.interference(environment.actions), always_large(p, period))

    def keys_of(state: State, m: Array) -> IterationKeys:
        return message_keys(iteration_keys(state, K), m if page.messages > 1 else 0)

    def init(state: State) -> State:
        return state._replace(critic=initial_critics(sampling, state.key, Places(K, K)))

    def sample(state: State, coin: Array, index: Array) -> Drawn:
        everyone = (iteration_keys(state, K).agents, agent_params(environment, state.key, K))
        key, own = jax.tree.map(lambda leaf: leaf[index][None], everyone)
        who = (key, jnp.full((1,), interferes), own, state.critic)
        return sampling.either(coin, state.parameters, state.anchor, previous_estimate(page, state), *who)

    def propose(
        state: State, coin: Array, m: Array, index: Array, row: Array, own: Array, messages: Array
    ) -> Proposal:  # fmt: skip
        keys = round_keys(keys_of(state, m).gradients)
        rule_state = jax.tree.map(lambda leaf: leaf[0], state.rules)
        v = receive(keys, aggregator, rule_state, messages, own, index, row)
        theta_tilde, optimizer_state = optimizer_step(optimizer, v.rows[None], state.optimizer, state.parameters)
        estimate = (jnp.where(row < 0, v.rows, own) if page.previous == "own" else v.rows)[None]
        anchor, estimate = next_anchor(page, coin, state, theta_tilde, estimate)
        following = state._replace(
            parameters=theta_tilde, anchor=anchor, estimate=estimate, optimizer=optimizer_state,
            rules=jax.tree.map(lambda leaf: leaf[None], v.state),
        )  # fmt: skip
        return Proposal(following, jnp.linalg.norm(v.rows), v.shares)

    def agree(state: State, m: Array, i: Array, index: Array, row: Array, messages: Array) -> Array:
        assert agreement is not None
        return agree_once(keys_of(state, m).parameters, i, agreement.rule, messages, index, row)

    rounds = 0 if agreement is None else agreement.rounds
    return OneAgent(init, sample, sampling.estimate, propose, agree, page.messages, rounds)
