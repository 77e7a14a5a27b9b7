"""The ensemble of policies from disjoint groups of agents, which vote on every action."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from jaxbyz.algorithms.base import (
    DEFAULT_PAGE,
    Algorithm,
    State,
    always_large,
    check_federation,
    check_parts,
    initial_critics,
    iteration_keys,
    next_anchor,
    optimizer_step,
    previous_estimate,
)
from jaxbyz.algorithms.messages import message_keys, repeat
from jaxbyz.algorithms.metrics import Metrics, StepResults, central_bytes, central_moved, iteration_metrics
from jaxbyz.attacks import Attack
from jaxbyz.components import group_members, make_attack, make_group_rules
from jaxbyz.environments import Environment, agent_params
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy, voting
from jaxbyz.protocol.communication import Adversary, omniscient_view, received
from jaxbyz.protocol.placement import Places
from jaxbyz.protocol.schedules import Schedule, fixed
from jaxbyz.rules import Receiver, Rule, check_rule
from jaxbyz.sampling.own_estimates import with_own_estimates
from jaxbyz.sampling.page import Page, Sampled, sampler

DEFAULT_GROUPS = 3


def ensemble(
    environment: Environment,
    policy: Policy,
    *,
    agents: int,
    aggregator: Rule | str | Callable[..., Array],
    optimizer: optax.GradientTransformation,
    groups: int = DEFAULT_GROUPS,
    byzantine: int = 0,
    assumed_byzantine: int | None = None,
    attack: Attack | str | Callable[..., Array] | None = None,
    schedule: Schedule | None = None,
    page: Page = DEFAULT_PAGE,
    p: float = 0.2,
    period: int | None = None,
    unsafe: bool = False,
) -> Algorithm:
    """Build the ensemble: G groups of agents train one policy each, and their policies vote on actions once trained.

    Agent k belongs to group k mod G, so that Byzantine agents sit in as many groups as possible. A trusted server
    aggregates the messages of each group on its own, as in ByzPG whose workers sample the small batches too. The
    policy of the result is `voting`: its parameters are those of all groups, `[G·D]` in one row. While training, every
    agent follows the policy of its group, and the metrics describe these policies; `diameter` is the largest distance
    between two groups.

    Args:
        environment: the task.
        policy: the policy of each group.
        agents: the number of agents K.
        aggregator: the rule of every group: a name, a `Rule`, or a function `([key,] messages) -> [D]`.
        optimizer: the optax optimizer of every group.
        groups: the number of groups G.
        byzantine: the number of Byzantine agents f.
        assumed_byzantine: how many of the last agents the named rules defend against, each in its group; by default f.
        attack: an attack, its name, or a function `(key, messages, mask) -> messages`, applied in every group.
        schedule: who is Byzantine in which iteration; by default always the last f agents.
        page: batch sizes and estimator.
        p: the probability of a large batch.
        period: a large batch every `period` iterations instead of the coin.
        unsafe: allow that half of the groups or more have more Byzantine agents than the named rule tolerates.

    Raises:
        UsageError: if there are more groups than agents, or too many groups exceed the limit of the named rule.

    References:
        Fang, Wang and Gong, Provably robust federated reinforcement learning, 2025.
    """
    check_parts(environment, policy, optimizer)
    check_federation(agents, byzantine, assumed_byzantine, p, period)
    page.check()
    page.check_without_server()
    K, G, D = agents, groups, policy.size
    group_of, members = np.arange(K) % G, group_members(K, G)
    defended = byzantine if assumed_byzantine is None else assumed_byzantine
    rules = make_group_rules(aggregator, K, defended, G, unsafe=unsafe)
    for rule, own in zip(rules, members, strict=True):
        check_rule(rule, len(own), D)
    if any(rule.trusts_own for rule in rules):
        raise UsageError("aggregator=fltrust: the servers of an ensemble do not sample")
    attack = make_attack(attack, K, byzantine)
    schedule = fixed(K, byzantine) if schedule is None else schedule
    never_small = always_large(p, period)
    sample = sampler(environment, policy, page, attack.interference(environment.actions), never_small)
    if page.previous == "own" and not never_small:
        sample = with_own_estimates(sample, D, page)
    one_device = Places(K)

    def init(key: PRNGKeyArray, places: Places = one_device) -> State:
        key, key_theta = jax.random.split(key)
        theta_0 = jax.vmap(policy.init)(jax.random.split(key_theta, G))
        row = theta_0.reshape(1, G * D)
        rule_states = tuple(rule.init(len(own), D) for rule, own in zip(rules, members, strict=True))
        memories = tuple(attack.init(len(own), D) for own in members)
        return State(
            jnp.int32(0), key, row, row, jnp.zeros_like(row), jax.vmap(optimizer.init)(theta_0), rule_states, memories,
            initial_critics(sample, key, places),
        )  # fmt: skip

    def step(state: State, coin: Array, places: Places = one_device) -> tuple[State, Metrics]:
        keys = iteration_keys(state, K)
        mask = schedule(keys.schedule, state.step)
        own_group = places.local(jnp.asarray(group_of))

        def of_agents(row: Array) -> Array:
            """Return what each agent on this device has from its group: `[1, G·D]` becomes `[A, D]`."""
            return row.reshape(G, D)[own_group]

        known = map(of_agents, (state.parameters, state.anchor, previous_estimate(page, state)))
        interferers = attack.interferers(state.attack_memory[0], mask)  # the choice of the attack is that of all groups
        who = places.local((keys.agents, interferers, agent_params(environment, state.key, K)))
        drawn = sample.either(coin, *known, *who, state.critic)

        def rest(now: State, index: Int[Array, ""] | int) -> tuple[State, Sampled, StepResults]:
            key = message_keys(keys, index)
            v_tilde = places.gather(sample.estimate(drawn, of_agents(now.parameters), index))
            rows, shares, rule_states, memories = [], jnp.zeros((G, K)), [], []
            for g, own in enumerate(members):  # v^(g) ← Aggregate of the messages of group g
                key_forge, key_rule, key_guess = jax.random.split(jax.random.fold_in(key.gradients, g), 3)
                adversary = Adversary(mask[own], attack.gradients, attack.equivocates, now.attack_memory[g], state.step)
                view = omniscient_view(key_guess, rules[g], now.rules[g], v_tilde.estimate[own], adversary)
                sent = received(key_forge, view, attack.gradients, jnp.int32(0), restore_own=False)
                v = rules[g].apply(key_rule, sent, Receiver(sent[0], jnp.int32(0)), now.rules[g])
                rows.append(v.rows[0])
                shares = shares.at[g, own].set(v.shares[0])
                rule_states.append(v.state)
                memories.append(attack.remember(view))
            v_all = jnp.stack(rows)
            # θ^(g) ← θ^(g) + η v^(g), or the step of another optimizer
            theta, optimizer_state = optimizer_step(optimizer, v_all, now.optimizer, now.parameters.reshape(G, D))

            row = theta.reshape(1, G * D)
            anchor, estimate = next_anchor(page, coin, state, row, v_all.reshape(1, G * D))
            following = now._replace(
                parameters=row, anchor=anchor, estimate=estimate, optimizer=optimizer_state, rules=tuple(rule_states),
                attack_memory=tuple(memories),
            )  # fmt: skip
            measured = StepResults(
                aggregate_norms=jnp.linalg.norm(v_all, axis=1)[group_of], shares=shares[group_of],
                finite_proposals=jnp.ones(K, bool), parameters=theta[group_of], rounds=jnp.int32(0),
                bytes_sent=central_bytes(K, D, jnp.bool_(True)), bytes_moved=central_moved(places, D, jnp.bool_(True)),
            )  # fmt: skip
            return following, v_tilde, measured

        following, sampled, measured = repeat(page.messages, rest, state)
        following = following._replace(step=state.step + 1, critic=drawn.critic)
        return following, iteration_metrics(page, coin, sampled, mask, measured)

    joint = voting(policy, environment.actions, G)
    return Algorithm(init, step, K, p, page, joint, environment, period, central=True)
