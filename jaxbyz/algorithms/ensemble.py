"""The ensemble of policies from disjoint groups of agents, which vote on every action."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxbyz.algorithms.agents import initial_private, initial_state, make_agents
from jaxbyz.algorithms.base import Algorithm, State
from jaxbyz.algorithms.byzpg import SERVER_LIMIT, worker_sampler
from jaxbyz.algorithms.followed_scales import refuse_followed_scales
from jaxbyz.algorithms.metrics import Measured, transferred_with_server
from jaxbyz.algorithms.rounds import make_parts, make_step, repeat
from jaxbyz.algorithms.settings import Settings, without_channel
from jaxbyz.algorithms.traits import RARELY_READ, Traits, algorithm
from jaxbyz.components import group_members, make_group_rules
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy, voting
from jaxbyz.protocol.channel_options import CHANNEL_OPTIONS
from jaxbyz.protocol.exchange import exchange_with_server, no_own_batch
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import check_rule

ROWS = ("parameters", "anchor", "estimate")  # of the state: one row with the vectors of all groups


@algorithm(
    Traits(
        central=True, limit=SERVER_LIMIT, ignores=RARELY_READ - {"groups"} | CHANNEL_OPTIONS | {"local_steps"},
    )
)  # fmt: skip
def ensemble(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build the ensemble: G groups of agents train one policy each, and their policies vote on actions once trained.

    Agent k belongs to group k mod G, so that Byzantine agents sit in as many groups as possible. A trusted server
    aggregates the messages of each group on its own, as in ByzPG whose workers sample the small batches too. The
    policy of the result is `voting`: its parameters are those of all groups, `[G·D]` in one row. While training, every
    agent follows the policy of its group, and the metrics describe these policies; `diameter` is the largest distance
    between two groups.

    Raises:
        UsageError: if there are more groups than agents, or half of the groups or more have more Byzantine agents than
            the named rule tolerates and `unsafe` is False.

    References:
        Fang, Wang and Gong, Provably robust federated reinforcement learning, 2025.
    """
    refuse_followed_scales(policy)
    settings = replace(without_channel(settings), small_batches="workers")
    K, G, D, parts = settings.agents, settings.groups, policy.size, make_parts(settings)
    group_of, members = np.arange(K) % G, group_members(K, G)
    rules = make_group_rules(settings.rule, K, settings.defended, G, unsafe=settings.unsafe)
    for rule, own in zip(rules, members, strict=True):
        check_rule(rule, len(own), D)
    if any(rule.trusts_own for rule in rules):
        raise UsageError("aggregator=fltrust: the servers of an ensemble do not sample")
    attack, sampling = parts.attack, worker_sampler(environment, policy, settings, parts)
    agents = make_agents(environment, settings, attack, sampling)

    def in_groups(state: State) -> State:
        """Return the state with one row per group: `[1, G·D]` becomes `[G, D]`."""
        return state._replace(**{name: getattr(state, name).reshape(G, D) for name in ROWS})

    def in_one_row(state: State) -> State:
        """Inverse of `in_groups`."""
        return state._replace(**{name: getattr(state, name).reshape(1, G * D) for name in ROWS})

    def of_agents(state: State, places: Places) -> State:
        """Return the state with one row per agent on this device, that of its group."""
        groups, own_group = in_groups(state), places.local(jnp.asarray(group_of))
        return groups._replace(**{name: getattr(groups, name)[own_group] for name in ROWS})

    def init(key: PRNGKeyArray, places: Places = Places(K)) -> State:
        key, key_theta = jax.random.split(key)
        theta_0 = jax.vmap(policy.init)(jax.random.split(key_theta, G))
        return in_one_row(initial_state(
            key, theta_0, settings,
            rules=tuple(rule.init(len(own), D) for rule, own in zip(rules, members, strict=True)),
            attack_memory=tuple(attack.init(len(own), D) for own in members),
            private=initial_private(sampling, key, places.per_device),
        ))  # fmt: skip

    def lines(now: Iteration, state: State) -> tuple[State, Measured]:
        places = now.places
        first_memory = now._replace(memory=state.attack_memory[0])  # any group's: `one_of` uses the same attack in all
        drawn, sampled_state = agents.sample(first_memory, of_agents(state, places))
        state = state._replace(private=sampled_state.private)

        def one_message(now: Iteration, state: State) -> tuple[State, Measured]:
            v_tilde = places.gather(agents.estimate(now, drawn, of_agents(state, places).parameters))
            rows, shares, rule_states, memories = [], jnp.zeros((G, K)), [], []
            for g, own in enumerate(members):  # v^(g) ← Aggregate of the messages of group g
                key = jax.random.fold_in(now.keys.gradients, g)
                adversary = parts.on_gradients(now._replace(mask=now.mask[own], memory=state.attack_memory[g]))
                messages = v_tilde.estimate[own]
                v, view = exchange_with_server(key, rules[g], state.rules[g], messages, adversary, no_own_batch)
                rows.append(v.rows[0])
                shares = shares.at[g, own].set(v.shares[0])
                rule_states.append(v.state)
                memories.append(attack.remember(view))
            v_all = jnp.stack(rows)
            # θ^(g) ← θ^(g) + η v^(g), or the step of another optimizer
            groups = agents.optimise(now, in_groups(state), v_all, v_all)
            following = groups._replace(rules=tuple(rule_states), attack_memory=tuple(memories))
            norms = jnp.linalg.norm(v_all, axis=1)
            return in_one_row(following), Measured(
                v_tilde, norms[group_of], shares[group_of], jnp.ones(K, bool), groups.parameters[group_of],
                jnp.float32(1.0), jnp.int32(0),
            )  # fmt: skip

        return repeat(settings.messages, one_message, now, state)

    step = make_step(settings, parts, lines, transferred_with_server(parts.channel, D, settings.messages))
    joint = voting(policy, environment.actions, G)
    return Algorithm(init, step, settings, joint, environment, central=True)
