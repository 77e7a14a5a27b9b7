"""A federation learns a problem with a known optimum under attack, and the naive federation fails on it."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz.sampling import tabular_mdp as tabular

AGENTS, BYZANTINE, ITERATIONS = 9, 2, 60
PAGE = {"N": 20, "B": 5, "gamma": tabular.GAMMA, "horizon": tabular.HORIZON}


def optimum() -> float:
    """Return the largest exact J over all deterministic policies, which are limits of softmax policies."""
    tables = (30.0 * np.array(choice) for choice in itertools.product((-1, 1), repeat=tabular.STATES))
    return max(tabular.exact_return(np.concatenate([table, -table])) for table in tables)


def progress(algorithm: jb.Algorithm, seeds: int = 3, iterations: int = ITERATIONS) -> np.ndarray:
    """Return, for some seeds, how much of the way from the start to the optimum the first agent has made."""
    coins = jb.common_coins(jax.random.key(1), algorithm.settings.p, iterations)
    keys = jax.random.split(jax.random.key(0), seeds)
    out = jax.jit(jax.vmap(lambda key: jb.train(algorithm, key, iterations, coins)))(keys)
    first = np.asarray(jax.vmap(algorithm.init)(keys).parameters)[:, 0]
    last = np.asarray(out.run.state.parameters)[:, 0]
    start, end = (np.array([tabular.exact_return(theta) for theta in row]) for row in (first, last))
    return (end - start) / (optimum() - start)


@pytest.mark.parametrize("attack", ["avg-zero", pytest.param("large-noise", marks=pytest.mark.slow)])
def test_the_tolerant_federation_learns_and_the_naive_one_fails(attack):
    parts = {
        "agents": AGENTS, "byzantine": BYZANTINE, "attack": attack, "optimizer": optax.adam(0.1), **PAGE,
    }  # fmt: skip
    tolerant = jb.decbyzpg(tabular.environment(), tabular.policy(), aggregator="rfa", agreement="mda", **parts)
    naive = jb.dec_page_pg(tabular.environment(), tabular.policy(), **parts)
    assert progress(tolerant).min() > 0.9
    assert progress(naive).max() < 0.5


@pytest.mark.parametrize("attack", ["budget", pytest.param("normalized", marks=pytest.mark.slow)])
def test_memory_of_senders_keeps_what_federating_gains(attack):
    """Under attacks that hide in the noise of single messages, whether or not they know the memory."""
    settings = jb.Settings(agents=13, N=2, B=2, p=1.0, gamma=tabular.GAMMA, horizon=tabular.HORIZON)

    def mean_progress(rule: str, byzantine: int, **options: str | None) -> float:
        algorithm = jb.decbyzpg(
            tabular.environment(), tabular.policy(), settings, byzantine=byzantine, aggregator=rule,
            optimizer=optax.adam(0.05), **options,
        )  # fmt: skip
        return float(progress(algorithm, seeds=16, iterations=100).mean())

    honest = mean_progress("mean", 0, agreement="none")
    assert mean_progress("memory+rfa", 3, attack=attack) > 0.9 * honest
    assert mean_progress("rfa" if attack == "budget" else "caf", 3, attack=attack) < 0.9 * honest
