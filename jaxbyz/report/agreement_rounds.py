"""Repeat the first iterations of a run and record every agreement round, for animations."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.algorithms import State
from jaxbyz.algorithms.decbyzpg import checked_agreement
from jaxbyz.algorithms.rounds import make_parts
from jaxbyz.attacks import Attack
from jaxbyz.configuration.building import build
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.exchange import Adversary, omniscient_view, sent_to
from jaxbyz.protocol.participation import only_present
from jaxbyz.protocol.placement import Places
from jaxbyz.runs.plan import make_plan
from jaxbyz.trained.start_from import start_parameters


class AgreementTrace(NamedTuple):
    """Agreement of T iterations, round by round.

    Attributes:
        parameters: `[T, κ+1, K, D]`, the agents' parameters before the first round and after each round.
        sent: `[T, κ+1, K, D]`; `sent[:, r]` are the messages that the first honest agent receives in round r + 1, for
            r = κ in a further round that the run does not have. Honest rows equal `parameters`.
        byzantine: `[T, K]`, True for Byzantine agents.
    """

    parameters: np.ndarray
    sent: np.ndarray
    byzantine: np.ndarray


def trace_agreement(
    key: PRNGKeyArray,
    agreement: Agreement,
    parameters: Float[Array, "K D"],
    mask: Bool[Array, " K"],
    attack: Attack,
    memory: Any = (),
    step: Array | int = 0,
) -> tuple[Float[Array, "rounds K D"], Float[Array, "rounds K D"]]:
    """Run one agreement and return `parameters` and `sent` of its rounds, `[κ+1, K, D]` each (see `AgreementTrace`).

    Args:
        key: the key that `run_agreement` would get.
        agreement: the agreement to trace.
        parameters: `[K, D]`, the proposals.
        mask: `[K]`, True for Byzantine agents.
        attack: how they attack the parameters.
        memory: what the attack remembers from earlier iterations.
        step: the iteration t.
    """
    receiver = jnp.argmin(mask).astype(jnp.int32)
    state = agreement.rule.init(*parameters.shape)
    adversary = Adversary(mask, attack.parameters, attack.equivocates, memory, step)

    def after(rounds: Any) -> tuple[Array, Array]:
        held = run_agreement(key, agreement._replace(rounds=rounds), parameters, adversary).parameters
        key_forge, _, key_guess = jax.random.split(jax.random.fold_in(key, rounds), 3)
        view = omniscient_view(key_guess, agreement.rule, state, held, adversary)
        return held, sent_to(key_forge, view, attack.parameters, receiver, restore_own=False)

    return jax.lax.map(after, jnp.arange(agreement.rounds + 1))


def trace_run(config: Config, seed: int = 0, iterations: int = 1) -> AgreementTrace:
    """Repeat the first iterations of one seed, with the run's keys and coins, and trace their agreement.

    Args:
        config: the configuration of the run.
        seed: which seed of the run, counted from 0.
        iterations: how many iterations; at most those of the run are traced.

    Raises:
        UsageError: if the algorithm does not agree on parameters, or the run has no such seed.
    """
    if config.agreement == "none":
        raise UsageError(f"algorithm={config.algorithm}, agreement={config.agreement}: there is no agreement to show")
    if not 0 <= seed < config.seeds:
        raise UsageError(f"run_seed={seed}: the run has {config.seeds} seeds, numbered from 0")
    plan = make_plan(config)
    coins = plan.coins if plan.coins.ndim == 1 else plan.coins[seed]
    iterations = min(iterations, len(coins))
    alone = dataclasses.replace(config, agreement="none")
    without_agreement = build(alone, len(coins), read_start=start_parameters)
    parts, places = make_parts(config), Places(config.agents)
    agreement = checked_agreement(config, parts.channel.present, without_agreement.policy.size)
    assert agreement is not None

    def step(state: State, coin: Array) -> tuple[State, tuple[Array, Array, Array]]:
        proposed, metrics = without_agreement.step(state, coin)
        now = parts.begin(state, coin, places)
        heard = agreement._replace(rule=parts.channel.hear_parameters(now, agreement.rule))
        held, sent = trace_agreement(
            now.keys.parameters, heard, proposed.parameters, now.mask, parts.attack, state.attack_memory, state.step
        )
        if now.present is not None:
            held = jax.vmap(lambda after: only_present(now, after, state.parameters))(held)
        return proposed._replace(parameters=held[-1]), (held, sent, metrics.byzantine)

    run = jax.jit(lambda key, coins: jax.lax.scan(step, without_agreement.init(key), coins)[1])
    return AgreementTrace(*map(np.asarray, run(plan.keys[seed], jnp.asarray(coins[:iterations]))))


def project_to_plane(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Project points `[..., D]` onto the two leading principal directions of `reference` `[n, D]`, about its mean.

    Returns:
        Coordinates `[..., 2]`; directions that `reference` lacks are zero.
    """
    mean = reference.mean(axis=0)
    _, _, directions = np.linalg.svd(reference - mean, full_matrices=False)
    basis = np.zeros((2, reference.shape[1]))
    basis[: len(directions[:2])] = directions[:2]
    return (points - mean) @ basis.T
