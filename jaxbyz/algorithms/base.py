"""What an algorithm is, and the steps that all algorithms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.attacks import Attack
from jaxbyz.attacks.one_of import choose_attack
from jaxbyz.environments import Environment, check_environment
from jaxbyz.errors import UsageError, check_value
from jaxbyz.policies import Policy
from jaxbyz.protocol.delivery import Delivery, Mail
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Outcome, Rule
from jaxbyz.sampling.page import Page, Sampler

DEFAULT_PAGE = Page()
DEFAULT_DELIVERY = Delivery()
DELIVERY_STREAM = 2**32 - 1  # larger than any number of agents, whose keys are split from the same key
CRITIC_STREAM = 2**32 - 1  # of the key of a run, whose stream t belongs to iteration t


class State(NamedTuple):
    """What the agents carry from one iteration to the next.

    Arrays have one row per agent on this device, which is all K agents unless they are spread over several devices.
    An algorithm with a server has a single row, the server's, and every device holds a copy of it.

    Attributes:
        step: `[]`, the iteration t.
        key: the random key of the run.
        parameters: `[K, D]`, θ_t.
        anchor: `[K, D]`, the parameters that a small batch is compared with; θ_{t−1} unless `Page.anchor` differs.
        estimate: `[K, D]`, the estimate v_{t−1} that a small batch corrects.
        optimizer: one optimizer state per agent.
        rules: one rule state per receiver.
        attack_memory: what the attack remembers.
        critic: what every agent keeps for itself, `[K, …]` also if there is a server; empty without critics.
        mail: earlier gradient messages of all K agents that may still arrive; see `jaxbyz.protocol.delivery`.
        ended: `[]`, whether the inner loop of FedPG-BR has ended; empty for algorithms without one.
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    parameters: Float[Array, "K D"]
    anchor: Float[Array, "K D"]
    estimate: Float[Array, "K D"]
    optimizer: Any
    rules: Any
    attack_memory: Any
    critic: Any = ()
    mail: Mail = ()
    ended: Any = ()


class Algorithm(NamedTuple):
    """One federated algorithm as two pure functions.

    The coin c_t is an argument of `step` because all agents know it: runs that share it can be batched without paying
    for both branches. The first coin must be True (Algorithms 1 and 2: "c_t = 1 or t = 0").

    Two algorithms are equal if they are the same functions, so an algorithm can be the key of a cache.

    Attributes:
        init: `key -> State`.
        step: `(State, coin []) -> (State, Metrics)`, one iteration. Both functions also accept `places`
            (`jaxbyz.protocol.placement.Places`) if the agents are spread over devices.
        agents: the number of agents K.
        p: the probability of a large batch.
        page: batch sizes and estimator.
        policy: the policy that is trained.
        environment: the task.
        period: a large batch every `period` iterations instead of the coin; None for the coin.
        central: whether the state has a single row, the server's.
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


def starting_with_attack(algorithm: Algorithm, index: Int[Array, ""]) -> Algorithm:
    """Return an algorithm under `one_of` several attacks that starts with the attack of this index."""

    def init(key: PRNGKeyArray, *places: Places) -> State:
        state = algorithm.init(key, *places)
        return state._replace(attack_memory=choose_attack(state.attack_memory, index))

    return algorithm._replace(init=init)


class Traits(NamedTuple):
    """What distinguishes a registered algorithm from the others.

    Attributes:
        central: a trusted server aggregates; the agents do not agree on parameters among themselves.
        server_samples: the server samples the small batches alone.
        snapshot: small batches are compared with the parameters of the last large batch.
        naive: the algorithm always aggregates with the mean and never runs an agreement.
        single: the algorithm has one agent only.
        one_batch: all batches have one size, and none is corrected with importance weights.
    """

    central: bool = False
    server_samples: bool = False
    snapshot: bool = False
    naive: bool = False
    single: bool = False
    one_batch: bool = False


class IterationKeys(NamedTuple):
    """Random keys of one iteration: `[K]` for sampling, one for each kind of message, schedule and delivery."""

    agents: PRNGKeyArray
    gradients: PRNGKeyArray
    parameters: PRNGKeyArray
    schedule: PRNGKeyArray
    delivery: PRNGKeyArray


def check_parts(environment: Any, policy: Any, optimizer: Any) -> None:
    """Refuse arguments of an algorithm that are not an `Environment`, a `Policy` and an optax optimizer.

    Raises:
        UsageError: which says what is needed instead.
    """
    check_environment(environment)
    if not isinstance(policy, Policy):
        raise UsageError(f"policy={_shown(policy)}: must be a Policy, such as jaxbyz.mlp_policy(environment)")
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise UsageError(f"optimizer={_shown(optimizer)}: must be an optax optimizer, such as optax.adam(0.01)")


def check_federation(
    agents: int, byzantine: int, assumed_byzantine: int | None = None, p: float = 1.0, period: int | None = None
) -> None:
    """Refuse numbers of agents and probabilities of large batches that make no sense; arguments as in `decbyzpg`."""
    check_value("agents", agents, agents >= 1, "at least 1")
    check_value("byzantine", byzantine, byzantine >= 0, "at least 0")
    if byzantine >= agents:
        raise UsageError(f"byzantine={byzantine} of agents={agents}: at least one agent must be honest")
    defended = byzantine if assumed_byzantine is None else assumed_byzantine
    check_value("assumed_byzantine", defended, defended >= 0, "at least 0")
    check_value("p", p, 0 < p <= 1, "in (0, 1]")
    check_value("period", period, period is None or period >= 1, "at least 1, or None")


def _shown(value: Any) -> str:
    """Return a number or a text as it is written, and the type of anything else."""
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__


def run_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """Return the key in the `State` of the run that starts from this key; the other half draws θ_0."""
    return jax.random.split(key)[0]


def iteration_keys(state: State, agents: int) -> IterationKeys:
    """Derive the keys of iteration `state.step` from the key of the run."""
    key = jax.random.fold_in(state.key, state.step)
    keys = jax.random.split(key, agents + 3)
    delivery = jax.random.fold_in(key, DELIVERY_STREAM)
    return IterationKeys(keys[:agents], keys[agents], keys[agents + 1], keys[agents + 2], delivery)


def initial_critics(sample: Sampler, key: PRNGKeyArray, places: Places) -> Any:
    """Return the critics of the agents on this device, which all start from the same network."""
    critic = sample.init(jax.random.fold_in(key, CRITIC_STREAM))
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (places.per_device, *jnp.shape(leaf))), critic)


def initial_state(
    key: PRNGKeyArray,
    parameters: Float[Array, "R D"],
    optimizer: optax.GradientTransformation,
    rule: Rule,
    senders: int,
    attack: Attack,
    critic: Any = (),
    delivery: Delivery = DEFAULT_DELIVERY,
) -> State:
    """Return the state before the first iteration of R agents that hold `parameters`."""
    receivers, D = parameters.shape
    rules = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (receivers, *jnp.shape(leaf))), delivery.sized(rule).init(senders, D)
    )
    return State(
        jnp.int32(0),
        key,
        parameters,
        parameters,
        jnp.zeros_like(parameters),
        jax.vmap(optimizer.init)(parameters),
        rules,
        attack.init(senders, D),
        critic,
        delivery.no_mail(senders, D),
    )


def optimizer_step(
    optimizer: optax.GradientTransformation, direction: Float[Array, "K D"], state: Any, parameters: Float[Array, "K D"]
) -> tuple[Float[Array, "K D"], Any]:
    """Take one optimizer step uphill per agent. Optax minimises, hence the minus sign."""
    updates, state = jax.vmap(optimizer.update)(-direction, state, parameters)
    return optax.apply_updates(parameters, updates), state


def choose(condition: Array, one: Any, other: Any) -> Any:
    """Return one of two trees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def own_step(estimates: Float[Array, "R D"], rules: Any, places: Places) -> Outcome:
    """Return what the agents on this device use in the place of aggregates if nothing is sent: their own estimates."""
    return Outcome(estimates, places.local(jnp.eye(places.agents, dtype=estimates.dtype)), rules)


def previous_estimate(page: Page, state: State) -> Float[Array, "K D"]:
    """Return v_{t−1} as `Page.previous` defines it."""
    if page.previous == "realized":
        assert page.eta is not None
        return (state.parameters - state.anchor) / page.eta
    return state.estimate


def next_anchor(page: Page, coin: Array, state: State, proposed: Array, estimate: Array) -> tuple[Array, Array]:
    """Return the parameters and the estimate that the next small batch is compared with.

    Args:
        page: its `anchor` selects the parameters.
        coin: whether this iteration had a large batch.
        state: the state before this iteration.
        proposed: `[K, D]`, the parameters after the optimizer step and before agreement.
        estimate: `[K, D]`, the estimate of this iteration.
    """
    if page.anchor == "proposed":
        return proposed, estimate
    if page.anchor == "previous":
        return state.parameters, estimate
    return jnp.where(coin, state.parameters, state.anchor), jnp.where(coin, estimate, state.estimate)


def always_large(p: float, period: int | None) -> bool:
    """Whether every iteration has a large batch, so that no program for small batches is needed."""
    return p == 1 if period is None else period == 1
