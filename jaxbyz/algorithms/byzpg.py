"""ByzPG (Algorithm 1): policy gradient with a trusted server, tolerant of Byzantine workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.accelerate.batching import cond_on_coin
from jaxbyz.algorithms.absent_agents import with_absent_agents
from jaxbyz.algorithms.agents import Agents, initial_private, initial_state, make_agents, previous_estimate
from jaxbyz.algorithms.base import Algorithm, State
from jaxbyz.algorithms.followed_scales import refuse_followed_scales
from jaxbyz.algorithms.metrics import Measured, transferred_with_server
from jaxbyz.algorithms.rounds import Exchange, Parts, Received, gradient_rule, make_parts, make_step, repeat
from jaxbyz.algorithms.settings import Settings
from jaxbyz.algorithms.traits import RARELY_READ, Traits, algorithm
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.exchange import copies, exchange_with_server, no_own_batch
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import HALF, Receiver, Rule
from jaxbyz.sampling.own_estimates import with_own_estimates
from jaxbyz.sampling.page import Drawn, Sampled, Sampler, sampler
from jaxbyz.sampling.scoring import SamplingInputs

# A stream of the key of the gradient messages. `round_keys` splits the same key into three: its streams 0 to 2.
TRUST_STREAM = 2**32 - 1
SERVER_LIMIT = HALF  # a server tolerates fewer Byzantine workers than honest ones


@algorithm(
    Traits(
        central=True, server_samples=True, limit=SERVER_LIMIT, ignores=RARELY_READ - {"small_batches"} | {"local_steps"}
    )
)
def byzpg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build ByzPG: a trusted server aggregates the workers' large batches and samples the small batches alone.

    With `small_batches="workers"` the workers sample the small batches too, and the server aggregates those as well, as
    the published code of the paper does.
    """
    return server_algorithm(environment, policy, settings)


class ServerParts(NamedTuple):
    """What distinguishes algorithms with a server; see `server_algorithm`.

    Attributes:
        sampling: how workers and the server sample and estimate.
        receiver: `(iteration, State, messages [K, D]) -> Receiver`, what the server knows besides the messages.
        workers: what workers compute.
        optimise: `(iteration, State, Received) -> State`, the step of the server.
    """

    sampling: Sampler
    receiver: Callable[[Iteration, State, Float[Array, "K D"]], Receiver]
    workers: Agents
    optimise: Callable[[Iteration, State, Received], State]


def server_parts(
    environment: Environment, policy: Policy, settings: Settings, parts: Parts, rule: Rule, sampling: Sampler
) -> ServerParts:
    """Return what ByzPG uses, for a way of sampling and estimating."""
    if rule.remembers_senders and rule.trusts_own:
        raise UsageError(f"aggregator={settings.aggregator}: a server sends nothing itself that it could remember")
    if settings.uses_critic and rule.trusts_own:
        raise UsageError("baseline=critic: the server samples a batch of its own for fltrust and has no critic")
    if settings.small_batches != "workers":  # workers sample large batches only
        of_workers = sampling._replace(either=lambda coin, inputs: sampling.large(inputs))
    else:
        of_workers = sampling
    agents = make_agents(environment, settings, parts.attack, of_workers)
    receiver = root_of_trust(environment, policy, settings) if rule.trusts_own else _nothing_besides
    return ServerParts(sampling, receiver, agents, lambda now, state, v: agents.optimise(now, state, v.rows, v.rows))


def server_algorithm(
    environment: Environment,
    policy: Policy,
    settings: Settings,
    make_sampler: Callable[[Parts], Sampler] | None = None,
    change: Callable[[Parts, ServerParts], ServerParts] = lambda parts, own: own,
) -> Algorithm:
    """Build an algorithm in which workers send to a server that takes the steps.

    Args:
        environment: the task.
        policy: the policy that is trained.
        settings: what the iteration depends on.
        make_sampler: how workers and the server sample; by default with the PAGE switch.
        change: what else distinguishes the algorithm from ByzPG.
    """
    refuse_followed_scales(policy)
    K, D, parts = settings.agents, policy.size, make_parts(settings)
    rule = gradient_rule(settings, parts.channel, D)
    server_alone = settings.small_batches != "workers" and not settings.always_large
    if settings.uses_critic and server_alone:
        raise UsageError("baseline=critic: the server samples small batches and has no critic; use p=1")
    sampling = worker_sampler(environment, policy, settings, parts) if make_sampler is None else make_sampler(parts)
    own = change(parts, server_parts(environment, policy, settings, parts, rule, sampling))
    workers = own.workers if parts.channel.present == K else with_absent_agents(own.workers)
    aggregate = aggregate_at_server(parts, rule, own.receiver)

    def init(key: PRNGKeyArray, places: Places = Places(K)) -> State:
        key, key_theta = jax.random.split(key)
        return initial_state(
            key, policy.init(key_theta)[None], settings, rules=copies(rule.init(parts.channel.voters, D), 1),
            attack_memory=parts.attack.init(K, D), private=initial_private(sampling, key, places.per_device),
            channel=parts.channel.init(K, D),
        )  # fmt: skip

    def ask_workers(now: Iteration, state: State) -> tuple[Drawn, State]:
        drawn, after = workers.sample(now, as_workers(state, now.places.per_device))
        return drawn, state._replace(private=after.private)

    def from_workers(now: Iteration, state: State) -> tuple[Received, State]:
        drawn, state = ask_workers(now, state)
        v, state = aggregate(now, state, drawn.sampled)
        return v._replace(measured=jax.tree.map(lambda leaf: leaf[:1], drawn.measured)), state

    def from_server(now: Iteration, state: State) -> tuple[Received, State]:
        """Lines 11 and 12: the server samples B trajectories in the nominal environment and corrects v_{t−1}."""
        drawn = own.sampling.small(SamplingInputs(
            state.parameters, state.anchor, previous_estimate(settings, state), now.keys.agents[:1],
            jnp.zeros((1,), bool), {},
        ))  # fmt: skip
        sampled = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (K, *leaf.shape[1:])), drawn.sampled)
        shares = jnp.zeros((1, K))
        return Received(drawn.sampled.estimate, shares, sampled, jnp.bool_(False), drawn.measured), state

    def lines(now: Iteration, state: State) -> tuple[State, Measured]:
        if not server_alone:
            drawn, state = ask_workers(now, state)  # lines 5 and 6

        def one_message(now: Iteration, state: State) -> tuple[State, Measured]:
            # Lines 4 to 13: v_t ← Aggregate(ṽ_t^(1), …, ṽ_t^(K)) if c_t = 1, from the server alone otherwise.
            if server_alone:
                v, state = cond_on_coin(now.coin, from_workers, from_server, now, state)
            else:
                v_tilde = workers.estimate(now, drawn, as_workers(state, now.places.per_device).parameters)
                v, state = aggregate(now, state, v_tilde)
            # Line 14: θ_{t+1} = θ_t + η v_t, or the step of another optimizer.
            state = own.optimise(now, state, v)
            return state, measure_server(v, state)

        # Lines 4 to 14 are repeated if the iteration sends several messages.
        return repeat(settings.messages, one_message, now, state)

    step = make_step(settings, parts, lines, transferred_with_server(parts.channel, D, settings.messages))
    return Algorithm(init, step, settings, policy, environment, central=True)


def worker_sampler(environment: Environment, policy: Policy, settings: Settings, parts: Parts) -> Sampler:
    """Return how workers sample; those that sample small batches themselves may correct their own last estimates."""
    sampling = sampler(environment, policy, settings, parts.interference(environment))
    if settings.previous == "own" and settings.small_batches == "workers" and not settings.always_large:
        return with_own_estimates(sampling, policy.size, settings)
    return sampling


def as_workers(state: State, workers: int) -> State:
    """Return the state with copies of the server's row, one per worker."""
    rows = ("parameters", "anchor", "estimate")
    return state._replace(**{name: jnp.tile(getattr(state, name), (workers, 1)) for name in rows})


def aggregate_at_server(parts: Parts, rule: Rule, receiver: Callable[..., Receiver]) -> Exchange:
    """Return lines 7 to 9: every worker sends ṽ_t^(k), and the server computes v_t ← Aggregate(ṽ_t^(1), …, ṽ_t^(K))."""
    channel = parts.channel

    def aggregate(now: Iteration, state: State, estimates: Sampled) -> tuple[Received, State]:
        sampled, rule_state = now.places.gather(estimates), jax.tree.map(lambda leaf: leaf[0], state.rules)
        heard = channel.hear_gradients(now, rule, state.channel)
        messages, on_the_way = channel.send(now, sampled.estimate, state.channel)
        outcome, view = exchange_with_server(
            now.keys.gradients, heard, rule_state, messages, parts.on_gradients(now),
            lambda sent: receiver(now, state, sent),
        )  # fmt: skip
        after = state._replace(
            rules=copies(outcome.state, 1), channel=on_the_way, attack_memory=parts.attack.remember(view)
        )
        return Received(outcome.rows, outcome.shares, sampled, jnp.bool_(True)), after

    return aggregate


def measure_server(v: Received, state: State) -> Measured:
    """Return what the metrics need to know about one message: all workers have what the server has."""
    K = v.shares.shape[1]
    norms, shares = jnp.tile(jnp.linalg.norm(v.rows, axis=1), K), jnp.tile(v.shares, (K, 1))
    finite, parameters = jnp.ones(K, bool), jnp.tile(state.parameters, (K, 1))
    return Measured(v.sampled, norms, shares, finite, parameters, jnp.float32(v.sent), jnp.int32(0))


def _nothing_besides(now: Iteration, state: State, sent: Float[Array, "K D"]) -> Receiver:
    return no_own_batch(sent)


def root_of_trust(environment: Environment, policy: Policy, settings: Settings) -> Callable[..., Receiver]:
    """Return a server that samples B trajectories in the nominal environment, which FLTrust measures messages by."""
    own = sampler(environment, policy, replace(settings, N=settings.B, epochs=1, minibatches=1, p=1.0, period=None))

    def receiver(now: Iteration, state: State, sent: Float[Array, "K D"]) -> Receiver:
        key, theta = jax.random.fold_in(now.keys.gradients, TRUST_STREAM), state.parameters
        drawn = own.large(SamplingInputs(theta, theta, theta, key[None], jnp.zeros((1,), bool), {}))
        return Receiver(drawn.sampled.estimate[0], jnp.int32(-1))

    return receiver
