"""The compiled programs of a node. All nodes use the same ones, because the number of the node is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.algorithms.one_agent import OneAgent, Proposal, one_agent
from jaxbyz.attacks import Attack
from jaxbyz.experiments.building import build_parts
from jaxbyz.experiments.config import Config
from jaxbyz.experiments.plan import Plan, make_plan
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Sampled


class Programs(NamedTuple):
    """What a node computes.

    Attributes:
        plan: coins, keys and the output iteration, which all nodes derive from the common seed.
        start: the state before the first iteration, the same for all nodes.
        sample: as in `OneAgent`, compiled.
        propose: as in `OneAgent`, compiled.
        agree: as in `OneAgent`, compiled.
        rounds: the number of agreement rounds κ.
        aggregator: the rule for gradients.
        agreement: the rule for parameters, or None.
        attack: what this node plays, built from its name.
    """

    plan: Plan
    start: State
    sample: Callable[..., Sampled]
    propose: Callable[..., Proposal]
    agree: Callable[..., jax.Array]
    rounds: int
    aggregator: Rule
    agreement: Rule | None
    attack: Attack


def build_programs(config: Config, attack: str = "none") -> Programs:
    """Return the programs of a node that plays this attack.

    Args:
        config: the configuration of the federation. Its option `attack` says what the simulation would do and does not
            concern the node.
        attack: the name of the attack that this node plays.
    """
    plan = make_plan(replace(config, attack="none"))
    environment, policy, parts = build_parts(replace(config, attack=attack), plan.iterations)
    agent: OneAgent = one_agent(environment, policy, **parts, lies_at_home=attack != "none")
    start = plan.algorithm.init(plan.keys[0], Places(config.agents, config.agents))
    agreement = parts["agreement"]
    return Programs(
        plan,
        jax.tree.map(jnp.asarray, start),
        jax.jit(agent.sample),
        jax.jit(agent.propose),
        jax.jit(agent.agree),
        agent.rounds,
        parts["aggregator"],
        None if agreement is None else agreement.rule,
        parts["attack"],
    )


def warm_up(programs: Programs, index: int) -> None:
    """Run every program once, so that no iteration waits for a compiler."""
    state, coins = programs.start, programs.plan.coins
    K, D = programs.plan.algorithm.agents, state.parameters.shape[1]
    zeros: Any = np.zeros((K, D), np.float32)
    jax.block_until_ready(programs.sample(state, np.bool_(coins[0]), np.int32(index)))
    proposal = programs.propose(state, np.bool_(coins[0]), np.int32(index), zeros[0], zeros)
    if programs.rounds:
        jax.block_until_ready(programs.agree(state, np.int32(0), np.int32(index), zeros))
    jax.block_until_ready(proposal)
