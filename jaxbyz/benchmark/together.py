"""Train attacks, step sizes and seeds in one compiled program.

Which attack is used is part of the adversary's memory (`jaxbyz.attacks.one_of`), and a factor on the step size is part
of the optimizer's state, so both are data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxbyz import training
from jaxbyz.algorithms import Algorithm, Metrics, State
from jaxbyz.algorithms.base import starting_with_attack
from jaxbyz.attacks import Attack
from jaxbyz.attacks.one_of import one_of
from jaxbyz.components import make_attack
from jaxbyz.experiments.building import build, optimizer_of
from jaxbyz.experiments.config import Config
from jaxbyz.experiments.plan import make_plan
from jaxbyz.protocol.placement import Places

# (factors [G], keys [seeds], coins [T] or [seeds, T]) -> Metrics [attacks, G, seeds, T]
Train = Callable[[np.ndarray, PRNGKeyArray, np.ndarray], Metrics]


def groups_of_attacks(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Divide attacks into those that can share a program at no cost, and every other one alone."""

    def shares(attack: Attack) -> bool:
        return attack.interfere is None and not attack.equivocates

    shared = tuple(name for name in names if shares(make_attack(name, 4, 1)))  # the same for every number of agents
    others: list[tuple[str, ...]] = [(name,) for name in names if name not in shared]
    return [shared, *others] if shared else others


def train_planned(config: Config, attacks: Sequence[str], factors: np.ndarray) -> Metrics:
    """Train a configuration under these attacks, with its step size times these factors, for its own seeds.

    Returns:
        Metrics `[attacks, factors, seeds, T]`.
    """
    plan = make_plan(config)
    return train_together(config, plan.iterations, attacks)(factors, plan.keys, plan.coins)


def train_together(config: Config, iterations: int, attacks: Sequence[str] = ()) -> Train:
    """Return the function `(factors [G], keys [seeds], coins) -> Metrics [attacks, G, seeds, T]` as one program.

    The step size is that of the configuration times the factor. Coins are `[T]` or `[seeds, T]`; their values may
    differ between calls, so one program serves every p.

    Args:
        config: everything else.
        iterations: T.
        attacks: replace that of the configuration; several must be a group of `groups_of_attacks`.
    """
    built = [make_attack(name, config.agents, config.byzantine) for name in attacks]
    attack = built[0] if len(built) == 1 else one_of(built) if built else None
    algorithm = build(config, iterations, with_factor(optimizer_of(config, iterations)), attack)
    A = max(1, len(built))

    def one(index: Array, factor: Array, key: PRNGKeyArray, coins: Array) -> Metrics:
        start = starting_with_factor(starting_with_attack(algorithm, index), factor)
        return training.train(start, key, iterations, coins).metrics

    programs = {ndim: jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0 if ndim == 2 else None))) for ndim in (1, 2)}

    def train(factors: np.ndarray, keys: PRNGKeyArray, coins: np.ndarray) -> Metrics:
        G, seeds = len(factors), len(keys)
        indices = jnp.repeat(jnp.arange(A, dtype=jnp.int32), G * seeds)
        repeated = jnp.tile(jnp.repeat(jnp.asarray(factors, jnp.float32), seeds), A)
        coins = np.tile(coins, (A * G, 1)) if coins.ndim == 2 else coins
        metrics = programs[coins.ndim](indices, repeated, jnp.tile(keys, A * G), jnp.asarray(coins))
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(A, G, seeds, *leaf.shape[1:]), metrics)

    return train


class ScaledState(NamedTuple):
    """The state of `with_factor`: that of the optimizer, and the factor `[]` on its updates."""

    inner: optax.OptState
    factor: Array


def with_factor(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer with a factor on its updates, which is kept in its state and is one at first.

    The updates of all optimizers here are proportional to the step size, so this is a factor on the step size.
    """

    def init(parameters: Array) -> ScaledState:
        return ScaledState(optimizer.init(parameters), jnp.float32(1))

    def update(updates: Array, state: ScaledState, parameters: Array | None = None) -> tuple[Array, ScaledState]:
        updates, inner = optimizer.update(updates, state.inner, parameters)
        return state.factor * updates, state._replace(inner=inner)

    return optax.GradientTransformation(init, update)


def starting_with_factor(algorithm: Algorithm, factor: Array) -> Algorithm:
    """Return an algorithm built with `with_factor` that starts with this factor `[]`."""

    def scaled(state: Any) -> Any:
        return state._replace(factor=factor * state.factor) if isinstance(state, ScaledState) else state

    def init(key: PRNGKeyArray, *places: Places) -> State:
        state = algorithm.init(key, *places)
        optimizer = jax.tree.map(scaled, state.optimizer, is_leaf=lambda node: isinstance(node, ScaledState))
        return state._replace(optimizer=optimizer)

    return algorithm._replace(init=init)
