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


def progress(algorithm: jb.Algorithm) -> np.ndarray:
    """Return, for three seeds, how much of the way from the start to the optimum the first agent has made."""
    coins = jb.common_coins(jax.random.key(1), algorithm.settings.p, ITERATIONS)
    keys = jax.random.split(jax.random.key(0), 3)
    out = jax.jit(jax.vmap(lambda key: jb.train(algorithm, key, ITERATIONS, coins)))(keys)
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
