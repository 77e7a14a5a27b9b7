"""The compiled programs of a node. All nodes use the same ones, because the number of the node is an argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.algorithms.one_agent import OneAgent, Proposal, one_agent
from jaxbyz.attacks import Attack
from jaxbyz.configuration.building import build_parts
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.federation.frames import Format
from jaxbyz.federation.keys import Federation
from jaxbyz.federation.state_vectors import layout_of
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Rule, check_rule
from jaxbyz.runs.plan import Plan, make_plan
from jaxbyz.sampling.page import Drawn, Sampled


class Programs(NamedTuple):
    """What a node computes.

    Attributes:
        plan: coins, keys and the output iteration, which all nodes derive from the common seed.
        start: the state before the first iteration, the same for all nodes.
        sample: this and the next three as in `OneAgent`, compiled.
        messages: the number of gradients that are sent per iteration.
        rounds: the number of agreement rounds κ after each of them.
        aggregator: the rule for gradients.
        agreement: the rule for parameters, or None.
        attack: what this node plays, built from its name.
        sizes: the numbers of messages that both rules can be applied to. Of K − f or more messages that arrived in
            time, f may still be lies: missing messages do not use up what the rules tolerate.
    """

    plan: Plan
    start: State
    sample: Callable[..., Drawn]
    estimate: Callable[..., Sampled]
    propose: Callable[..., Proposal]
    agree: Callable[..., jax.Array]
    messages: int
    rounds: int
    aggregator: Rule
    agreement: Rule | None
    attack: Attack
    sizes: frozenset[int]


def build_programs(config: Config, attack: str = "none") -> Programs:
    """Return the programs of a node that plays this attack.

    Args:
        config: the configuration of the federation. Its option `attack` says what the simulation would do and does not
            concern the node.
        attack: the name of the attack that this node plays.
    """
    plan = make_plan(replace(config, attack="none"))
    environment, policy, parts = build_parts(replace(config, attack=attack), plan.iterations)
    if parts["agreement"] is not None and parts["agreement"].rule.committee is not None:
        raise UsageError(f"agreement={config.agreement}: committees are not supported by a federation of processes")
    taken = {name: part for name, part in parts.items() if name in inspect.signature(one_agent).parameters}
    agent: OneAgent = one_agent(environment, policy, **taken, interferes=attack != "none")
    places = Places(config.agents, config.agents)  # one agent per place
    start = jax.jit(lambda key: agent.init(plan.algorithm.init(key, places)))(plan.keys[0])
    agreement = parts["agreement"]
    return Programs(
        plan,
        start,
        jax.jit(agent.sample),
        jax.jit(agent.estimate),
        jax.jit(agent.propose),
        jax.jit(agent.agree),
        agent.messages,
        agent.rounds,
        parts["aggregator"],
        None if agreement is None else agreement.rule,
        parts["attack"],
        _sizes([parts["aggregator"], *([] if agreement is None else [agreement.rule])], config, policy.size),
    )


def _sizes(rules: list[Rule], config: Config, D: int) -> frozenset[int]:
    """Return the numbers of messages that all rules can be applied to, between K − f and K.

    A rule on a graph, or one that remembers every sender, needs K rows; missing ones are then NaN.
    """

    def fits(rule: Rule, n: int) -> bool:
        try:
            check_rule(rule, n, D)
        except UsageError:
            return False
        shapes = [jax.eval_shape(lambda size=size: rule.init(size, D)) for size in (n, config.agents)]
        return rule.graph is None and shapes[0] == shapes[1]

    candidates = range(config.agents - config.byzantine, config.agents)
    return frozenset(n for n in candidates if all(fits(rule, n) for rule in rules)) | {config.agents}


def format_of(federation: Federation, programs: Programs) -> Format:
    """Return what the frames of a federation look like."""
    state = programs.start
    form = Format(
        federation.identifier(), federation.config.agents, state.parameters.shape[1], layout_of(state).size,
        programs.messages * (1 + programs.rounds) - 1, programs.plan.iterations,
    )  # fmt: skip
    form.check()
    return form


def warm_up(programs: Programs, index: int) -> None:
    """Run every program once, so that no iteration waits for a compiler."""
    state, coin, zero = programs.start, np.bool_(programs.plan.coins[0]), np.int32(0)
    drawn = programs.sample(state, coin, np.int32(index))
    jax.block_until_ready(programs.estimate(drawn, state.parameters, zero))
    for n in programs.sizes:
        zeros: Any = np.zeros((n, state.parameters.shape[1]), np.float32)
        place = (np.int32(index), zero)
        jax.block_until_ready(programs.propose(state, coin, zero, *place, zeros[0], zeros))
        if programs.rounds:
            jax.block_until_ready(programs.agree(state, zero, zero, *place, zeros))
