"""The mathematics of benchmarks/theory.py: exact gradient, the corollaries' choices, slopes of known power laws."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbyz.sampling import tabular_mdp as tabular

spec = importlib.util.spec_from_file_location("theory", Path(__file__).parent.parent / "benchmarks" / "theory.py")
theory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(theory)
CONSTANTS = theory.Constants(sigma2=16.0, C_p=88.0, L=0.9, gap=0.3)


def test_gradient_is_exact():
    theta = np.array([0.3, -0.2])

    def exact(theta):
        table = np.stack([np.zeros(3), theory.FEATURES @ theta + theory.OFFSETS]).astype(np.float64)
        return tabular.exact_return(table.ravel())

    assert float(theory.value(jnp.asarray(theta))) == pytest.approx(exact(theta), rel=1e-5)
    differences = [(exact(theta + step) - exact(theta - step)) / 2e-5 for step in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(theory.gradient(jnp.asarray(theta)), differences, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("K,f,epsilon", [(1, 0, 0.2), (32, 0, 0.1), (20, 4, 0.2), (5, 1, 0.14)])
def test_choices_are_the_corollaries(K, f, epsilon):
    plans = {name: theory.chosen(name, K, f, epsilon, CONSTANTS) for name in ("decbyzpg", "byzpg", "byzpg-alone")}
    alpha = f / K
    for plan in plans.values():
        assert np.ceil(2 * 16.0 * (alpha + 1 / K) / epsilon**2) == plan.N  # Cσ²(α + 1/K)/N ≤ ε²/2
        assert plan.p == 1 / plan.N
        assert 4 * CONSTANTS.gap / (plan.eta * plan.T) <= epsilon**2 / 2  # the first term of Theorem 2
        assert plan.eta <= 0.5 / CONSTANTS.L
    p = plans["byzpg"].p
    for name, A in (
        ("decbyzpg", theory.ALPHA_PART * alpha / p**2 + 1 / (p * K)),
        ("byzpg", 1 / (p * K)),
        ("byzpg-alone", 1 / p),
    ):
        assert plans[name].eta == pytest.approx(0.5 * min((2 * 88.0 * A) ** -0.5, 1 / 0.9))
    if f == 0:
        assert plans["decbyzpg"].eta == plans["byzpg"].eta


def test_promised_exponents():
    """`predicted` behaves as the corollaries say: exactly without attackers, for small ε and many agents with them."""
    at = theory.predicted
    for name in ("decbyzpg", "byzpg"):
        assert at(name, 8, 0, 0.1) / at(name, 4, 0, 0.1) == pytest.approx(1 / 2)
        assert at(name, 8, 0, 0.05) / at(name, 8, 0, 0.1) == pytest.approx(8)
    assert at("byzpg-alone", 8, 0, 0.1) / at("byzpg-alone", 2, 0, 0.1) == pytest.approx(1 / 2)
    assert at("byzpg", 4e6, 0.2, 0.1) / at("byzpg", 1e6, 0.2, 0.1) == pytest.approx(1 / 2, rel=1e-3)
    assert at("decbyzpg", 4e6, 0.2, 0.1) / at("decbyzpg", 1e6, 0.2, 0.1) == pytest.approx(1, rel=1e-3)
    assert at("decbyzpg", 1e6, 0.2, 0.05) / at("decbyzpg", 1e6, 0.2, 0.1) == pytest.approx(16)


def test_slope_of_a_power_law():
    K, epsilon = (x.ravel().astype(float) for x in np.meshgrid([1, 2, 4, 8], [0.2, 0.14, 0.1]))
    y = 5 * K**-0.5 * epsilon**-3
    np.testing.assert_allclose(theory.exponents(K, epsilon, of=y), [-0.5, -3.0])
    noisy = y * np.exp(0.01 * np.random.default_rng(0).normal(size=(50, len(y))))
    np.testing.assert_allclose(theory.exponents(K, epsilon, of=noisy), np.tile([-0.5, -3.0], (50, 1)), atol=0.1)


def test_arrival_between_points():
    x = np.array([1.0, 2.0, 4.0])
    y = np.array([[3.0, 1.0, 0.0], [3.0, 2.5, 2.1], [0.5, 0.4, 0.3]])
    np.testing.assert_allclose(theory.arrival(x, y, 2.0), [1.5, np.nan, 1.0])


def test_slopes_find_what_cells_were_made_with():
    rng = np.random.default_rng(0)
    cells = []
    for plan in theory.plans(CONSTANTS, quick=False):
        y = theory.predicted(plan.algorithm, plan.K, plan.f / plan.K, plan.epsilon)
        x = np.linspace(y / 10, 3 * y, 600)
        means = plan.epsilon**2 * y / x * (1 + 0.05 * rng.normal(size=(16, 1)))
        cells.append(theory.Cell(plan, x, means))
    for row in theory.slopes(cells):
        assert row["low"] <= row["slope"] <= row["high"]
        assert row["slope"] == pytest.approx(row["formula_here"], abs=0.05)
        assert row["attacked"] or row["formula_here"] == pytest.approx(row["corollary"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name,K", [("decbyzpg", 2), ("byzpg", 3)])
def test_every_seed_goes_its_own_way(name, K):
    """`advance` takes the very steps that each seed would take by itself with its coins."""
    plan = theory.Plan(name, K, 0, 0.5, 4, 0.25, 0.05, 10)
    method, run = theory.advance(plan, 4)
    keys = jax.random.split(jax.random.key(1), 4)
    coins = np.random.default_rng(0).random((10, 4)) < 0.4
    coins[0] = True
    states, norms = run(jax.vmap(method.init)(keys), jnp.asarray(coins))
    for i in range(4):
        alone, _ = jax.jit(lambda state, coins: jax.lax.scan(method.step, state, coins))(
            method.init(keys[i]), jnp.asarray(coins[:, i])
        )
        np.testing.assert_allclose(states.parameters[i], alone.parameters, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norms[0], float(jnp.sum(theory.gradient(jnp.zeros(2)) ** 2)), rtol=1e-5)
