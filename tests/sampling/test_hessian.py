"""Policy Hessians times vectors against the exact Hessian of the tabular MDP, and Res-NHARPG."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxbyz as jb
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.hessian import hessian_vector_product
from jaxbyz.sampling.rollout import collect

ENV, POLICY, KEY = tabular.environment(), tabular.policy(), jax.random.key(0)
PLAIN = {"gamma": tabular.GAMMA, "horizon": tabular.HORIZON}


@pytest.mark.parametrize("baseline", ["none", pytest.param("leave-one-out", marks=pytest.mark.slow)])
def test_hessian_vector_products_are_unbiased(baseline):
    """4 × 20,000 trajectories along the eigenvector of largest curvature; the standard error is 0.0025."""

    @jax.jit
    def parameters_and_hessian():
        theta = 0.5 * jax.random.normal(jax.random.key(3), (6,))
        return theta, jax.hessian(tabular.value)(theta)

    theta, hessian = jax.device_get(parameters_and_hessian())
    values, vectors = np.linalg.eigh(hessian)
    largest = np.argmax(np.abs(values))
    u = vectors[:, largest]
    step = 1e-2
    change = (tabular.exact_gradient(theta + step * u) - tabular.exact_gradient(theta - step * u)) / (2 * step)
    np.testing.assert_allclose(hessian @ u, change, atol=1e-3)
    estimator = jb.Sampling(**PLAIN, baseline=baseline)

    @jax.jit
    def products(rows, directions):
        episodes = collect(ENV, POLICY, rows, jax.random.split(KEY, 4), 20_000, tabular.HORIZON)
        return hessian_vector_product(estimator, POLICY, rows, directions, episodes).mean(axis=0)

    np.testing.assert_allclose(products(np.tile(theta, (4, 1)), np.tile(u, (4, 1))), hessian @ u, atol=0.012)
    assert np.abs(hessian @ u).max() > 0.1


def res_nharpg(**changes):
    options = {"agents": 7, "byzantine": 2, "aggregator": "rfa", "attack": "avg-zero", "N": 20, "B": 5, **PLAIN}
    return jb.algorithms.res_nharpg(ENV, POLICY, **{**options, "optimizer": optax.sgd(0.1), **changes})


@pytest.mark.slow
def test_res_nharpg_takes_steps_of_one_length_and_learns_under_attack():
    algorithm = res_nharpg()
    result = jax.jit(lambda key: jb.train(algorithm, key, 150))(KEY)
    assert float(tabular.value(result.run.state.parameters[0])) > 2.35  # the optimum is 2.56, the start 1.1
    assert np.asarray(result.metrics.finite).all() and set(np.asarray(result.metrics.batch)) == {20}
    state = algorithm.init(KEY)
    step = jax.jit(algorithm.step)
    for _ in range(2):
        after, _ = step(state, jnp.bool_(True))
        np.testing.assert_allclose(np.linalg.norm(after.parameters - state.parameters), 0.1, rtol=1e-4)
        assert bool(np.asarray(after.private.started).all())
        state = after
    assert step._cache_size() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 1.0}, "momentum=1.0: must be in"),
        ({"N": 4, "B": 4}, "B must be less than N"),
        ({"byzantine": 4}, "byzantine=4 of agents=7 exceeds the limit 1/2"),
    ],
)
def test_bad_values_end_in_one_line(changes, message):
    with pytest.raises(jb.UsageError, match=message):
        res_nharpg(**changes)
