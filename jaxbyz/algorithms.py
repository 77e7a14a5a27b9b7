"""Named algorithms as short compositions: DecByzPG, ByzPG, PAGE-PG and its naive federations, and their rivals.

An algorithm is two pure functions, `init(key) -> State` and `step(state, coin) -> (State, Metrics)`: one iteration,
one compiled program. The coin c_t is an argument because it is common knowledge: runs that share it can be batched
without paying for both branches. The first coin must be True (Algorithms 1 and 2: "c_t = 1 or t = 0").

Both take `places` as well, for agents that are spread over devices: inside `shard_map` over an axis `agents`, a state
holds the rows of the agents that live on this device, and only messages cross (`meshes.Places`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.agreements import Agreement, diameter, run_agreement
from jaxbyz.api import make_attack, make_rule
from jaxbyz.attacks import Attack
from jaxbyz.communication import exchange, omniscient_view, received
from jaxbyz.environments import Environment
from jaxbyz.meshes import FLOAT_BYTES, Places
from jaxbyz.page import Page, Sampled, sampler, switch
from jaxbyz.policies import Policy
from jaxbyz.registry import Registry, UsageError
from jaxbyz.rules import Receiver, Rule, mean
from jaxbyz.schedules import Schedule, fixed

DEFAULT_PAGE = Page()
SUMMARY = len(Sampled._fields) - 1  # numbers that travel beside an estimate, for the metrics


class State(NamedTuple):
    """What agents carry from iteration to iteration, a row an agent that lives here (K of them, unless they are spread
    over devices). A central algorithm has one row, the server's, on every device.

    step [] t; key of the run; parameters [K, D] θ_t; previous [K, D] θ_{t−1}; memory [K, D] v_{t−1} as `Page.previous`
    says; optimizer, one state an agent; rules, one state a receiver; adversary, what the attack remembers.
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    parameters: Float[Array, "K D"]
    previous: Float[Array, "K D"]
    memory: Float[Array, "K D"]
    optimizer: Any
    rules: Any
    adversary: Any


class Metrics(NamedTuple):
    """One iteration in numbers, [] each unless said.

    trajectories: sampled by an agent in this iteration (N or B)
    returns:      mean undiscounted return over honest agents' trajectories
    worst:        least mean return of an honest agent
    length:       mean episode length over honest agents
    diameter:     max distance between honest parameters after agreement
    coin:         1 for a large batch
    ess:          effective sample size of the importance weights over B, mean over honest agents (1: large batch)
    max_weight:   largest importance weight of honest agents
    byzantine_weight: share of Byzantine messages in the aggregate, mean over honest receivers; NaN where undefined
    gradient_norm: mean norm of honest receivers' aggregates
    rounds:       agreement rounds used
    bytes_sent:   by all agents together, D floats a message, as the paper's remark counts them
    bytes_moved:  between devices, when agents are spread over them; measuring the diameter included
    finite:       1 where honest parameters are finite numbers, before and after agreement, and some honest estimate is:
                  robust rules make zeros of what is not a number, so that the outcome alone would hide it
    shares [K]:   share of each sender in the aggregate, mean over honest receivers; zero in steps that ByzPG's server
                  takes alone, which aggregate nobody's message
    byzantine [K]: who was Byzantine
    """

    trajectories: Array
    returns: Array
    worst: Array
    length: Array
    diameter: Array
    coin: Array
    ess: Array
    max_weight: Array
    byzantine_weight: Array
    gradient_norm: Array
    rounds: Array
    bytes_sent: Array
    bytes_moved: Array
    finite: Array
    shares: Array
    byzantine: Array


class Algorithm(NamedTuple):
    """init: key -> State; step: (State, coin []) -> (State, Metrics), both with `places` if agents are spread over
    devices; p: probability of a large batch.

    period:  a large batch every so many iterations instead of the coin; None for the coin.
    central: the state has one row, the server's.

    Two are equal when they are the same functions; it can be the key of a cache.
    """

    init: Callable[..., State]
    step: Callable[..., tuple[State, Metrics]]
    agents: int
    p: float
    page: Page
    policy: Policy
    environment: Environment
    period: int | None = None
    central: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Algorithm) and self.init is other.init and self.step is other.step

    def __hash__(self) -> int:
        return hash((self.init, self.step))


def decbyzpg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    agreement: Agreement | None,
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
) -> Algorithm:
    """DecByzPG (Algorithm 2): every agent samples, aggregates what it receives, steps, and agrees on parameters.

    The aggregator and the attack may be names (`"bucketing+rfa"`) or plain functions, too.
    """
    if agreement is not None and not isinstance(agreement, Agreement):
        raise UsageError(f"agreement={agreement!r}: an Agreement is wanted, as Agreement(mda({byzantine}), rounds=4)")
    page.check()
    K, D = agents, policy.size
    aggregator = make_rule(aggregator, K, byzantine)
    attack = make_attack("none" if attack is None else attack, K, byzantine)
    schedule = fixed(K, byzantine) if schedule is None else schedule
    interference = attack.interfere(environment.actions) if attack.interfere else None
    always_large = _always_large(p, period)
    sample = sampler(environment, policy, page, interference, always_large)
    here = Places(K)

    def init(key: PRNGKeyArray, places: Places = here) -> State:
        key, key_theta = jax.random.split(key)
        theta = policy.init(key_theta)
        return _start(key, jnp.tile(theta, (places.here, 1)), optimizer, aggregator, K, attack)

    def step(state: State, coin: Array, places: Places = here) -> tuple[State, Metrics]:
        keys = _keys(state, K)
        mask = schedule(keys.schedule, state.step)
        memory = _previous_estimate(page, state)
        mine = sample.either(
            coin, state.parameters, state.previous, memory, places.mine(keys.agents), places.mine(mask)
        )
        sampled = places.gather(mine)  # everyone's message, and how its sampling went
        aggregate = exchange(
            keys.gradients, aggregator, state.rules, sampled.estimate, mask, attack.gradients,
            equivocates=attack.equivocates, memory=state.adversary, step=state.step, places=places,
        )  # fmt: skip
        proposed, optimizer_state = ascend(optimizer, aggregate.rows, state.optimizer, state.parameters)
        agreed = run_agreement(
            keys.parameters, agreement, proposed, mask, attack.parameters,
            equivocates=attack.equivocates, memory=state.adversary, step=state.step, places=places,
        )  # fmt: skip
        first = places.first(state.rules)
        view = omniscient_view(keys.gradients, aggregator, first, sampled.estimate, mask, state.adversary, state.step)
        following = State(
            state.step + 1,
            state.key,
            agreed.parameters,
            *_anchor(page, coin, state, proposed, mine.estimate if page.previous == "own" else aggregate.rows),
            optimizer_state,
            aggregate.state,
            attack.remember(view),
        )
        measured = jnp.linalg.norm(aggregate.rows, axis=1), aggregate.shares, _finite_rows(proposed).astype(jnp.float32)
        norms, shares, sound = places.gather(measured)
        rounds = agreed.rounds.astype(jnp.float32)
        a_place = (D + SUMMARY) + (1.0 + rounds) * D + (2 + K)  # estimates, parameters, what is measured of steps
        floats = places.here * a_place + _memory_size(aggregator, K, D)
        metrics = _metrics(
            page, coin, sampled, mask, norms, shares, agreed.everyone, agreed.rounds, sound=sound > 0,
            bytes_sent=(1.0 + rounds) * float(K * K * D * FLOAT_BYTES), bytes_moved=places.moved(floats),
        )  # fmt: skip
        return following, metrics

    return Algorithm(init, step, K, p, page, policy, environment, period)


def byzpg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    alone: bool = True,
) -> Algorithm:
    """ByzPG (Algorithm 1): a trusted server aggregates workers' large batches and samples small batches alone.

    With alone=False workers sample small batches too, and the server aggregates those as well (Byz-VR-MARINA).
    """
    page.check()
    if page.previous == "own" and not alone:
        raise UsageError("previous='own': Byz-VR-MARINA-PG's workers all correct the server's estimate: 'aggregated'")
    K, D = agents, policy.size
    aggregator = make_rule(aggregator, K, byzantine)
    attack = make_attack("none" if attack is None else attack, K, byzantine)
    schedule = fixed(K, byzantine) if schedule is None else schedule
    interference = attack.interfere(environment.actions) if attack.interfere else None
    always_large = _always_large(p, period)
    sample = sampler(environment, policy, page, interference, always_large)
    here = Places(K)

    def init(key: PRNGKeyArray, places: Places = here) -> State:
        key, key_theta = jax.random.split(key)
        theta = policy.init(key_theta)
        return _start(key, theta[None], optimizer, aggregator, K, attack)

    def step(state: State, coin: Array, places: Places = here) -> tuple[State, Metrics]:
        keys = _keys(state, K)
        mask = schedule(keys.schedule, state.step)
        operands = state, keys, mask, jax.tree.map(lambda leaf: leaf[0], state.rules)

        def workers(state: State, keys: _Keys, mask: Array, rule_state: Any) -> tuple[Sampled, Array, Array, Any, Any]:
            known = (state.parameters, state.previous, _previous_estimate(page, state))
            theta, before, memory = (jnp.tile(x, (places.here, 1)) for x in known)
            who = places.mine(keys.agents), places.mine(mask)
            mine = sample.large(theta, *who) if alone else sample.either(coin, theta, before, memory, *who)
            sampled = places.gather(mine)
            key_forge, key_rule, key_guess = jax.random.split(keys.gradients, 3)
            view = omniscient_view(
                key_guess, aggregator, rule_state, sampled.estimate, mask, state.adversary, state.step
            )
            sent = received(key_forge, view, attack.gradients, jnp.int32(0), restore_own=False)
            out = aggregator.apply(key_rule, sent, Receiver(sent[0], jnp.int32(0)), rule_state)
            return sampled, out.rows, out.shares, out.state, attack.remember(view)

        def server(state: State, keys: _Keys, mask: Array, rule_state: Any) -> tuple[Sampled, Array, Array, Any, Any]:
            memory = _previous_estimate(page, state)
            own = sample.small(state.parameters, state.previous, memory, keys.agents[:1], jnp.zeros((1,), bool))
            everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (K, *leaf.shape[1:])), own)
            return everyone, own.estimate, jnp.zeros((1, K)), rule_state, state.adversary

        result = workers(*operands) if always_large or not alone else switch(coin, workers, server, *operands)
        sampled, v, shares, rule_state, adversary = result
        theta, optimizer_state = ascend(optimizer, v, state.optimizer, state.parameters)
        following = State(
            state.step + 1,
            state.key,
            theta,
            *_anchor(page, coin, state, theta, v),
            optimizer_state,
            jax.tree.map(lambda leaf: leaf[None], rule_state),
            adversary,
        )
        # Gradients go up when workers sampled, parameters always come down. Every device has the server's state, so
        # that between devices only gradients move.
        upwards = coin if alone else jnp.bool_(True)
        metrics = _metrics(
            page, coin, sampled, mask, jnp.tile(jnp.linalg.norm(v, axis=1), K), jnp.tile(shares, (K, 1)),
            jnp.tile(theta, (K, 1)), jnp.int32(0), sound=jnp.ones(K, bool),
            bytes_sent=jnp.where(upwards, 2.0, 1.0) * float(K * D * FLOAT_BYTES),
            bytes_moved=jnp.where(upwards, places.moved(places.here * (D + SUMMARY)), 0.0),
        )  # fmt: skip
        return following, metrics

    return Algorithm(init, step, K, p, page, policy, environment, period, central=True)


def dec_page_pg(environment: Environment, policy: Policy, **options: Any) -> Algorithm:
    """Dec-PAGE-PG: DecByzPG with the mean and no agreement; not fault-tolerant."""
    return decbyzpg(environment, policy, **{**options, "aggregator": mean(), "agreement": None})


def fed_page_pg(environment: Environment, policy: Policy, **options: Any) -> Algorithm:
    """Fed-PAGE-PG: ByzPG with the mean; not fault-tolerant."""
    options.pop("agreement", None)
    return byzpg(environment, policy, **{**options, "aggregator": mean()})


def page_pg(environment: Environment, policy: Policy, **options: Any) -> Algorithm:
    """PAGE-PG: one agent alone (Gargiani et al. 2022)."""
    return dec_page_pg(
        environment, policy, **{**options, "agents": 1, "byzantine": 0, "attack": None, "schedule": None}
    )


def byz_vr_marina_pg(environment: Environment, policy: Policy, **options: Any) -> Algorithm:
    """Byz-VR-MARINA-PG: ByzPG whose workers sample small batches too (Gorbunov et al. 2023, for policy gradient)."""
    return byzpg(environment, policy, **{**options, "alone": False})


def svrpg(environment: Environment, policy: Policy, **options: Any) -> Algorithm:
    """SVRPG: the mean of workers' large batches, then a few small steps at the server (Papini et al. 2018)."""
    page = options.pop("page", DEFAULT_PAGE)._replace(anchor="snapshot")
    period = options.pop("period", None) or 4
    return fed_page_pg(environment, policy, **{**options, "page": page, "period": period})


def fedpg_br(environment: Environment, policy: Policy, **options: Any) -> Algorithm:
    """FedPG-BR: filtered large batches, then a geometric number of small steps at the server (Fan et al. 2021).

    The number of small steps is geometric with parameter b/(B+b), which is a coin of that probability every iteration.
    """
    page = options.pop("page", DEFAULT_PAGE)._replace(anchor="snapshot")
    return byzpg(environment, policy, **{**options, "page": page, "p": page.B / (page.N + page.B)})


def ascend(
    optimizer: optax.GradientTransformation, direction: Float[Array, "K D"], state: Any, parameters: Float[Array, "K D"]
) -> tuple[Float[Array, "K D"], Any]:
    """One optimizer step uphill for each agent; optax goes downhill, hence the sign."""
    updates, state = jax.vmap(optimizer.update)(-direction, state, parameters)
    return optax.apply_updates(parameters, updates), state


def _start(
    key: PRNGKeyArray,
    parameters: Float[Array, "R D"],
    optimizer: optax.GradientTransformation,
    rule: Rule,
    senders: int,
    attack: Attack,
) -> State:
    receivers, D = parameters.shape
    rules = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (receivers, *jnp.shape(leaf))), rule.init(senders, D))
    return State(
        jnp.int32(0),
        key,
        parameters,
        parameters,
        jnp.zeros_like(parameters),
        jax.vmap(optimizer.init)(parameters),
        rules,
        attack.init(senders, D),
    )


def _always_large(p: float, period: int | None) -> bool:
    """Whether no iteration can have a small batch."""
    return p == 1 if period is None else period == 1


class _Keys(NamedTuple):
    """Keys of one iteration: agents [K] for sampling, one each for gradient messages, parameter messages, schedule."""

    agents: PRNGKeyArray
    gradients: PRNGKeyArray
    parameters: PRNGKeyArray
    schedule: PRNGKeyArray


def _keys(state: State, agents: int) -> _Keys:
    keys = jax.random.split(jax.random.fold_in(state.key, state.step), agents + 3)
    return _Keys(keys[:agents], keys[agents], keys[agents + 1], keys[agents + 2])


def _previous_estimate(page: Page, state: State) -> Float[Array, "K D"]:
    if page.previous == "realized":
        assert page.eta is not None
        return (state.parameters - state.previous) / page.eta
    return state.memory


def _anchor(page: Page, coin: Array, state: State, proposed: Array, estimate: Array) -> tuple[Array, Array]:
    """The next iteration's comparison parameters and remembered estimate; `proposed` is where the step led."""
    if page.anchor == "proposed":
        return proposed, estimate
    if page.anchor == "previous":
        return state.parameters, estimate
    return jnp.where(coin, state.parameters, state.previous), jnp.where(coin, estimate, state.memory)


def _memory_size(rule: Rule, K: int, D: int) -> int:
    """Floats of one receiver's rule state. Agent 0's is shown to the adversary, twice an iteration."""
    return 2 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(lambda: rule.init(K, D))))


def _finite_rows(vectors: Float[Array, "K D"]) -> Bool[Array, " K"]:
    return jnp.all(jnp.isfinite(vectors), axis=1)


def _metrics(
    page: Page,
    coin: Array,
    sampled: Sampled,
    mask: Array,
    norms: Array,
    shares: Array,
    parameters: Array,
    rounds: Array,
    *,
    sound: Array,
    bytes_sent: Array,
    bytes_moved: Array,
) -> Metrics:
    """sampled, mask, norms [K] of aggregates, shares [K, K], parameters [K, D] and sound [K], whether an agent's step
    led to finite parameters, are everyone's."""
    honest = ~mask
    finite = sound & _finite_rows(parameters)

    def over_honest(values: Array) -> Array:
        weight = honest.reshape(-1, *([1] * (values.ndim - 1)))
        return jnp.sum(jnp.where(weight, values, 0.0), axis=0) / jnp.maximum(jnp.sum(honest), 1)

    senders = over_honest(shares)
    return Metrics(
        trajectories=jnp.where(coin, page.N, page.B).astype(jnp.int32),
        returns=over_honest(sampled.returns),
        worst=jnp.min(jnp.where(honest, sampled.returns, jnp.inf)),
        length=over_honest(sampled.lengths),
        diameter=diameter(parameters, mask),
        coin=coin.astype(jnp.int32),
        ess=over_honest(sampled.ess),
        max_weight=jnp.max(jnp.where(honest, sampled.largest, 0.0)),
        byzantine_weight=jnp.sum(jnp.where(mask, senders, 0.0 * senders)),
        gradient_norm=over_honest(norms),
        rounds=rounds,
        bytes_sent=bytes_sent,
        bytes_moved=bytes_moved,
        finite=(jnp.all(mask | finite) & jnp.any(honest & _finite_rows(sampled.estimate))).astype(jnp.int32),
        shares=senders,
        byzantine=mask,
    )


algorithms = Registry("algorithm")
algorithms.add("decbyzpg", decbyzpg)
algorithms.add("byzpg", byzpg)
algorithms.add("page-pg", page_pg)
algorithms.add("dec-page-pg", dec_page_pg)
algorithms.add("fed-page-pg", fed_page_pg)
algorithms.add("byz-vr-marina-pg", byz_vr_marina_pg)
algorithms.add("svrpg", svrpg)
algorithms.add("fedpg-br", fedpg_br)
