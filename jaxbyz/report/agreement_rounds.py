"""A run's first iterations once more, with every round of agreement kept, for pictures of it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxbyz.algorithms.base import State, iteration_keys
from jaxbyz.attacks import Attack
from jaxbyz.components import make_attack
from jaxbyz.errors import UsageError
from jaxbyz.experiments import run as experiment
from jaxbyz.experiments.config import Config, agreement_of, agrees, build
from jaxbyz.protocol.agreements import Agreement, run_agreement
from jaxbyz.protocol.communication import Adversary, omniscient_view, received


class Trace(NamedTuple):
    """Agreement round by round, on the host.

    parameters [T, κ+1, K, D]: what agents hold, before the first round and after each
    sent       [T, κ+1, K, D]: what the first honest agent hears in the round that follows; honest rows are `parameters`
    byzantine  [T, K]: who lies
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
    """Rounds of `run_agreement` one by one: what agents hold, what the first honest one hears, [κ+1, K, D] each."""
    receiver = jnp.argmin(mask).astype(jnp.int32)
    state = agreement.rule.init(*parameters.shape)
    adversary = Adversary(mask, attack.parameters, attack.equivocates, memory, step)

    def after(rounds: Any) -> tuple[Array, Array]:
        now = run_agreement(key, agreement._replace(rounds=rounds), parameters, adversary).parameters
        key_forge, _, key_guess = jax.random.split(jax.random.fold_in(key, rounds), 3)
        view = omniscient_view(key_guess, agreement.rule, state, now, adversary)
        return now, received(key_forge, view, attack.parameters, receiver, restore_own=False)

    return jax.lax.map(after, jnp.arange(agreement.rounds + 1))


def replay(config: Config, seed: int = 0, iterations: int = 1) -> Trace:
    """The first iterations of one seed of a run (counted from 0): the same keys and coins, hence the same numbers."""
    agreement = agreement_of(config)
    if agreement is None or not agrees(config):
        raise UsageError(f"algorithm={config.algorithm}, agreement={config.agreement}: there is no agreement to show")
    if not 0 <= seed < config.seeds:
        raise UsageError(f"seed={seed}: the run has seeds 0 to {config.seeds - 1}")
    K, f = config.agents, config.byzantine
    planned = experiment.plan(config)
    coins = planned.coins if planned.coins.ndim == 1 else planned.coins[seed]
    iterations = min(iterations, len(coins))
    alone = build(dataclasses.replace(config, agreement="none"), len(coins))  # proposes, and does not agree
    attack = make_attack(config.attack, K, f)

    def step(state: State, coin: Array) -> tuple[State, tuple[Array, Array, Array]]:
        proposed, metrics = alone.step(state, coin)
        held, sent = trace_agreement(
            iteration_keys(state, K).parameters, agreement, proposed.parameters, metrics.byzantine, attack,
            state.adversary, state.step,
        )  # fmt: skip
        return proposed._replace(parameters=held[-1]), (held, sent, metrics.byzantine)

    run = jax.jit(lambda key, coins: jax.lax.scan(step, alone.init(key), coins)[1])
    return Trace(*map(np.asarray, run(planned.keys[seed], jnp.asarray(coins[:iterations]))))


def plane(points: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """Project points [..., D] on the two leading principal directions of `onto` [n, D], about its mean: [..., 2]."""
    centre = onto.mean(axis=0)
    _, _, directions = np.linalg.svd(onto - centre, full_matrices=False)
    two = np.zeros((2, onto.shape[1]))
    two[: len(directions[:2])] = directions[:2]
    return (points - centre) @ two.T
