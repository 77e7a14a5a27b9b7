"""DecByzPG (Algorithm 2): policy gradient without a server, tolerant of Byzantine agents."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxbyz.algorithms.absent_agents import with_absent_agents, with_absent_receivers
from jaxbyz.algorithms.agents import Agents, initial_private, initial_state, make_agents
from jaxbyz.algorithms.audits import with_audits, with_exclusion
from jaxbyz.algorithms.base import Algorithm, State
from jaxbyz.algorithms.followed_scales import with_followed_scales
from jaxbyz.algorithms.local_steps import with_local_steps
from jaxbyz.algorithms.metrics import Measured, finite_rows, transferred_between_agents
from jaxbyz.algorithms.rounds import (
    Agree,
    Exchange,
    Parts,
    Protocol,
    Received,
    gradient_rule,
    make_parts,
    make_step,
    repeat,
)
from jaxbyz.algorithms.settings import Settings
from jaxbyz.algorithms.traits import RARELY_READ, Traits, algorithm
from jaxbyz.components import make_agreement
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import Agreed, Agreement, run_agreement
from jaxbyz.protocol.exchange import copies, exchange, omniscient_view, results_alike, round_keys
from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Rule, check_rule
from jaxbyz.sampling.page import Sampled, Sampler, sampler


@algorithm(Traits(ignores=RARELY_READ - {"audit"}))
def decbyzpg(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build DecByzPG: every agent samples, aggregates what it receives, takes a step, and agrees on parameters."""
    return decentralised_algorithm(environment, policy, settings)


def decentralised_algorithm(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build Algorithm 2 from settings that were checked."""
    K, D = settings.agents, policy.size
    parts, sampling, agents, rule, agreement = compose(environment, policy, settings)
    protocol = Protocol(exchange_gradients(parts, rule), agree_on_parameters(parts, agreement))
    if parts.channel.present < K:
        agents, protocol = with_absent_agents(agents), with_absent_receivers(protocol)
    if settings.local_steps > 1:
        protocol = with_local_steps(protocol, settings.local_steps)

    def init(key: PRNGKeyArray, places: Places = Places(K)) -> State:
        key, key_theta = jax.random.split(key)
        return initial_state(
            key, copies(policy.init(key_theta), places.per_device), settings,
            rules=copies(rule.init(parts.channel.voters, D), places.per_device),
            attack_memory=parts.attack.init(K, D), private=initial_private(sampling, key, places.per_device),
            channel=parts.channel.init(K, D),
        )  # fmt: skip

    def lines(now: Iteration, state: State) -> tuple[State, Measured]:
        # Line 5: sample M = N or B trajectories, and estimate ṽ_t^(k) if the iteration sends one message only.
        drawn, state = agents.sample(now, state)

        def one_message(now: Iteration, state: State) -> tuple[State, Measured]:
            # Line 6: the estimate ṽ_t^(k) that this message holds.
            v_tilde = agents.estimate(now, drawn, state.parameters)
            # Line 7: v_t^(k) ← Aggregate(ṽ_t^(1), …, ṽ_t^(K)).
            v, state = protocol.exchange(now, state, v_tilde)
            # Line 8: θ̃_{t+1}^(k) = θ_t^(k) + η v_t^(k), or the step of another optimizer.
            proposed = agents.optimise(now, state, v.rows, v_tilde.estimate)
            # Line 9: θ_{t+1}^(k) ← Avg-Agree_κ(θ̃_{t+1}^(1), …, θ̃_{t+1}^(K)).
            agreed = protocol.agree(now, proposed)
            return proposed._replace(parameters=agreed.parameters), measure(now.places, v, proposed, agreed)

        # Lines 6 to 9 are repeated if the iteration sends several messages.
        heard = parts.channel.hear_gradients(now, rule, state.channel)
        return repeat(settings.messages, one_message, now, state, alike=results_alike(heard, remember_alike(parts)))

    transferred = transferred_between_agents(parts.channel, rule, agreement, D, settings.messages)
    step = make_step(settings, parts, lines, transferred)
    if settings.audit:
        step = with_audits(step, settings.audit)
    return Algorithm(init, step, settings, policy, environment)


class Composition(NamedTuple):
    """What Algorithm 2 is composed of, in one program and in one process per agent alike.

    Attributes:
        parts: channel, attack and schedule.
        sampling: how agents sample and estimate.
        agents: what agents compute between messages.
        rule: what receivers make of gradients.
        agreement: how agents agree on parameters; None if they do not.
    """

    parts: Parts
    sampling: Sampler
    agents: Agents
    rule: Rule
    agreement: Agreement | None


def compose(environment: Environment, policy: Policy, settings: Settings) -> Composition:
    """Build what Algorithm 2 is composed of."""
    D, parts = policy.size, make_parts(settings)
    rule = gradient_rule(settings, parts.channel, D)
    agreement = checked_agreement(settings, parts.channel.present, D)
    if settings.audit:
        if environment.host is not None:
            raise UsageError(
                f"audit={settings.audit} with env={environment.name}: only episodes in JAX can be replayed"
            )
        parts = parts._replace(attack=with_exclusion(parts.attack, agrees=agreement is not None))
    if agreement is not None and agreement.rule.committee is not None:
        check_committees(parts, D)
    sampling = sampler(environment, policy, settings, parts.interference(environment))
    agents = make_agents(environment, settings, parts.attack, sampling)
    agents = with_followed_scales(agents, environment, policy, settings.horizon)
    return Composition(parts, sampling, agents, rule, agreement)


def checked_agreement(settings: Settings, present: int, D: int) -> Agreement | None:
    """Return the agreement among those present, whose limits were checked before; None if agents do not agree.

    Raises:
        UsageError: if its rule does not fit the number of agents.
    """
    agreement = make_agreement(settings.agreement, present, settings.defended, settings.kappa_rounds(), unsafe=True)
    if agreement is None:
        return None
    check_rule(agreement.rule, agreement.rule.committee or present, D)
    return agreement if settings.tolerance is None else agreement._replace(tolerance=settings.tolerance)


def check_committees(parts: Parts, D: int) -> None:
    """Refuse what agreement within changing committees cannot be combined with.

    Raises:
        UsageError: if messages may be missing, or the attack remembers single agents, who meet in other committees.
    """
    K, attack = parts.channel.voters, parts.attack
    if parts.channel.present < K or parts.channel.leaves_gaps:
        raise UsageError("agreement=committees: needs participation=1 and drop=0")
    one, other = (jax.eval_shape(lambda n=n: attack.init(n, D)) for n in (K, K + 1))
    if attack.parameters is not None and one != other:
        raise UsageError(
            "agreement=committees: the attack remembers single agents, who meet in other committees in every round; "
            "use another attack, or the same one with on=gradients"
        )


def remember_alike(parts: Parts) -> bool:
    """Whether all receivers have always heard the same, so that their rules remember the same."""
    return parts.channel.all_alike and not parts.attack.equivocates


def exchange_gradients(parts: Parts, rule: Rule) -> Exchange:
    """Return line 7: every agent sends its estimate to all others and aggregates what it receives."""
    channel, attack = parts.channel, parts.attack

    def to_all(now: Iteration, state: State, estimates: Sampled) -> tuple[Received, State]:
        sampled, adversary = now.places.gather(estimates), parts.on_gradients(now)
        heard = channel.hear_gradients(now, rule, state.channel)
        messages, on_the_way = channel.send(now, sampled.estimate, state.channel)
        key, states = now.keys.gradients, state.rules
        outcome = exchange(key, heard, states, messages, adversary, now.places, equal_states=remember_alike(parts))
        view = omniscient_view(round_keys(key).guess, heard, now.places.first_agent(states), messages, adversary)
        after = state._replace(rules=outcome.state, channel=on_the_way, attack_memory=attack.remember(view))
        return Received(outcome.rows, outcome.shares, sampled), after

    return to_all


def agree_on_parameters(parts: Parts, agreement: Agreement | None) -> Agree:
    """Return line 9: κ rounds of messages that bring the parameters together."""

    def agree(now: Iteration, state: State) -> Agreed:
        adversary, key = parts.on_parameters(now), now.keys.parameters
        if agreement is None:
            return run_agreement(key, None, state.parameters, adversary, now.places)
        heard = agreement._replace(rule=parts.channel.hear_parameters(now, agreement.rule))
        return run_agreement(key, heard, state.parameters, adversary, now.places)

    return agree


def measure(places: Places, v: Received, proposed: State, agreed: Agreed) -> Measured:
    """Return what the metrics need to know about one message, for all K agents."""
    finite = finite_rows(proposed.parameters).astype(jnp.float32)
    norms, shares, finite = places.gather((jnp.linalg.norm(v.rows, axis=1), v.shares, finite))
    return Measured(v.sampled, norms, shares, finite > 0, agreed.everyone, jnp.float32(v.sent), agreed.rounds)
