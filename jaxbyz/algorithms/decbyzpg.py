"""DecByzPG (Algorithm 2): policy gradient without a server, tolerant of Byzantine agents."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from jaxbyz.algorithms.base import (
    DEFAULT_DELIVERY,
    DEFAULT_PAGE,
    Algorithm,
    State,
    always_large,
    check_federation,
    check_parts,
    choose,
    initial_critics,
    initial_state,
    iteration_keys,
    next_anchor,
    optimizer_step,
    own_step,
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
from jaxbyz.components import (
    check_limits,
    limits_of_agreement,
    limits_of_rule,
    make_agreement,
    make_attack,
    make_rule,
    remembers_agents,
)
from jaxbyz.environments import Environment, agent_params
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.communication import Adversary, exchange, omniscient_view
from jaxbyz.protocol.delivery import Delivery
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
    assumed_byzantine: int | None = None,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    delivery: Delivery = DEFAULT_DELIVERY,
    local_steps: int = 1,
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
        byzantine: the number of Byzantine agents f.
        assumed_byzantine: the number that the named rules defend against; by default f.
        attack: an attack, its name, or a function `(key, messages, mask) -> messages`; None for no attack.
        schedule: who is Byzantine in which iteration; by default always the last f agents.
        page: batch sizes and estimator.
        p: the probability of a large batch.
        period: a large batch every `period` iterations instead of the coin.
        delivery: which messages reach their receivers; by default all of them.
        local_steps: messages are exchanged in every iteration of this number; in the others, every agent takes a step
            along its own estimate.
        unsafe: allow more Byzantine agents than the named rules tolerate among those whose messages they see.

    Raises:
        UsageError: if a name is unknown, or f exceeds the limit of a named rule and `unsafe` is False.
    """
    check_parts(environment, policy, optimizer)
    check_federation(agents, byzantine, assumed_byzantine, p, period)
    page.check()
    page.check_without_server()
    delivery.check()
    K, D, present = agents, policy.size, delivery.present(agents)
    defended, voters = byzantine if assumed_byzantine is None else assumed_byzantine, delivery.voters(agents)
    rule_limits = limits_of_rule(aggregator, voters, defended)
    check_limits([*rule_limits, *limits_of_agreement(agreement, present, defended)], unsafe)
    aggregator = make_rule(aggregator, voters, defended, unsafe=unsafe)
    agreement = make_agreement(agreement, present, defended, unsafe=unsafe)
    if local_steps < 1:
        raise UsageError(f"local_steps={local_steps}: must be at least 1")
    committee = None if agreement is None else agreement.rule.committee
    if committee is not None and (present < K or delivery.drop):
        raise UsageError("agreement=committees: needs participation=1 and drop=0")
    attack = make_attack(attack, K, byzantine)
    if committee is not None and attack.parameters is not None and remembers_agents(attack, K, D):
        raise UsageError(
            "agreement=committees: the attack remembers single agents, who meet in other committees in every round; "
            "use another attack, or the same one with on=gradients"
        )
    schedule = fixed(K, byzantine) if schedule is None else schedule
    sample = sampler(environment, policy, page, attack.interference(environment.actions), always_large(p, period))
    one_device = Places(K)

    def init(key: PRNGKeyArray, places: Places = one_device) -> State:
        key, key_theta = jax.random.split(key)
        theta_0 = jnp.tile(policy.init(key_theta), (places.per_device, 1))
        critics = initial_critics(sample, key, places)
        return initial_state(key, theta_0, optimizer, aggregator, K, attack, critics, delivery)

    def step(state: State, coin: Array, places: Places = one_device) -> tuple[State, Metrics]:
        t, theta = state.step, state.parameters
        keys = iteration_keys(state, K)
        mask = schedule(keys.schedule, t)
        exchanging = (t + 1) % local_steps == 0

        # Line 5: sample M = N or B trajectories.
        v_before = previous_estimate(page, state)
        interferers = attack.interferers(state.attack_memory, mask)
        who = places.local((keys.agents, interferers, agent_params(environment, state.key, K)))
        drawn = sample.either(coin, theta, state.anchor, v_before, *who, state.critic)

        def lines_6_to_9(now: State, index: Int[Array, ""] | int) -> tuple[State, Sampled, StepResults]:
            key = message_keys(keys, index)
            on_gradients = Adversary(mask, attack.gradients, attack.equivocates, now.attack_memory, t)
            on_parameters = on_gradients._replace(forge=attack.parameters)
            arrivals = delivery.draw(keys.delivery, mask, now.mail)
            heard = arrivals.heard(aggregator)

            # Line 6: estimate ṽ_t^(k).
            own = sample.estimate(drawn, now.parameters, index)
            v_tilde = places.gather(own)
            # Line 7: v_t^(k) ← Aggregate(ṽ_t^(1), …, ṽ_t^(K)).
            messages, mail = arrivals.collect(v_tilde.estimate, now.mail)
            v = exchange(key.gradients, heard, now.rules, messages, on_gradients, places)
            if local_steps > 1:
                v, mail = choose(exchanging, (v, mail), (own_step(own.estimate, now.rules, places), now.mail))
            # Line 8: θ̃_{t+1}^(k) = θ_t^(k) + η v_t^(k), or the step of another optimizer.
            stepped = optimizer_step(optimizer, v.rows, now.optimizer, now.parameters)
            theta_tilde, optimizer_state = arrivals.only_present(stepped, (now.parameters, now.optimizer), places)
            # Line 9: θ_{t+1}^(k) ← Avg-Agree_κ(θ̃_{t+1}^(1), …, θ̃_{t+1}^(K)).
            agreed = run_agreement(key.parameters, arrivals.heard_in(agreement), theta_tilde, on_parameters, places)
            gathers = agreed.rounds.astype(jnp.float32)
            if local_steps > 1:
                agreed = choose(
                    exchanging, agreed, run_agreement(key.parameters, None, theta_tilde, on_parameters, places)
                )
            theta_next = arrivals.only_present(agreed.parameters, now.parameters, places)

            first_rule_state = places.first_agent(now.rules)
            view = omniscient_view(key.gradients, heard, first_rule_state, messages, on_gradients)
            memory = attack.remember(view)
            if local_steps > 1:
                memory = choose(exchanging, memory, now.attack_memory)
            estimate = own.estimate if page.previous == "own" else v.rows
            compared = next_anchor(page, coin, state, theta_tilde, estimate)
            kept = now.anchor, now.estimate, now.rules
            anchor, estimate, rules = arrivals.only_present((*compared, v.state), kept, places)
            following = now._replace(
                parameters=theta_next, anchor=anchor, estimate=estimate, optimizer=optimizer_state,
                rules=rules, attack_memory=memory, mail=mail,
            )  # fmt: skip
            norms, shares, finite = places.gather(
                (jnp.linalg.norm(v.rows, axis=1), v.shares, finite_rows(theta_tilde).astype(jnp.float32))
            )
            rounds = agreed.rounds.astype(jnp.float32)
            before = agreed.everyone if arrivals.present is None else places.gather(now.parameters)
            measured = StepResults(
                aggregate_norms=norms, shares=shares, finite_proposals=finite > 0,
                parameters=arrivals.only_present(agreed.everyone, before), rounds=agreed.rounds,
                bytes_sent=exchanging * decentralised_bytes(present, D, rounds, delivery.message_bytes(D), committee),
                bytes_moved=decentralised_moved(places, delivery.sized(aggregator), D, gathers),
                takes_part=arrivals.takes_part,
            )  # fmt: skip
            return following, v_tilde, measured

        # The lines after sampling are repeated if the batch is used more than once.
        following, sampled, measured = repeat(page.messages, lines_6_to_9, state)
        critic = delivery.draw(keys.delivery, mask, state.mail).only_present(drawn.critic, state.critic, places)
        following = following._replace(step=t + 1, critic=critic)
        return following, iteration_metrics(page, coin, sampled, mask, measured)

    return Algorithm(init, step, K, p, page, policy, environment, period)
