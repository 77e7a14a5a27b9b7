"""The mathematics and the pictures of benchmarks/theory/measure.py."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import RESULTS, ROOT

from jaxbyz.sampling import tabular_mdp

sys.path.insert(0, str(ROOT / "benchmarks" / "theory"))

import convergence
import pictures
import problem

CONSTANTS = problem.Constants(sigma2=16.0, C_p=88.0, L=0.9, gap=0.3)


def test_gradient_is_exact():
    theta = np.array([0.3, -0.2])

    def exact(theta):
        table = np.stack([np.zeros(3), problem.FEATURES @ theta + problem.OFFSETS]).astype(np.float64)
        return tabular_mdp.exact_return(table.ravel())

    found, gradient = jax.jit(lambda theta: (problem.exact_return(theta), problem.exact_gradient(theta)))(
        theta.astype(np.float32)
    )
    assert float(found) == pytest.approx(exact(theta), rel=1e-5)
    differences = [(exact(theta + step) - exact(theta - step)) / 2e-5 for step in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("K,f,epsilon", [(1, 0, 0.2), (32, 0, 0.1), (20, 4, 0.2), (5, 1, 0.14)])
def test_plans_follow_the_corollaries(K, f, epsilon):
    names = ("decbyzpg", "byzpg", "byzpg-alone")
    plans = {name: convergence.prescribe(name, K, f, epsilon, CONSTANTS) for name in names}
    alpha = f / K
    for plan in plans.values():
        assert np.ceil(2 * 16.0 * (alpha + 1 / K) / epsilon**2) == plan.N  # Cσ²(α + 1/K)/N ≤ ε²/2
        assert plan.p == 1 / plan.N
        assert 4 * CONSTANTS.gap / (plan.eta * plan.T) <= epsilon**2 / 2  # the first term of Theorem 2
        assert plan.eta <= 0.5 / CONSTANTS.L
    p = plans["byzpg"].p
    for name, A in (
        ("decbyzpg", convergence.ALPHA_CONSTANT * alpha / p**2 + 1 / (p * K)),
        ("byzpg", 1 / (p * K)),
        ("byzpg-alone", 1 / p),
    ):
        assert plans[name].eta == pytest.approx(0.5 * min((2 * 88.0 * A) ** -0.5, 1 / 0.9))
    if f == 0:
        assert plans["decbyzpg"].eta == plans["byzpg"].eta


def test_predicted_exponents():
    """Exact without attackers; for small ε and many agents with them."""
    at = convergence.predicted
    for name in ("decbyzpg", "byzpg"):
        assert at(name, 8, 0, 0.1) / at(name, 4, 0, 0.1) == pytest.approx(1 / 2)
        assert at(name, 8, 0, 0.05) / at(name, 8, 0, 0.1) == pytest.approx(8)
    assert at("byzpg-alone", 8, 0, 0.1) / at("byzpg-alone", 2, 0, 0.1) == pytest.approx(1 / 2)
    assert at("byzpg", 4e6, 0.2, 0.1) / at("byzpg", 1e6, 0.2, 0.1) == pytest.approx(1 / 2, rel=1e-3)
    assert at("decbyzpg", 4e6, 0.2, 0.1) / at("decbyzpg", 1e6, 0.2, 0.1) == pytest.approx(1, rel=1e-3)
    assert at("decbyzpg", 1e6, 0.2, 0.05) / at("decbyzpg", 1e6, 0.2, 0.1) == pytest.approx(16)


def test_exponents_of_a_power_law():
    K, epsilon = (x.ravel().astype(float) for x in np.meshgrid([1, 2, 4, 8], [0.2, 0.14, 0.1]))
    y = 5 * K**-0.5 * epsilon**-3
    np.testing.assert_allclose(convergence.fit_exponents(K, epsilon, of=y), [-0.5, -3.0])
    noisy = y * np.exp(0.01 * np.random.default_rng(0).normal(size=(50, len(y))))
    fitted = convergence.fit_exponents(K, epsilon, of=noisy)
    np.testing.assert_allclose(fitted, np.tile([-0.5, -3.0], (50, 1)), atol=0.1)


def test_the_first_crossing_is_interpolated():
    x = np.array([1.0, 2.0, 4.0])
    y = np.array([[3.0, 1.0, 0.0], [3.0, 2.5, 2.1], [0.5, 0.4, 0.3]])
    np.testing.assert_allclose(convergence.first_crossing(x, y, 2.0), [1.5, np.nan, 1.0])


def test_exponents_are_recovered_from_synthetic_measurements():
    rng = np.random.default_rng(0)
    measurements = []
    for plan in convergence.make_plans(CONSTANTS, quick=False):
        y = convergence.predicted(plan.algorithm, plan.K, plan.f / plan.K, plan.epsilon)
        x = np.linspace(y / 10, 3 * y, 600)
        means = plan.epsilon**2 * y / x * (1 + 0.05 * rng.normal(size=(16, 1)))
        measurements.append(convergence.Measurement(plan, x, means))
    for row in convergence.measured_exponents(measurements):
        assert row["low"] <= row["slope"] <= row["high"]
        assert row["slope"] == pytest.approx(row["formula_here"], abs=0.05)
        assert row["attacked"] or row["formula_here"] == pytest.approx(row["corollary"], abs=1e-3)


@pytest.fixture(scope="module")
def report():
    if not RESULTS.exists():
        pytest.skip("an sdist does not contain the results")
    return json.loads((RESULTS / "theory.json").read_text())


def legend(drawing) -> list[str]:
    """The one legend below all panels."""
    (shown,) = drawing.legends
    return [text.get_text() for text in shown.get_texts()]


def test_the_picture_of_convergence(report):
    drawing = pictures.draw_convergence(report)
    panels = drawing.axes
    assert [axes.get_title().split(";")[0] for axes in panels] == [
        "DecByzPG, α = 0", "ByzPG, α = 0", "DecByzPG, α = 0.2", "ByzPG, α = 0.2",
    ]  # fmt: skip
    assert legend(drawing) == [f"K = {K}" for K in (1, 2, 4, 5, 8, 10, 16, 20, 32, 40)] + ["ε²"]
    for axes, agents in ((panels[0], (1, 2, 4, 8, 16, 32)), (panels[2], (5, 10, 20))):
        assert axes.get_legend_handles_labels()[1] == [f"K = {K}" for K in agents] + ["ε²"]
    styles = [(line.get_color(), line.get_linestyle()) for axes in panels for line in axes.lines[:-1]]
    assert len(set(styles)) == 10  # a colour and a style belong to one K in all panels
    (row,) = (r for r in report["cells"] if (r["algorithm"], r["K"], r["f"], r["epsilon"]) == ("decbyzpg", 4, 0, 0.14))
    np.testing.assert_array_equal(panels[0].lines[2].get_xydata(), row["curve"])
    assert panels[0].lines[-1].get_ydata()[0] == pytest.approx(0.14**2)
    assert all(axes.get_xlabel() == "trajectories per agent" for axes in panels)


def test_the_picture_of_trajectories(report):
    drawing = pictures.draw_trajectories(report)
    against_K, against_epsilon = drawing.axes
    assert (against_K.get_xlabel(), against_epsilon.get_xlabel()) == ("agents K", "target ε")
    assert sorted(legend(drawing)) == sorted([*pictures.SERIES.values(), "those of one agent / K"])
    assert "ε = 0.14 (α = 0)" in against_K.get_title() and "K = 10 (α = 0.2)" in against_epsilon.get_title()
    line = against_K.containers[0].lines[0]
    needed = {r["K"]: r["trajectories"] for r in pictures.select(report, ("decbyzpg", False), epsilon=0.14)}
    assert dict(line.get_xydata().astype(int).tolist()) == needed


def test_the_picture_of_agreement_and_bias(report):
    drawing = pictures.draw_agreement(report)
    diameters, against_N, against_K = drawing.axes
    assert diameters.get_legend_handles_labels()[1] == [
        "mda, 1 of 13 Byzantine", "mda, 3 of 13 Byzantine", "gda, 1 of 13 Byzantine", "gda, 2 of 13 Byzantine", "2^−κ",
    ]  # fmt: skip
    np.testing.assert_array_equal(diameters.lines[1].get_ydata(), report["diameter"][1]["ratio"])
    for axes, variable in ((against_N, "N"), (against_K, "K")):
        assert sorted(axes.get_legend_handles_labels()[1]) == ["aggregate, α = 0", "aggregate, α = 0.2", "slope −1"]
        honest = [r for r in report["bias"]["rows"] if r["against"] == variable and r["byzantine"] == 0]
        shown = axes.containers[0].lines[0].get_xydata()
        np.testing.assert_allclose(shown, [[r[variable], r["error"]] for r in honest])


@pytest.mark.slow
@pytest.mark.parametrize("name,K", [("decbyzpg", 2), ("byzpg", 3)])
def test_seeds_run_independently(name, K):
    """The runner takes the same steps as each seed would take by itself with its coins."""
    plan = convergence.Plan(name, K, 0, 0.5, 4, 0.25, 0.05, 10)
    algorithm, run = convergence.make_runner(plan, 4)
    keys = jax.random.split(jax.random.key(1), 4)
    coins = np.random.default_rng(0).random((10, 4)) < 0.4
    coins[0] = True
    states, norms = run(jax.vmap(algorithm.init)(keys), jnp.asarray(coins))
    run_alone = jax.jit(lambda state, coins: jax.lax.scan(algorithm.step, state, coins)[0])
    for i in range(4):
        state = run_alone(algorithm.init(keys[i]), jnp.asarray(coins[:, i]))
        np.testing.assert_allclose(states.parameters[i], state.parameters, rtol=1e-4, atol=1e-6)
    expected = float(jnp.sum(problem.exact_gradient(jnp.zeros(2)) ** 2))
    np.testing.assert_allclose(norms[0], expected, rtol=1e-5)
