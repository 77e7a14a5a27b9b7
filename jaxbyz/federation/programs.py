"""The compiled programs of a node. All nodes use the same ones, because the number of the node is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.algorithms import State
from jaxbyz.algorithms.agents import initial_private
from jaxbyz.algorithms.decbyzpg import compose
from jaxbyz.attacks import Attack
from jaxbyz.configuration.config import Config
from jaxbyz.environments import Environment, check_episodes
from jaxbyz.errors import UsageError
from jaxbyz.federation.frames import Format
from jaxbyz.federation.keys import FederationDescription
from jaxbyz.federation.state_vectors import layout_of, whole_state
from jaxbyz.protocol.agreements import agree_once
from jaxbyz.protocol.channel_options import make_channel
from jaxbyz.protocol.exchange import copies, receive, round_keys
from jaxbyz.protocol.iteration import Iteration, iteration_keys
from jaxbyz.protocol.placement import OnePlace, Places
from jaxbyz.rules import Rule, check_rule, within_batch
from jaxbyz.runs.plan import Plan, make_plan
from jaxbyz.sampling.page import Drawn, Sampled


class Aggregate(NamedTuple):
    """What a node makes of the gradients of a round.

    Attributes:
        rows: `[1, D]`, its aggregate v.
        norm: `[]`, the norm of v.
        shares: `[n]`, the share of each sender in v.
    """

    rows: Float[Array, "1 D"]
    norm: Float[Array, ""]
    shares: Float[Array, " n"]


class NodePrograms(NamedTuple):
    """What a node computes. `State` has one row, and `index` is the number of the node.

    An iteration sends one gradient, or several if it uses its batch several times; `m` is the number of the message.

    Attributes:
        plan: coins, keys and the output iteration, which all nodes derive from the common seed.
        start: the state before the first iteration, the same for all nodes.
        sample: `(State, coin, index) -> (Drawn, State)`, line 5 of Algorithm 2. With a fourth argument, `[]`, the
            random keys also depend on it.
        estimate: `(Drawn, θ [1, D], m) -> Sampled`, line 6.
        send: `(State, index, ṽ [D]) -> (message [D], State)`, what the node sends in the place of an estimate; None for
            the estimate itself.
        aggregate: `(State, m, index, row, own [D], messages [n, D]) -> (Aggregate, State)`, line 7. `own` is the
            estimate of this node and `row` its row among the n ≤ K messages that arrived, −1 if it has none.
        optimise: `(State, coin, index, v [1, D], own [1, D]) -> State`, line 8.
        agree: `(State, m, i, index, row, messages [n, D]) -> [D]`, round i of line 9.
        messages: the number of gradients that are sent per iteration.
        rounds: the number of agreement rounds κ after each of them.
        aggregator: the rule for gradients.
        agreement: the rule for parameters, or None.
        environment: where this node samples.
        attack: what this node plays, built from its name.
        sizes: the numbers of messages, from K − f to K, that both rules can be applied to. The rules defend against f
            lies among the messages that arrived in time: missing messages are left out and do not count as lies.
    """

    plan: Plan
    start: State
    sample: Callable[..., tuple[Drawn, State]]
    estimate: Callable[..., Sampled]
    send: Callable[..., tuple[Array, State]] | None
    aggregate: Callable[..., tuple[Aggregate, State]]
    optimise: Callable[..., State]
    agree: Callable[..., jax.Array]
    messages: int
    rounds: int
    aggregator: Rule
    agreement: Rule | None
    environment: Environment
    attack: Attack
    sizes: frozenset[int]


def build_programs(config: Config, attack: str = "none", environment: Environment | None = None) -> NodePrograms:
    """Return the programs of a node that plays this attack.

    The lines of Algorithm 2 are those of the simulation (`jaxbyz.algorithms.agents`), with the same random keys, so
    that K nodes compute the numbers of the simulation.

    Args:
        config: the configuration of the federation. Its option `attack` is ignored.
        attack: the name of the attack that this node plays.
        environment: where the node samples; by default the environment of the configuration.
    """
    plan = make_plan(replace(config, attack="none"))
    algorithm = plan.algorithm
    settings, K = replace(algorithm.settings, attack=attack, audit=0.0), config.agents
    environment = environment or algorithm.environment
    parts, sampling, agents, rule, agreement = compose(environment, algorithm.policy, settings)
    if agreement is not None and agreement.rule.committee is not None:
        raise UsageError(f"agreement={config.agreement}: committees are not supported by a federation of processes")

    def now(state: State, index: Array, coin: Array | bool = True, m: Array | int = 0) -> Iteration:
        keys = iteration_keys(state.key, state.step, K)
        mask = (jnp.arange(K) == index) & (attack != "none")
        this = Iteration(state.step, jnp.asarray(coin), keys, mask, OnePlace(K, K, index))
        return this.message(m if settings.messages > 1 else 0, state.attack_memory)

    def sample(state: State, coin: Array, index: Array, salt: Array | None = None) -> tuple[Drawn, State]:
        this = now(state, index, coin)
        if salt is not None:
            salted = jax.vmap(jax.random.fold_in, (0, None))(this.keys.agents, salt)
            this = this._replace(keys=this.keys._replace(agents=salted))
        return agents.sample(this, state)

    sender = make_channel(settings, 1)  # what one agent does with its own messages

    def send(state: State, index: Array, v_tilde: Array) -> tuple[Array, State]:
        this = now(state, index)
        messages, memory = sender.send(this._replace(mask=this.mask[index][None]), v_tilde[None], state.channel)
        return messages[0], state._replace(channel=memory)

    def aggregate(
        state: State, m: Array, index: Array, row: Array, own: Array, messages: Array
    ) -> tuple[Aggregate, State]:
        keys, rule_state = round_keys(now(state, index, m=m).keys.gradients), jax.tree.map(itemgetter(0), state.rules)
        heard = within_batch(rule, m == 0)
        v = receive(keys, heard, rule_state, messages, own, index, row)
        return Aggregate(v.rows[None], jnp.linalg.norm(v.rows), v.shares), state._replace(rules=copies(v.state, 1))

    def optimise(state: State, coin: Array, index: Array, v: Array, own: Array) -> State:
        return agents.optimise(now(state, index, coin), state, v, own)

    def agree(state: State, m: Array, i: Array, index: Array, row: Array, messages: Array) -> Array:
        assert agreement is not None
        return agree_once(now(state, index, m=m).keys.parameters, i, agreement.rule, messages, index, row)

    def init(key: PRNGKeyArray) -> State:
        state = algorithm.init(key, Places(K, K))  # one agent per place
        private = initial_private(sampling, state.key, 1)
        return state._replace(private=private, channel=sender.init(1, algorithm.policy.size))

    return NodePrograms(
        plan=plan,
        start=jax.jit(init)(plan.keys[0]),
        sample=jax.jit(sample),
        estimate=jax.jit(sampling.estimate),
        send=jax.jit(send) if settings.momentum else None,
        aggregate=jax.jit(aggregate),
        optimise=jax.jit(optimise),
        agree=jax.jit(agree),
        messages=settings.messages,
        rounds=0 if agreement is None else agreement.rounds,
        aggregator=rule,
        agreement=None if agreement is None else agreement.rule,
        environment=environment,
        attack=parts.attack,
        sizes=_sizes([rule, *([] if agreement is None else [agreement.rule])], config, algorithm.policy.size),
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

    candidates = range(config.agents - config.defended, config.agents)
    return frozenset(n for n in candidates if all(fits(rule, n) for rule in rules)) | {config.agents}


def format_of(federation: FederationDescription, programs: NodePrograms) -> Format:
    """Return what the frames of a federation look like."""
    state, config = programs.start, federation.config
    form = Format(
        federation.identifier(), config.agents, state.parameters.shape[1], layout_of(state).size,
        programs.messages * (1 + programs.rounds) - 1, programs.plan.iterations,
        len(whole_state(state)) if config.audit else 0,
    )  # fmt: skip
    form.check()
    return form


def warm_up(programs: NodePrograms, index: int, *salt: np.uint32) -> None:
    """Run every program once, so that no iteration waits for a compiler.

    Raises:
        EnvironmentFailure: if the environment of the node fails.
    """
    state, coin, zero, index_ = programs.start, np.bool_(programs.plan.coins[0]), np.int32(0), np.int32(index)
    drawn, state = programs.sample(state, coin, index_, *salt)
    jax.block_until_ready(programs.estimate(drawn, state.parameters, zero))
    check_episodes(programs.environment)
    if programs.send is not None:
        jax.block_until_ready(programs.send(state, index_, state.parameters[0]))
    for n in programs.sizes:
        zeros: Any = np.zeros((n, state.parameters.shape[1]), np.float32)
        v, after = programs.aggregate(state, zero, index_, zero, zeros[0], zeros)
        jax.block_until_ready(programs.optimise(after, coin, index_, v.rows, v.rows))
        if programs.rounds:
            jax.block_until_ready(programs.agree(state, zero, zero, index_, zero, zeros))
