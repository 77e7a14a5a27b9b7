"""ByzPG (Algorithm 1): policy gradient with a trusted server, tolerant of Byzantine workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.batching import cond_on_coin
from jaxbyz.algorithms.base import (
    DEFAULT_DELIVERY,
    DEFAULT_PAGE,
    Algorithm,
    IterationKeys,
    State,
    always_large,
    check_federation,
    check_parts,
    initial_critics,
    initial_state,
    iteration_keys,
    next_anchor,
    optimizer_step,
    previous_estimate,
)
from jaxbyz.algorithms.inner_loop import count_trajectories, end_inner_loop, large_batch_size
from jaxbyz.algorithms.messages import message_keys, repeat
from jaxbyz.algorithms.metrics import Metrics, StepResults, central_bytes, central_moved, iteration_metrics
from jaxbyz.attacks import Attack
from jaxbyz.components import Limit, check_limits, limits_of_rule, make_attack, make_rule
from jaxbyz.environments import Environment, agent_params
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.communication import Adversary, omniscient_view, received
from jaxbyz.protocol.delivery import Delivery, Mail
from jaxbyz.protocol.placement import Places
from jaxbyz.protocol.schedules import Schedule, fixed
from jaxbyz.rules import HALF, Receiver, Rule
from jaxbyz.sampling.own_estimates import with_own_estimates
from jaxbyz.sampling.page import Drawn, Page, Sampled, Sampler, sampler

TRUST_STREAM = 2**32 - 1  # of the key of the gradient messages, which is also split into three
SERVER_LIMIT = HALF  # a server tolerates fewer Byzantine workers than honest ones


class ServerEstimate(NamedTuple):
    """What the server knows after sampling.

    Attributes:
        sampled: `[K]`, how the sampling of each worker went; K copies if the server sampled alone.
        v: `[1, D]`, the estimate v_t.
        shares: `[1, K]`, share of each worker in it; zero if the server sampled alone.
        rules: the next state of the aggregator, `[1, …]`.
        attack_memory: what the attack remembers.
        mail: earlier messages of the workers that may still arrive.
        ratio: see `Page.ratio_window`; empty if there is no window.
    """

    sampled: Sampled
    v: Float[Array, "1 D"]
    shares: Float[Array, "1 K"]
    rules: Any
    attack_memory: Any
    mail: Mail
    ratio: Float[Array, " 1"] | tuple[()] = ()


def byzpg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    assumed_byzantine: int | None = None,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    server_samples: bool = True,
    delivery: Delivery = DEFAULT_DELIVERY,
    make_sampler: Callable[..., Sampler] = sampler,
    unsafe: bool = False,
) -> Algorithm:
    """Build ByzPG: a trusted server aggregates the workers' large batches and samples the small batches alone.

    Args:
        environment: the task.
        policy: the policy that is trained.
        agents: the number of workers K.
        aggregator: a rule, a name such as `"bucketing+rfa"`, or a function `([key,] messages) -> [D]`.
        optimizer: the optax optimizer of the server.
        byzantine: the number of Byzantine workers f.
        assumed_byzantine: the number that the named rule defends against; by default f.
        attack: an attack, its name, or a function `(key, messages, mask) -> messages`; None for no attack.
        schedule: who is Byzantine in which iteration; by default always the last f workers.
        page: batch sizes and estimator.
        p: the probability of a large batch.
        period: a large batch every `period` iterations instead of the coin.
        server_samples: if False, the workers sample the small batches too, and the server aggregates those as well, as
            the published code of the paper does.
        delivery: which messages reach the server; by default all of them.
        make_sampler: how workers sample and estimate; the PAGE switch unless another algorithm is built from this one.
        unsafe: allow more Byzantine workers than the named rule tolerates among those whose messages it sees.

    Raises:
        UsageError: if a name is unknown, or f exceeds a limit and `unsafe` is False.
    """
    check_parts(environment, policy, optimizer)
    check_federation(agents, byzantine, assumed_byzantine, p, period)
    page.check()
    if not server_samples:
        page.check_without_server()
    K, D = agents, policy.size
    delivery.check()
    defended, voters = byzantine if assumed_byzantine is None else assumed_byzantine, delivery.voters(K)
    server = Limit("the", "server", SERVER_LIMIT, voters, byzantine)
    check_limits([server, *limits_of_rule(aggregator, voters, defended)], unsafe)
    aggregator = make_rule(aggregator, voters, defended, unsafe=unsafe)
    attack = make_attack(attack, K, byzantine)
    schedule = fixed(K, byzantine) if schedule is None else schedule
    never_small = always_large(p, period)
    server_alone = server_samples and not never_small  # whether the server samples the small batches
    if page.uses_critic and server_alone:
        raise UsageError("baseline=critic: the server samples small batches and has no critic; use p=1")
    sample = make_sampler(environment, policy, page, attack.interference(environment.actions), never_small)
    if page.previous == "own" and not (server_samples or never_small):
        sample = with_own_estimates(sample, policy.size, page)
    one_device = Places(K)
    if aggregator.trusts_own and page.uses_critic:
        raise UsageError("baseline=critic: the server samples a batch of its own for fltrust and has no critic")

    def own_batch(theta: Float[Array, "1 D"], keys: IterationKeys) -> Float[Array, " D"]:
        """Return the estimate of B trajectories that the server samples itself, in the nominal environment."""
        root_of_trust = sampler(environment, policy, page._replace(N=page.B, epochs=1, minibatches=1), None, True)
        key = jax.random.fold_in(keys.gradients, TRUST_STREAM)
        return root_of_trust.large(theta, key[None], jnp.zeros((1,), bool)).sampled.estimate[0]

    def init(key: PRNGKeyArray, places: Places = one_device) -> State:
        key, key_theta = jax.random.split(key)
        theta_0, critics = policy.init(key_theta)[None], initial_critics(sample, key, places)
        state = initial_state(key, theta_0, optimizer, aggregator, K, attack, critics, delivery)
        return state if page.ratio_window is None else state._replace(ended=jnp.bool_(False))

    def step(state: State, coin: Array, places: Places = one_device) -> tuple[State, Metrics]:
        keys = iteration_keys(state, K)
        mask = schedule(keys.schedule, state.step)

        def workers_sample(state: State, keys: IterationKeys, mask: Array) -> Drawn:
            """Lines 5 and 6: every worker samples."""
            known = (state.parameters, state.anchor, previous_estimate(page, state))
            theta, before, v_before = (jnp.tile(x, (places.per_device, 1)) for x in known)
            interferers = attack.interferers(state.attack_memory, mask)
            who = places.local((keys.agents, interferers, agent_params(environment, state.key, K)))
            if server_samples:
                size = large_batch_size(page, keys)
                sizes = (jnp.full(places.per_device, size),) if page.batch_spread else ()
                return sample.large(theta, *who, state.critic, *sizes)
            return sample.either(coin, theta, before, v_before, *who, state.critic)

        def aggregate(state: State, keys: IterationKeys, mask: Array, own: Sampled) -> ServerEstimate:
            """Lines 7 to 9: every worker sends ṽ_t^(k); v_t ← Aggregate(ṽ_t^(1), …, ṽ_t^(K))."""
            v_tilde, rule_state = places.gather(own), jax.tree.map(lambda leaf: leaf[0], state.rules)
            key_forge, key_rule, key_guess = jax.random.split(keys.gradients, 3)
            adversary = Adversary(mask, attack.gradients, attack.equivocates, state.attack_memory, state.step)
            arrivals = delivery.draw(keys.delivery, mask, state.mail)
            heard = arrivals.heard(aggregator, at_server=True)
            messages, mail = arrivals.collect(v_tilde.estimate, state.mail)
            view = omniscient_view(key_guess, heard, rule_state, messages, adversary)
            sent = received(key_forge, view, attack.gradients, jnp.int32(0), restore_own=False)
            server = Receiver(sent[0], jnp.int32(0), large_batch_size(page, keys) if page.batch_spread else None)
            if aggregator.trusts_own:
                server = Receiver(own_batch(state.parameters, keys), jnp.int32(-1))
            v = heard.apply(key_rule, sent, server, rule_state)
            rules = jax.tree.map(lambda leaf: leaf[None], v.state)
            ratio = () if page.ratio_window is None else jnp.ones(1)
            return ServerEstimate(v_tilde, v.rows, v.shares, rules, attack.remember(view), mail, ratio)

        def ask_workers(state: State, keys: IterationKeys, mask: Array) -> ServerEstimate:
            return aggregate(state, keys, mask, workers_sample(state, keys, mask).sampled)

        def sample_alone(state: State, keys: IterationKeys, mask: Array) -> ServerEstimate:
            """Lines 11 and 12: the server samples B trajectories in the nominal environment and corrects v_{t−1}."""
            v_before = previous_estimate(page, state)
            drawn = sample.small(state.parameters, state.anchor, v_before, keys.agents[:1], jnp.zeros((1,), bool))
            own = drawn.sampled
            copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (K, *leaf.shape[1:])), own)
            unchanged = (state.rules, state.attack_memory, state.mail)
            return ServerEstimate(copies, own.estimate, jnp.zeros((1, K)), *unchanged, drawn.ratio)

        workers_send = coin if server_alone else jnp.bool_(True)
        arrivals = delivery.draw(keys.delivery, mask, state.mail)  # who takes part, for critics and metrics
        drawn = None if server_alone else workers_sample(state, keys, mask)

        def lines_4_to_14(now: State, index: Int[Array, ""] | int) -> tuple[State, Sampled, StepResults]:
            # Lines 4 to 13: v_t from the workers if c_t = 1, from the server alone otherwise.
            if drawn is None:
                estimate = cond_on_coin(coin, ask_workers, sample_alone, now, keys, mask)
            else:
                copies = jnp.tile(now.parameters, (places.per_device, 1))
                own = sample.estimate(drawn, copies, index)
                estimate = aggregate(now, message_keys(keys, index), mask, own)
            # Line 14: θ_{t+1} = θ_t + η v_t, or the step of another optimizer.
            theta, optimizer_state = optimizer_step(optimizer, estimate.v, now.optimizer, now.parameters)

            anchor, v = next_anchor(page, coin, state, theta, estimate.v)
            following = now._replace(
                parameters=theta, anchor=anchor, estimate=v, optimizer=optimizer_state, rules=estimate.rules,
                attack_memory=estimate.attack_memory, mail=estimate.mail,
            )  # fmt: skip
            following = end_inner_loop(page, coin, now, following, estimate.ratio)
            measured = StepResults(
                aggregate_norms=jnp.tile(jnp.linalg.norm(estimate.v, axis=1), K),
                shares=jnp.tile(estimate.shares, (K, 1)), finite_proposals=jnp.ones(K, bool),
                parameters=jnp.tile(following.parameters, (K, 1)), rounds=jnp.int32(0),
                bytes_sent=central_bytes(delivery.present(K), D, workers_send, delivery.message_bytes(D)),
                bytes_moved=central_moved(places, D, workers_send), takes_part=arrivals.takes_part,
            )  # fmt: skip
            return following, estimate.sampled, measured

        # All lines after sampling are repeated if the batch is used more than once.
        following, sampled, measured = repeat(page.messages, lines_4_to_14, state)
        critic = state.critic if drawn is None else arrivals.only_present(drawn.critic, state.critic, places)
        following = following._replace(step=state.step + 1, critic=critic)
        metrics = iteration_metrics(page, coin, sampled, mask, measured)
        return following, count_trajectories(page, coin, keys, state, metrics)

    return Algorithm(init, step, K, p, page, policy, environment, period, central=True)
