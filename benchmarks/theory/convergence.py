"""Trajectories that ByzPG and DecByzPG need on the MDP of problem.py (Corollaries 1 and 2).

The algorithms run to the letter: plain ascent, previous estimate v_{t−1} in Algorithm 1 and (θ_t − θ_{t−1})/η in
Algorithm 2, no baseline, no clipping. N, p and η are those in the proofs of the corollaries.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from problem import MDP, Constants, exact_gradient, shared_policy

from jaxbyz.algorithms import Algorithm, State, byzpg, decbyzpg
from jaxbyz.components import make_agreement
from jaxbyz.sampling import tabular_mdp

SMALL_BATCH = 1  # B = Θ(1)
ALPHA_CONSTANT = 0.05  # the constant of α/p² relative to that of 1/(pK) in A = Θ(α/p² + 1/(pK))
ATTACK, RULE = "avg-zero", "bucketing+rfa"
BYZANTINE_SHARE = 0.2
MAX_POINTS = 1500  # of a stored curve
RESAMPLES = 400


class Grid(NamedTuple):
    """Which K and ε are measured: all K at the middle ε, some K at the other two."""

    agents: tuple[int, ...]
    some_agents: tuple[int, ...]
    epsilons: tuple[float, float, float]


HONEST_GRID = Grid((1, 2, 4, 8, 16, 32), (1, 4, 16), (0.2, 0.14, 0.1))
# A fifth of the agents must be a whole number.
ATTACKED_GRID = Grid((5, 10, 20, 40), (10,), (0.28, 0.2, 0.14))

# (algorithm, attacked) -> exponents of K and ε that the corollaries give for small ε. "byzpg-alone" is ByzPG with the
# step size that follows if the variance of the server's own small batches is not divided by K.
COROLLARY_EXPONENTS = {
    ("decbyzpg", False): (-1.0, -3.0), ("byzpg", False): (-1.0, -3.0), ("byzpg-alone", False): (-0.5, -3.0),
    ("decbyzpg", True): (0.0, -4.0), ("byzpg", True): (-0.5, -3.0),
}  # fmt: skip


# ---- what the corollaries prescribe and predict ---------------------------------------------------------------------


class Plan(NamedTuple):
    """One measurement: an algorithm with K agents, f of them Byzantine, and what the corollary prescribes for ε."""

    algorithm: str
    K: int
    f: int
    epsilon: float
    N: int
    p: float
    eta: float
    T: int


def prescribe(algorithm: str, K: int, f: int, epsilon: float, c: Constants) -> Plan:
    """Return N = 2σ²(α + 1/K)/ε², p = 1/N, η = ½ min(1/√A, 1/L) and T = 8 gap/(ηε²), as in the corollaries, with

    decbyzpg:    A = 2C_p (α/(20p²) + 1/(pK))/B, Theorem 2
    byzpg:       A = 2C_p/(pKB), Theorem 1: η ∝ √(pK)
    byzpg-alone: A = 2C_p/(pB): the server samples small batches alone, so their variance is not divided by K
    """
    alpha = f / K
    N = math.ceil(2 * c.sigma2 * (alpha + 1 / K) / epsilon**2)
    p = 1 / N
    factor = {"decbyzpg": ALPHA_CONSTANT * alpha / p**2 + 1 / (p * K), "byzpg": 1 / (p * K), "byzpg-alone": 1 / p}
    A = 2 * c.C_p / SMALL_BATCH * factor[algorithm]
    eta = 0.5 * min(A**-0.5, 1 / c.L)
    return Plan(algorithm, K, f, epsilon, N, p, eta, math.ceil(8 * c.gap / (eta * epsilon**2)))


def predicted(algorithm: str, K: float, alpha: float, epsilon: float) -> float:
    """Return the trajectories per agent in the corollary's proof, up to a constant: √A/ε² with p = ε²/(α + 1/K)."""
    p = epsilon**2 / (alpha + 1 / K)
    root_A = {"decbyzpg": max(alpha**0.5 / p, (p * K) ** -0.5), "byzpg": (p * K) ** -0.5, "byzpg-alone": p**-0.5}
    return root_A[algorithm] / epsilon**2


def make_plans(c: Constants, quick: bool) -> list[Plan]:
    """Return all measurements; with `quick`, only two K and two ε for each algorithm."""
    plans = []
    for name, attacked in COROLLARY_EXPONENTS:
        agents, some_agents, epsilons = ATTACKED_GRID if attacked else HONEST_GRID
        if name == "byzpg-alone":  # with one agent it is ByzPG
            agents, some_agents = agents[1:], some_agents[1:]
        if (name, attacked) == ("decbyzpg", True):  # exact MDA among 40 agents in every iteration takes too long
            agents = agents[:-1]
        if quick:
            agents, some_agents, epsilons = (agents[0], some_agents[-1]), some_agents[-1:], epsilons[:2]
        for epsilon in epsilons:
            for K in agents if epsilon == epsilons[1] else some_agents:
                plans.append(prescribe(name, K, round(BYZANTINE_SHARE * K) if attacked else 0, epsilon, c))
    return plans


# ---- measurement ----------------------------------------------------------------------------------------------------


def build(plan: Plan) -> Algorithm:
    """Build Algorithm 1 or 2 to the letter; without Byzantine agents only the mean satisfies Definition 2.

    The attack is on gradients. In the agreement everybody then receives the same messages, and one round of MDA makes
    all parameters equal, so κ = 1 is enough.
    """
    central = plan.algorithm != "decbyzpg"
    options: dict[str, Any] = {
        "agents": plan.K, "byzantine": plan.f, "p": plan.p, "optimizer": "sgd", "eta": plan.eta, **MDP,
        "N": plan.N, "B": SMALL_BATCH, "previous": "aggregated" if central else "realized",
        "aggregator": RULE if plan.f else "mean", "attack": ATTACK if plan.f else None,
    }  # fmt: skip
    if central:
        return byzpg(tabular_mdp.environment(), shared_policy(), **options)
    agreement = make_agreement("mda", plan.K, plan.f, 1, unsafe=True)
    return decbyzpg(tabular_mdp.environment(), shared_policy(), agreement=agreement, **options)


def make_runner(plan: Plan, seeds: int) -> tuple[Algorithm, Any]:
    """Return the algorithm, and a function that runs n iterations of all S seeds, each with its own coins.

    The function maps (states [S], coins [n, S]) to the next states and [n, S] the largest ‖∇J(θ_t^k)‖² of an honest
    agent. All seeds take a small batch; those whose coin asks for a large batch repeat the step with it, a few seeds
    at a time, so that the cost of large batches is in proportion to their number.
    """
    algorithm = build(plan)
    at_once = max(1, round(seeds * plan.p))

    def step_all(states: State, large: bool) -> State:
        return jax.vmap(lambda state: algorithm.step(state, jnp.bool_(large))[0])(states)

    def step(states: State, coin: Array) -> tuple[State, Array]:
        def take_large_batches(carry: tuple[Array, State]) -> tuple[Array, State]:
            pending, following = carry
            chosen = jnp.argsort(~pending)[:at_once]
            stepped = step_all(jax.tree.map(lambda leaf: leaf[chosen], states), True)

            def insert(old: Array, new: Array) -> Array:
                is_pending = pending[chosen].reshape(-1, *[1] * (new.ndim - 1))
                return old.at[chosen].set(jnp.where(is_pending, new, old[chosen]))

            return pending.at[chosen].set(False), jax.tree.map(insert, following, stepped)

        norms = jnp.sum(jax.vmap(jax.vmap(exact_gradient))(states.parameters) ** 2, axis=2)
        honest = norms if algorithm.central else norms[:, : plan.K - plan.f]
        after_small = step_all(states, False)
        _, following = jax.lax.while_loop(lambda carry: jnp.any(carry[0]), take_large_batches, (coin, after_small))
        return following, jnp.max(honest, axis=1)

    return algorithm, jax.jit(lambda states, coins: jax.lax.scan(step, states, coins))


class Measurement(NamedTuple):
    """The result of a plan.

    Attributes:
        plan: what was measured.
        trajectories: `[P]`, expected trajectories per agent.
        means: `[S, P]`, mean of ‖∇J(θ_t)‖² over the iterations so far, for each seed.
    """

    plan: Plan
    trajectories: np.ndarray
    means: np.ndarray


def measure(plan: Plan, seeds: int) -> Measurement:
    """Run until E‖∇J(θ_T̂)‖² is below ε² by four standard errors, or for the T iterations that the theorems allow."""
    algorithm, run = make_runner(plan, seeds)
    states = jax.vmap(algorithm.init)(jax.random.split(jax.random.key(0), seeds))
    rng = np.random.default_rng(0)
    length = max(16, plan.T // 48)
    segments: list[np.ndarray] = []
    while len(segments) * length < plan.T:
        coins = rng.random((length, seeds)) < plan.p
        coins[0] |= not segments
        states, norms = run(states, jnp.asarray(coins))
        segments.append(np.asarray(norms, np.float64))
        mean = np.concatenate(segments).mean(axis=0)
        if mean.mean() + 4 * mean.std() / seeds**0.5 <= plan.epsilon**2:
            break
    norms = np.concatenate(segments)
    means = np.cumsum(norms, axis=0) / np.arange(1, len(norms) + 1)[:, None]
    kept = np.unique(np.linspace(0, len(norms) - 1, MAX_POINTS).astype(int))
    trajectories = plan.N + kept * (plan.p * plan.N + (1 - plan.p) * SMALL_BATCH)
    return Measurement(plan, trajectories, means[kept].T)


def first_crossing(x: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """Return where each row of y `[..., P]` first falls to `level`, interpolated linearly; NaN if it never does."""
    below = y <= level
    i = np.argmax(below, axis=-1)
    j = np.maximum(i - 1, 0)
    upper, lower = (np.take_along_axis(y, k[..., None], axis=-1)[..., 0] for k in (j, i))
    share = np.where(i == 0, 0.0, (upper - level) / np.where(upper > lower, upper - lower, 1.0))
    return np.where(below.any(axis=-1), x[j] + share * (x[i] - x[j]), np.nan)


def trajectories_needed(measurement: Measurement, rng: np.random.Generator) -> np.ndarray:
    """Return the trajectories until E‖∇J(θ_T̂)‖² ≤ ε², `[1 + R]`: for all seeds, then for R resamplings of them."""
    S = len(measurement.means)
    weights = np.concatenate([np.full((1, S), 1 / S), rng.multinomial(S, np.full(S, 1 / S), size=RESAMPLES) / S])
    return first_crossing(measurement.trajectories, weights @ measurement.means, measurement.plan.epsilon**2)


def fit_exponents(*variables: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Fit y = a·x_1^b_1·x_2^b_2… by least squares of logarithms to every row of `of` `[..., n]`; return b."""
    design = np.stack([np.ones(len(variables[0])), *(np.log(x) for x in variables)], axis=1)
    return (np.linalg.pinv(design) @ np.log(of)[..., None])[..., 1:, 0]


def with_interval(values: np.ndarray) -> dict[str, float]:
    """Return the first value, and the interval that holds 95 % of the others."""
    low, high = np.nanpercentile(values[1:], [2.5, 97.5])
    return {"slope": round(float(values[0]), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


def measured_exponents(measurements: list[Measurement]) -> list[dict[str, Any]]:
    """Return the exponents of K and ε for every algorithm, with and without attackers.

    Each row has the measured exponent (`slope`), the corollary's limit (`corollary`), and a fit to the corollary's own
    formula at the points that were measured (`formula_here`).
    """
    rng = np.random.default_rng(1)
    rows = []
    for (name, attacked), limits in COROLLARY_EXPONENTS.items():
        series = [m for m in measurements if m.plan.algorithm == name and (m.plan.f > 0) == attacked]
        needed = np.stack([trajectories_needed(m, rng) for m in series], axis=1)
        reached = np.flatnonzero(np.isfinite(needed[0]))
        plans = [series[i].plan for i in reached]
        K, epsilon = np.array([plan.K for plan in plans]), np.array([plan.epsilon for plan in plans])
        formula = np.array([predicted(name, plan.K, plan.f / plan.K, plan.epsilon) for plan in plans])
        measured = fit_exponents(K, epsilon, of=needed[:, reached])
        expected = fit_exponents(K, epsilon, of=formula)
        for i, variable in enumerate(("K", "epsilon")):
            rows.append({
                "algorithm": name, "attacked": attacked, "in": variable, **with_interval(measured[:, i]),
                "corollary": limits[i], "formula_here": round(float(expected[i]), 3),
            })  # fmt: skip
    return rows


def summarise(measurement: Measurement, rng: np.random.Generator) -> dict[str, Any]:
    """Return plain values: trajectories needed with their 95 % interval, every seed at that point, a thinned curve."""
    needed = trajectories_needed(measurement, rng)
    plan, x, means = measurement
    reached = bool(np.isfinite(needed[0]))
    at = int(np.searchsorted(x, needed[0])) if reached else len(x) - 1
    kept = np.unique(np.geomspace(1, len(x), 40).astype(int)) - 1
    low, high = np.nanpercentile(needed[1:], [2.5, 97.5]) if reached else (None, None)
    return {
        **{key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in plan._asdict().items()},
        "trajectories": round(needed[0]) if reached else None, "low": low and round(low), "high": high and round(high),
        "samples": [float(f"{value:.3g}") for value in means[:, at]],
        "curve": [[round(a), float(f"{b:.3g}")] for a, b in zip(x[kept], means.mean(axis=0)[kept], strict=True)],
    }  # fmt: skip
