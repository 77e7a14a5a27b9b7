"""Train attacks, step sizes and seeds in one compiled program.

Which attack is used is part of the adversary's memory (`jaxbyz.attacks.one_of`), and a factor on the step size is part
of the optimizer's state, so both are data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxbyz import training
from jaxbyz.algorithms import Algorithm, Metrics, State
from jaxbyz.algorithms.agents import make_optimizer
from jaxbyz.algorithms.base import starting_with_attack
from jaxbyz.attacks.one_of import one_of
from jaxbyz.components import make_attack
from jaxbyz.configuration.building import build
from jaxbyz.configuration.config import Config
from jaxbyz.protocol.placement import Places
from jaxbyz.runs.history import with_trajectories
from jaxbyz.runs.plan import make_plan
from jaxbyz.trained.start_from import start_parameters

# (numbers of attacks [A], factors [G], keys [seeds], coins [T] or [seeds, T]) -> Metrics [A, G, seeds, T]
Train = Callable[[Sequence[int], np.ndarray, PRNGKeyArray, np.ndarray], Metrics]


def groups_of_attacks(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Divide attacks into those that share a program, and every other one alone.

    An attack that searches for its messages would slow all others down, and only one of those that interfere in the
    environment can be part of a program.
    """
    shared: list[str] = []
    others: list[tuple[str, ...]] = []
    interferes = False
    for name in names:
        attack = make_attack(name, 4, 1)  # the same for every number of agents
        if attack.searches or (interferes and attack.interfere is not None):
            others.append((name,))
        else:
            shared.append(name)
            interferes |= attack.interfere is not None
    return [tuple(shared), *others] if shared else others


def train_under_attacks(config: Config, attacks: Sequence[str]) -> list[dict[str, np.ndarray]]:
    """Train a configuration under each of these attacks in one program, and return the metrics of each, as of a run.

    The attacks are a group of `groups_of_attacks`; that of the configuration does not matter.
    """
    plan = make_plan(config)
    train = train_together(config, plan.iterations, attacks)
    return metrics_by_attack(train(range(len(attacks)), np.ones(1), plan.keys, plan.coins))


def metrics_by_attack(metrics: Metrics) -> list[dict[str, np.ndarray]]:
    """Return metrics `[A, 1, seeds, T]` as a list of those of every attack, as of a run."""
    return [with_trajectories(jax.tree.map(itemgetter((i, 0)), metrics)) for i in range(len(metrics.batch))]


def train_together(config: Config, iterations: int, attacks: Sequence[str] = (), at_once: int | None = None) -> Train:
    """Return the function `(numbers [A], factors [G], keys [seeds], coins) -> Metrics [A, G, seeds, T]`.

    It calls one program, in which the number of the attack, the factor on the step size, the key and the coins are
    data. Coins are `[T]` or `[seeds, T]`; their values may differ between calls, so one program serves every p.

    Args:
        config: everything else.
        iterations: T.
        attacks: the attacks with the numbers 0, 1, …; by default that of the configuration has the number 0. Several
            must be a group of `groups_of_attacks`.
        at_once: the number of trainings in a call of the program; by default all of them.
    """
    built = [make_attack(name, config.agents, config.byzantine) for name in attacks]
    attack = built[0] if len(built) == 1 else one_of(built) if built else None
    optimizer = with_factor(make_optimizer(config, iterations))
    algorithm = build(config, iterations, optimizer, attack, start_parameters)

    def one(number: Array, factor: Array, key: PRNGKeyArray, coins: Array) -> Metrics:
        start = starting_with_factor(starting_with_attack(algorithm, number), factor)
        return training.train(start, key, iterations, coins).metrics

    programs = {ndim: jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0 if ndim == 2 else None))) for ndim in (1, 2)}

    def train(numbers: Sequence[int], factors: np.ndarray, keys: PRNGKeyArray, coins: np.ndarray) -> Metrics:
        A, G, seeds = len(numbers), len(factors), len(keys)
        count = A * G * seeds
        a, g, s = np.unravel_index(np.arange(count), (A, G, seeds))
        size = count if at_once is None else at_once
        parts = []
        for first in range(0, count, size):
            rows = np.arange(first, first + size) % count  # the last call is filled up with trainings seen before
            own = coins[s[rows]] if coins.ndim == 2 else coins
            which = np.asarray(numbers, np.int32)[a[rows]], np.asarray(factors, np.float32)[g[rows]]
            parts.append(
                jax.device_get(programs[coins.ndim](*map(jnp.asarray, which), keys[s[rows]], jnp.asarray(own)))
            )

        def arranged(*leaves: np.ndarray) -> np.ndarray:
            return np.concatenate(leaves)[:count].reshape(A, G, seeds, *leaves[0].shape[1:])

        return jax.tree.map(arranged, *parts)

    return train


def with_factor(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer with a factor on its updates, which is kept in its state as `step_size` and is one at first.

    The updates of all optimizers here are proportional to the step size, so this is a factor on the step size.
    """
    return optax.chain(optimizer, optax.inject_hyperparams(optax.scale)(step_size=1.0))


def starting_with_factor(algorithm: Algorithm, factor: Array) -> Algorithm:
    """Return an algorithm built with `with_factor` that starts with this factor `[]`."""

    def init(key: PRNGKeyArray, *places: Places) -> State:
        state = algorithm.init(key, *places)
        factors = factor * optax.tree_utils.tree_get(state.optimizer, "step_size")
        return state._replace(optimizer=optax.tree_utils.tree_set(state.optimizer, step_size=factors))

    return algorithm._replace(init=init)
