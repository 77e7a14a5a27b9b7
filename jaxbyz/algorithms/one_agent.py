"""DecByzPG as a single agent carries it out: what it computes between the messages that it sends and receives.

`decbyzpg` computes all K agents in one program. Here are the same lines of Algorithm 2 for agent `index`, with the same
functions and random keys, so that K agents in K processes compute the numbers of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxbyz.algorithms.base import State, always_large, ascend, iteration_keys, next_anchor, previous_estimate
from jaxbyz.attacks import Attack
from jaxbyz.environments import Environment, agent_params
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import Agreement, agree_once
from jaxbyz.protocol.communication import receive, round_keys
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Page, Sampled, sampler


class Proposal(NamedTuple):
    """What an agent knows after its optimizer step.

    Attributes:
        state: its next state; the parameters are θ̃_{t+1}, before agreement.
        norm: `[]`, norm of its aggregate.
        shares: `[n]`, share of each sender in its aggregate.
    """

    state: State
    norm: Float[Array, ""]
    shares: Float[Array, " n"]


class OneAgent(NamedTuple):
    """The computations of one agent as pure functions. `State` has one row, and `index` is the number of the agent.

    Attributes:
        sample: `(State, coin, index) -> Sampled`, lines 5 and 6 of Algorithm 2.
        propose: `(State, coin, index, row, own [D], messages [n, D]) -> Proposal`, lines 7 and 8. `own` is the
            estimate of this agent and `row` its row among the n ≤ K messages that arrived, −1 if it has none.
        agree: `(State, i, index, row, messages [n, D]) -> [D]`, round i of line 9. `State` is that before `propose`.
        rounds: the number of agreement rounds κ.
    """

    sample: Callable[[State, Array, Array], Sampled]
    propose: Callable[[State, Array, Array, Array, Array, Array], Proposal]
    agree: Callable[[State, Array, Array, Array, Array], Array]
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
    lies_at_home: bool = False,
    **_: Any,
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
        lies_at_home: whether this agent applies the attack to its own environment.

    Raises:
        UsageError: if agents have critics or use a batch several times.
    """
    if page.uses_critic or page.messages > 1:
        raise UsageError("baseline=critic, epochs and minibatches: not supported by a federation of processes")
    K = agents
    sampling = sampler(environment, policy, page, attack.interference(environment.actions), always_large(p, period))

    def sample(state: State, coin: Array, index: Array) -> Sampled:
        everyone = (iteration_keys(state, K).agents, agent_params(environment, state.key, K))
        key, own = jax.tree.map(lambda leaf: leaf[index][None], everyone)
        who = (key, jnp.full((1,), lies_at_home), own)
        drawn = sampling.either(coin, state.parameters, state.anchor, previous_estimate(page, state), *who)
        return sampling.estimate(drawn, state.parameters, 0)

    def propose(state: State, coin: Array, index: Array, row: Array, own: Array, messages: Array) -> Proposal:
        keys = round_keys(iteration_keys(state, K).gradients)
        rule_state = jax.tree.map(lambda leaf: leaf[0], state.rules)
        v = receive(keys, aggregator, rule_state, messages, own, index, row)
        theta_tilde, optimizer_state = ascend(optimizer, v.rows[None], state.optimizer, state.parameters)
        estimate = (jnp.where(row < 0, v.rows, own) if page.previous == "own" else v.rows)[None]
        anchor, estimate = next_anchor(page, coin, state, theta_tilde, estimate)
        following = state._replace(
            step=state.step + 1, parameters=theta_tilde, anchor=anchor, estimate=estimate, optimizer=optimizer_state,
            rules=jax.tree.map(lambda leaf: leaf[None], v.state),
        )  # fmt: skip
        return Proposal(following, jnp.linalg.norm(v.rows), v.shares)

    def agree(state: State, i: Array, index: Array, row: Array, messages: Array) -> Array:
        assert agreement is not None
        return agree_once(iteration_keys(state, K).parameters, i, agreement.rule, messages, index, row)

    return OneAgent(sample, propose, agree, 0 if agreement is None else agreement.rounds)
