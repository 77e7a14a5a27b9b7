"""DecByzPG (Algorithm 2): policy gradient without a server, tolerant of Byzantine agents."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from jaxbyz.algorithms.base import (
    DEFAULT_PAGE,
    Algorithm,
    State,
    always_large,
    ascend,
    initial_critics,
    initial_state,
    iteration_keys,
    next_anchor,
    previous_estimate,
)
from jaxbyz.algorithms.messages import message_keys, repeat
from jaxbyz.algorithms.metrics import (
    Metrics,
    StepResults,
    decentralised_bytes,
    decentralised_moved,
    finite_rows,
    iteration_metrics,
)
from jaxbyz.attacks import Attack
from jaxbyz.components import make_agreement, make_attack, make_rule
from jaxbyz.environments import Environment, agent_params
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.communication import Adversary, exchange, omniscient_view
from jaxbyz.protocol.placement import Places
from jaxbyz.protocol.schedules import Schedule, fixed
from jaxbyz.rules import Rule
from jaxbyz.sampling.page import Page, Sampled, sampler


def decbyzpg(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    agreement: Agreement | Rule | str | None,
    optimizer: optax.GradientTransformation,
    byzantine: int = 0,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    unsafe: bool = False,
) -> Algorithm:
    """Build DecByzPG: every agent samples, aggregates what it receives, takes a step, and agrees on parameters.

    Args:
        environment: the task.
        policy: the policy that is trained.
        agents: the number of agents K.
        aggregator: a rule, a name such as `"bucketing+rfa"`, or a function `([key,] messages) -> [D]`.
        agreement: an `Agreement`, a rule, a name such as `"mda"` or `"mda:rounds=6"` (4 rounds by default), or None.
        optimizer: an optax optimizer; every agent keeps its own state.
        byzantine: the number of Byzantine agents f that the rules defend against.
        attack: an attack, its name, or a function `(key, messages, mask) -> messages`; None for no attack.
        schedule: who is Byzantine in which iteration; by default always the last f agents.
        page: batch sizes and estimator.
        p: the probability of a large batch.
        period: a large batch every `period` iterations instead of the coin.
        unsafe: allow more Byzantine agents than the named rules tolerate.

    Raises:
        UsageError: if a name is unknown, or f exceeds the limit of a named rule and `unsafe` is False.
    """
    page.check()
    K, D = agents, policy.size
    aggregator = make_rule(aggregator, K, byzantine, unsafe=unsafe)
    agreement = make_agreement(agreement, K, byzantine, unsafe=unsafe)
    attack = make_attack(attack, K, byzantine)
    schedule = fixed(K, byzantine) if schedule is None else schedule
    sample = sampler(environment, policy, page, attack.interference(environment.actions), always_large(p, period))
    one_device = Places(K)

    def init(key: PRNGKeyArray, places: Places = one_device) -> State:
        key, key_theta = jax.random.split(key)
        theta_0 = jnp.tile(policy.init(key_theta), (places.per_device, 1))
        return initial_state(key, theta_0, optimizer, aggregator, K, attack, initial_critics(sample, key, places))

    def step(state: State, coin: Array, places: Places = one_device) -> tuple[State, Metrics]:
        t, theta = state.step, state.parameters
        keys = iteration_keys(state, K)
        mask = schedule(keys.schedule, t)

        # Line 5: sample M = N or B trajectories.
        v_before = previous_estimate(page, state)
        who = places.local((keys.agents, mask, agent_params(environment, state.key, K)))
        drawn = sample.either(coin, theta, state.anchor, v_before, *who, state.critic)

        def lines_6_to_9(now: State, index: Int[Array, ""] | int) -> tuple[State, Sampled, StepResults]:
            key = message_keys(keys, index)
            on_gradients = Adversary(mask, attack.gradients, attack.equivocates, now.attack_memory, t)
            on_parameters = on_gradients._replace(forge=attack.parameters)

            # Line 6: estimate ṽ_t^(k).
            own = sample.estimate(drawn, now.parameters, index)
            v_tilde = places.gather(own)
            # Line 7: v_t^(k) ← Aggregate(ṽ_t^(1), …, ṽ_t^(K)).
            v = exchange(key.gradients, aggregator, now.rules, v_tilde.estimate, on_gradients, places)
            # Line 8: θ̃_{t+1}^(k) = θ_t^(k) + η v_t^(k), or the step of another optimizer.
            theta_tilde, optimizer_state = ascend(optimizer, v.rows, now.optimizer, now.parameters)
            # Line 9: θ_{t+1}^(k) ← Avg-Agree_κ(θ̃_{t+1}^(1), …, θ̃_{t+1}^(K)).
            agreed = run_agreement(key.parameters, agreement, theta_tilde, on_parameters, places)

            first_rule_state = places.first_agent(now.rules)
            view = omniscient_view(key.gradients, aggregator, first_rule_state, v_tilde.estimate, on_gradients)
            estimate = own.estimate if page.previous == "own" else v.rows
            anchor, estimate = next_anchor(page, coin, state, theta_tilde, estimate)
            following = now._replace(
                parameters=agreed.parameters, anchor=anchor, estimate=estimate, optimizer=optimizer_state,
                rules=v.state, attack_memory=attack.remember(view),
            )  # fmt: skip
            norms, shares, finite = places.gather(
                (jnp.linalg.norm(v.rows, axis=1), v.shares, finite_rows(theta_tilde).astype(jnp.float32))
            )
            rounds = agreed.rounds.astype(jnp.float32)
            measured = StepResults(
                aggregate_norms=norms, shares=shares, finite_proposals=finite > 0,
                parameters=agreed.everyone, rounds=agreed.rounds, bytes_sent=decentralised_bytes(K, D, rounds),
                bytes_moved=decentralised_moved(places, aggregator, D, rounds),
            )  # fmt: skip
            return following, v_tilde, measured

        # The lines after sampling are repeated if the batch is used more than once.
        following, sampled, measured = repeat(page.messages, lines_6_to_9, state)
        following = following._replace(step=t + 1, critic=drawn.critic)
        return following, iteration_metrics(page, coin, sampled, mask, measured)

    return Algorithm(init, step, K, p, page, policy, environment, period)
