"""The paper's theory, measured on a small MDP whose J and ∇J are known exactly.

    python benchmarks/theory.py [--seeds 16] [--quick] [--out benchmarks/results/theory.json] [--pictures docs/images]

Plain ascent and the algorithms to the letter (previous estimate v_{t−1} in Algorithm 1 and (θ_t − θ_{t−1})/η in
Algorithm 2, no baseline, no clipping), N, p, η as in the proofs of Corollaries 1 and 2:

1. Trajectories an agent needs until E‖∇J(θ_T̂)‖² ≤ ε², T̂ uniform over the iterations: slopes in K and in ε.
2. Diameter of honest parameters against agreement rounds κ, the worst of many equivocating adversaries and inputs.
3. E‖v − ∇J‖² of an aggregated large batch against N and against K.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxbyz.accelerate.setup import prepare
from jaxbyz.algorithms import Algorithm, State, byzpg, decbyzpg
from jaxbyz.attacks import View
from jaxbyz.attacks.base import Forge
from jaxbyz.attacks.honest_statistics import honest_mean
from jaxbyz.certify.starting_inputs import HONEST_ARRANGEMENTS, honest_rows
from jaxbyz.components import make_agreement, make_attack, make_rule
from jaxbyz.experiments.files import write_json
from jaxbyz.experiments.run_folder import describe_environment
from jaxbyz.policies import Policy
from jaxbyz.protocol.agreements import agreements, diameter, run_agreement
from jaxbyz.protocol.communication import Adversary
from jaxbyz.sampling import tabular_mdp as tabular
from jaxbyz.sampling.estimators import Estimator, estimate, importance_weights
from jaxbyz.sampling.page import Page
from jaxbyz.sampling.rollout import collect

# Preferences for the second action are FEATURES θ + OFFSETS: three states pull at two parameters, so that the best
# policy is inside, where gradients stay noisy and J is curved. A softmax with a parameter a state runs to a corner.
FEATURES = np.array([[-3.0, 2.0], [3.0, 1.0], [-1.0, 0.0]], np.float32)
OFFSETS = np.array([1.0, 0.0, 1.0], np.float32)
BATCH = 1  # B = Θ(1)
ALPHA_PART = 0.05  # the constant of α/p² against that of 1/(pK) in A = Θ(α/p² + 1/(pK))
# every K at the middle ε, some K at the others
AGENTS, TARGETS, SOME = (1, 2, 4, 8, 16, 32), (0.2, 0.14, 0.1), (1, 4, 16)
# α = 0.2 of a power of two is no whole number, so the attacked federations have multiples of five
SHARE, ATTACKED, ATTACKED_TARGETS, ATTACKED_SOME = 0.2, (5, 10, 20, 40), (0.28, 0.2, 0.14), (10,)
ATTACK, RULE = "avg-zero", "bucketing+rfa"
RESAMPLES, POINTS = 400, 1500
ESTIMATOR = Estimator(gamma=tabular.GAMMA, horizon=tabular.HORIZON)


def preferences(theta: Float[Array, " 2"]) -> Float[Array, "A S"]:
    """Logits of the two actions in the three states."""
    return jnp.stack([jnp.zeros(tabular.STATES), FEATURES @ theta + OFFSETS])


def value(theta: Float[Array, " 2"]) -> Float[Array, ""]:
    """J(θ), exactly."""
    return tabular.value(preferences(theta).ravel())


gradient = jax.grad(value)


def shared_policy() -> Policy:
    """Softmax of `preferences`; θ_0 = 0."""
    table = tabular.policy()
    return table._replace(
        size=2,
        init=lambda key: jnp.zeros(2),
        unravel=lambda vector: vector,
        apply=lambda theta, observations: table.apply(preferences(theta), observations),
    )


class Constants(NamedTuple):
    """What the theorems call constants, of this MDP.

    sigma2: σ² = max Var g(τ|θ); C_p: max E‖ĝ-difference − ∇J-difference‖²/‖θ_t − θ_{t−1}‖² of one trajectory;
    L: largest curvature of J; gap: J* − J(θ_0). Maxima over points of the exact ascent from θ_0.
    """

    sigma2: float
    C_p: float
    L: float
    gap: float


def constants(samples: int = 20_000) -> Constants:
    """Sampled σ² and C_p, exact L and gap."""

    def ascend(theta: Array, _: None) -> tuple[Array, Array]:
        return theta + 0.1 * gradient(theta), theta

    last, path = jax.lax.scan(ascend, jnp.zeros(2), None, length=2000)
    policy, environment = shared_policy(), tabular.environment()

    def spread(theta: Array, key: Array) -> tuple[Array, Array]:
        rows = jnp.tile(theta, (samples, 1))
        episodes = collect(environment, policy, rows, jax.random.split(key, samples), 1, tabular.HORIZON)
        now = estimate(ESTIMATOR, policy, rows, episodes)
        way = gradient(theta)
        moved = rows - 0.05 * way / jnp.linalg.norm(way)
        omega = importance_weights(ESTIMATOR, policy, moved, episodes).values
        error = now - estimate(ESTIMATOR, policy, moved, episodes, omega) - (way - gradient(moved[0]))
        variance = jnp.mean(jnp.sum((now - way) ** 2, axis=1))
        return variance, jnp.mean(jnp.sum(error**2, axis=1)) / 0.05**2

    points = path[jnp.array([0, 10, 40, 160])]
    sigma2, C_p = jax.jit(lambda: jax.lax.map(lambda x: spread(x, jax.random.key(0)), points))()
    curvature = jax.vmap(lambda x: jnp.max(jnp.abs(jnp.linalg.eigvalsh(jax.hessian(value)(x)))))(path)
    return Constants(*(float(x) for x in (sigma2.max(), C_p.max(), curvature.max(), value(last) - value(path[0]))))


class Plan(NamedTuple):
    """One cell: an algorithm with K agents, f of them Byzantine, and what the corollary chooses for ε."""

    algorithm: str
    K: int
    f: int
    epsilon: float
    N: int
    p: float
    eta: float
    T: int


def chosen(algorithm: str, K: int, f: int, epsilon: float, c: Constants) -> Plan:
    """N = 2σ²(α + 1/K)/ε², p = 1/N, η = ½ min(1/√A, 1/L), T = 8 gap/(ηε²): the corollaries' with these constants.

    decbyzpg:    A = 2C_p (α/(20p²) + 1/(pK))/B, Theorem 2
    byzpg:       A = 2C_p/(pKB), Theorem 1: η ∝ √(pK)
    byzpg-alone: A = 2C_p/(pB). In Algorithm 1 the server samples small batches alone, so that their variance has no 1/K
    """
    alpha = f / K
    N = math.ceil(2 * c.sigma2 * (alpha + 1 / K) / epsilon**2)
    p = 1 / N
    per_step = {"decbyzpg": ALPHA_PART * alpha / p**2 + 1 / (p * K), "byzpg": 1 / (p * K), "byzpg-alone": 1 / p}[
        algorithm
    ]
    eta = 0.5 * min((2 * c.C_p / BATCH * per_step) ** -0.5, 1 / c.L)
    return Plan(algorithm, K, f, epsilon, N, p, eta, math.ceil(8 * c.gap / (eta * epsilon**2)))


def predicted(algorithm: str, K: float, alpha: float, epsilon: float) -> float:
    """Trajectories an agent by the corollary's proof, up to a constant: √A/ε² with p = ε²/(α + 1/K)."""
    p = epsilon**2 / (alpha + 1 / K)
    worst = {"decbyzpg": max(alpha**0.5 / p, (p * K) ** -0.5), "byzpg": (p * K) ** -0.5, "byzpg-alone": p**-0.5}
    return worst[algorithm] / epsilon**2


def build(plan: Plan) -> Algorithm:
    """Algorithm 1 or 2 to the letter. Without Byzantines only the mean satisfies Definition 2.

    The liars lie about gradients. In the agreement everybody then hears the same, and one round of MDA makes all equal:
    κ = 1 is as good as any other.
    """
    central = plan.algorithm != "decbyzpg"
    page = Page(plan.N, BATCH, ESTIMATOR, "aggregated" if central else "realized", plan.eta)
    parts: dict[str, Any] = {
        "agents": plan.K, "byzantine": plan.f, "page": page, "p": plan.p, "optimizer": optax.sgd(plan.eta),
        "aggregator": make_rule(RULE if plan.f else "mean", plan.K, plan.f),
        "attack": make_attack(ATTACK if plan.f else "none", plan.K, plan.f),
    }  # fmt: skip
    if central:
        return byzpg(tabular.environment(), shared_policy(), **parts)
    agreement = make_agreement("mda", plan.K, plan.f, 1)
    return decbyzpg(tabular.environment(), shared_policy(), agreement=agreement, **parts)


def advance(plan: Plan, seeds: int) -> tuple[Algorithm, Any]:
    """The algorithm, and (states [S], coins [n, S]) -> (states, [n, S] largest ‖∇J(θ_t^k)‖² of an honest agent).

    Every seed has its own coin. All take a small batch; those whose coin shows a large one then take that instead, a
    few at a time, so that large batches cost what they should.
    """
    method = build(plan)
    few = max(1, round(seeds * plan.p))

    def after(states: State, large: bool) -> State:
        return jax.vmap(lambda state: method.step(state, jnp.bool_(large))[0])(states)

    def step(states: State, coin: Array) -> tuple[State, Array]:
        def some(carry: tuple[Array, State]) -> tuple[Array, State]:
            pending, following = carry
            which = jnp.argsort(~pending)[:few]
            part = after(jax.tree.map(lambda leaf: leaf[which], states), True)

            def put(old: Array, new: Array) -> Array:
                wanted = pending[which].reshape(-1, *[1] * (new.ndim - 1))
                return old.at[which].set(jnp.where(wanted, new, old[which]))

            return pending.at[which].set(False), jax.tree.map(put, following, part)

        norms = jnp.sum(jax.vmap(jax.vmap(gradient))(states.parameters) ** 2, axis=2)
        honest = norms if method.central else norms[:, : plan.K - plan.f]
        small = after(states, False)
        _, following = jax.lax.while_loop(lambda carry: jnp.any(carry[0]), some, (coin, small))
        return following, jnp.max(honest, axis=1)

    return method, jax.jit(lambda states, coins: jax.lax.scan(step, states, coins))


class Cell(NamedTuple):
    """A measured plan: spent [P] expected trajectories an agent; means [S, P] of ‖∇J(θ_t)‖² over t so far, a seed."""

    plan: Plan
    spent: np.ndarray
    means: np.ndarray


def measure(plan: Plan, seeds: int) -> Cell:
    """Run until E‖∇J(θ_T̂)‖² is surely below ε², or for T iterations, by which the theorems promise it."""
    method, run = advance(plan, seeds)
    states = jax.vmap(method.init)(jax.random.split(jax.random.key(0), seeds))
    rng = np.random.default_rng(0)
    length = max(16, plan.T // 48)
    parts: list[np.ndarray] = []
    while len(parts) * length < plan.T:
        coins = rng.random((length, seeds)) < plan.p
        coins[0] |= not parts
        states, norms = run(states, jnp.asarray(coins))
        parts.append(np.asarray(norms, np.float64))
        now = np.concatenate(parts).mean(axis=0)
        if now.mean() + 4 * now.std() / seeds**0.5 <= plan.epsilon**2:
            break
    norms = np.concatenate(parts)
    means = np.cumsum(norms, axis=0) / np.arange(1, len(norms) + 1)[:, None]
    shown = np.unique(np.linspace(0, len(norms) - 1, POINTS).astype(int))
    spent = plan.N + shown * (plan.p * plan.N + (1 - plan.p) * BATCH)
    return Cell(plan, spent, means[shown].T)


def arrival(x: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """Where each row of y [..., P] first is at most `level`, between two points on a straight line; NaN if never."""
    below = y <= level
    i = np.argmax(below, axis=-1)
    j = np.maximum(i - 1, 0)
    upper, lower = (np.take_along_axis(y, k[..., None], axis=-1)[..., 0] for k in (j, i))
    share = np.where(i == 0, 0.0, (upper - level) / np.where(upper > lower, upper - lower, 1.0))
    return np.where(below.any(axis=-1), x[j] + share * (x[i] - x[j]), np.nan)


def arrivals(cell: Cell, rng: np.random.Generator) -> np.ndarray:
    """[1 + R] trajectories until E‖∇J(θ_T̂)‖² ≤ ε²: of all seeds first, then of seeds drawn with replacement."""
    S = len(cell.means)
    weights = np.concatenate([np.full((1, S), 1 / S), rng.multinomial(S, np.full(S, 1 / S), size=RESAMPLES) / S])
    return arrival(cell.spent, weights @ cell.means, cell.plan.epsilon**2)


def exponents(*variables: np.ndarray, of: np.ndarray) -> np.ndarray:
    """b of the least-squares y = a·x_1^b_1·x_2^b_2…, a row of `of` [..., n] each: [..., variables]."""
    design = np.stack([np.ones(len(variables[0])), *(np.log(x) for x in variables)], axis=1)
    return (np.linalg.pinv(design) @ np.log(of)[..., None])[..., 1:, 0]


def interval(values: np.ndarray) -> dict[str, Any]:
    """The first value, and the middle 95 % of the others."""
    low, high = np.nanpercentile(values[1:], [2.5, 97.5])
    return {"slope": round(float(values[0]), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


# What the corollaries promise for small ε, and, for byzpg-alone, what follows without the 1/K of small batches.
EXPONENTS = {
    ("decbyzpg", False): (-1.0, -3.0), ("byzpg", False): (-1.0, -3.0), ("byzpg-alone", False): (-0.5, -3.0),
    ("decbyzpg", True): (0.0, -4.0), ("byzpg", True): (-0.5, -3.0),
}  # fmt: skip


def slopes(cells: list[Cell]) -> list[dict]:
    """Exponents of K and ε for every algorithm, with and without attackers: measured, promised, and the promise's own
    exponents at the points that were measured."""
    rng = np.random.default_rng(1)
    found = []
    for (name, attacked), promise in EXPONENTS.items():
        here = [cell for cell in cells if cell.plan.algorithm == name and (cell.plan.f > 0) == attacked]
        reached = np.stack([arrivals(cell, rng) for cell in here], axis=1)
        here_too = np.flatnonzero(np.isfinite(reached[0]))
        plans = [here[i].plan for i in here_too]
        K, epsilon = (np.array([getattr(plan, what) for plan in plans]) for what in ("K", "epsilon"))
        formula = np.array([predicted(name, plan.K, plan.f / plan.K, plan.epsilon) for plan in plans])
        both = exponents(K, epsilon, of=reached[:, here_too])
        at_points = exponents(K, epsilon, of=formula)
        for i, variable in enumerate(("K", "epsilon")):
            row = {"algorithm": name, "attacked": attacked, "in": variable, **interval(both[:, i])}
            found.append({**row, "corollary": promise[i], "formula_here": round(float(at_points[i]), 3)})
    return found


def beyond(scale: float, own_side: bool) -> Forge:
    """Receivers on either side hear the honest vector farthest on that side, its distance from the mean times `scale`.

    Sides are those of the longest honest direction; with own_side a receiver's is where it stands, else every second's.
    """

    def forge(key: Array, view: View, receiver: Array) -> Array:
        centre = honest_mean(view.messages, view.mask)
        gaps = jnp.where(view.mask[:, None], 0.0, view.messages - centre)
        along = gaps @ gaps[jnp.argmax(jnp.sum(gaps**2, axis=1))]
        side = jnp.where(along[receiver] >= 0 if own_side else receiver % 2 == 0, 1.0, -1.0)
        far = jnp.argmax(jnp.where(view.mask, -jnp.inf, side * along))
        return jnp.broadcast_to(centre + scale * gaps[far], view.messages.shape)

    return forge


def diameters(K: int = 13, D: int = 6, rounds: int = 10) -> list[dict]:
    """Largest honest diameter after κ rounds over the one before, over adversaries and inputs: MDA and GDA, with one
    liar and with as many as they admit. `bound` is what a round leaves at most (docs/rules.md)."""
    found = []
    for kind, per_liar in (("mda", 3), ("gda", 4)):
        for f in (1, agreements[kind].most(K)):
            after = shrinking(kind, K, f, D, rounds)
            worst = np.max(list(after.values()), axis=0)
            names = list(after)
            rate = (worst[4] / worst[1]) ** (1 / 3)  # rounds 3 to 5: the first depends on the input
            found.append({
                "agreement": kind, "K": K, "byzantine": f, "ratio": [float(f"{x:.3g}") for x in worst],
                "adversary": [names[i] for i in np.argmax(list(after.values()), axis=0)],
                "a_round": round(float(rate), 3), "bound": round(per_liar * f / (K - f), 3),
            })  # fmt: skip
    return found


def shrinking(kind: str, K: int, f: int, D: int, rounds: int) -> dict[str, np.ndarray]:
    """Adversary -> [κ] the largest ratio over inputs."""
    lies = {f"beyond {s}{', own side' * own}": beyond(s, own) for s in (0.5, 1, 1.5, 2, 3) for own in (False, True)}
    for name in ("equivocating-min-max", "equivocating-alie", "dissensus"):
        lies[name] = cast(Forge, make_attack(f"{name}:on=parameters", K, f).parameters)
    mask, agreement = jnp.arange(K) >= K - f, make_agreement(kind, K, f, 1)
    rng = np.random.default_rng(0)
    honest = [honest_rows(rng, what, K - f, D, f) for what in HONEST_ARRANGEMENTS for _ in range(4)]
    inputs = jnp.asarray([np.concatenate([x, x[:f]]) for x in honest], jnp.float32)

    def one(theta: Array, which: Array) -> Array:
        def forge(key: Array, view: View, receiver: Array) -> Array:
            return jnp.stack([lie(key, view, receiver) for lie in lies.values()])[which]

        def once(now: Array, key: Array) -> tuple[Array, Array]:
            now = run_agreement(key, agreement, now, Adversary(mask, forge, True)).parameters
            return now, diameter(now, mask)

        keys = jax.random.split(jax.random.key(0), rounds)
        return jax.lax.scan(once, theta, keys)[1] / diameter(theta, mask)

    every = jax.jit(jax.vmap(jax.vmap(one, (0, None)), (None, 0)))
    return dict(zip(lies, np.asarray(every(inputs, jnp.arange(len(lies)))).max(axis=1), strict=True))


def error(K: int, f: int, N: int, seeds: int) -> dict:
    """E‖v − ∇J(θ_0)‖² of one aggregated large batch."""
    method = build(Plan("byzpg", K, f, 1.0, N, 1.0, 1.0, 1))

    def one(key: Array) -> Array:
        state = method.init(key)
        after, _ = method.step(state, jnp.bool_(True))
        return jnp.sum((after.parameters - state.parameters - gradient(state.parameters[0])) ** 2)

    together = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=16))
    samples = np.asarray(together(jax.random.split(jax.random.key(N), seeds)), np.float64)
    mean, deviation = float(samples.mean()), float(samples.std() / seeds**0.5)
    return {"K": K, "byzantine": f, "N": N, "error": mean, "standard_error": deviation, "samples": samples}


def bias(seeds: int) -> dict[str, Any]:
    """The error against N at K = 20 and against K at N = 256, with slopes."""
    found: dict[str, Any] = {"rows": [], "slopes": []}
    rng = np.random.default_rng(2)
    for share in (0.0, SHARE):
        for variable, places in (("N", [(20, N) for N in (32, 256, 2048)]), ("K", [(K, 256) for K in (5, 20, 40)])):
            rows = [error(K, round(share * K), N, seeds) for K, N in places]
            drawn = [rng.choice(row.pop("samples"), (RESAMPLES, seeds)).mean(axis=1) for row in rows]
            means = np.concatenate([[[row["error"] for row in rows]], np.stack(drawn, axis=1)])
            x = np.array([row[variable] for row in rows], float)
            slope = interval(exponents(x, of=means)[:, 0])
            found["slopes"].append({"share": share, "in": variable, **slope})
            found["rows"] += [{"against": variable, **row} for row in rows]
    return found


SERIES = {
    ("decbyzpg", False): "DecByzPG, α = 0", ("byzpg", False): "ByzPG, α = 0",
    ("byzpg-alone", False): "ByzPG, α = 0, η ∝ √p", ("decbyzpg", True): "DecByzPG, α = 0.2",
    ("byzpg", True): "ByzPG, α = 0.2",
}  # fmt: skip


def described(cell: Cell, rng: np.random.Generator) -> dict:
    """A cell as the report keeps it: the arrival, its 95 % interval, each seed's mean at the arrival, a thin curve."""
    drawn = arrivals(cell, rng)
    reached = bool(np.isfinite(drawn[0]))
    at = int(np.searchsorted(cell.spent, drawn[0])) if reached else len(cell.spent) - 1
    thin = np.unique(np.geomspace(1, len(cell.spent), 40).astype(int)) - 1
    curve = zip(cell.spent[thin], cell.means.mean(axis=0)[thin], strict=True)
    plan = {key: float(f"{x:.5g}") if isinstance(x, float) else x for key, x in cell.plan._asdict().items()}
    low, high = np.nanpercentile(drawn[1:], [2.5, 97.5]) if reached else (None, None)
    return {
        **plan, "trajectories": round(drawn[0]) if reached else None, "low": low and round(low),
        "high": high and round(high), "samples": [float(f"{x:.3g}") for x in cell.means[:, at]],
        "curve": [[round(x), float(f"{y:.3g}")] for x, y in curve],
    }  # fmt: skip


def of_series(report: dict, key: tuple[str, bool], **fixed: float) -> list[dict]:
    """Cells of one series, those with the values given."""
    name, attacked = key
    mine = [row for row in report["cells"] if row["algorithm"] == name and (row["f"] > 0) == attacked]
    return [row for row in mine if all(row[what] == x for what, x in fixed.items())]


def logarithmic(axes: Any, ticks: Iterable[float]) -> None:
    """Both axes logarithmic, these marks on the first."""
    marks = sorted(set(ticks))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(marks, [f"{x:g}" for x in marks])
    axes.set_xticks([], minor=True)


def pictures(report: dict, folder: Path) -> None:
    """theory-convergence.png, theory-trajectories.png, theory-agreement.png."""
    from jaxbyz.report.plots import figure, save

    drawing, axes = figure(2, rows=2, width=10, height=7)
    for place, key in zip(axes.ravel(), [key for key in SERIES if key[0] != "byzpg-alone"], strict=True):
        middle = (ATTACKED_TARGETS if key[1] else TARGETS)[1]
        for row in of_series(report, key, epsilon=middle):
            place.loglog(*zip(*row["curve"], strict=True), label=f"K = {row['K']}")
        place.axhline(middle**2, color="k", linestyle=":", label="ε²")
        place.tick_params(axis="x", which="minor", labelbottom=False)
        place.set_title(f"{SERIES[key]}; N, p, η for ε = {middle}", fontsize=10)
        place.set_xlabel("trajectories per agent")
        place.set_ylabel("E‖∇J(θ_T̂)‖²")
        place.legend(fontsize=8, frameon=False)
    save(drawing, folder / "theory-convergence.png")

    drawing, axes = figure(2, width=10, height=4)
    for place, variable in zip(axes, ("K", "epsilon"), strict=True):
        for key, label in SERIES.items():
            fixed = {"epsilon": (ATTACKED_TARGETS if key[1] else TARGETS)[1]}
            if variable == "epsilon":
                fixed = {"K": (ATTACKED_SOME if key[1] else SOME)[-1]}
            rows = [row for row in of_series(report, key, **fixed) if row["trajectories"]]
            y = np.array([row["trajectories"] for row in rows])
            about = np.array([[row["trajectories"] - row["low"], row["high"] - row["trajectories"]] for row in rows])
            (what, value), *_ = fixed.items()
            name = f"{label}, {'ε' if what == 'epsilon' else what} = {value}"
            place.errorbar([row[variable] for row in rows], y, np.abs(about.T), marker="o", markersize=4, label=name)
        logarithmic(place, (*AGENTS, 5, 10, 20, 40) if variable == "K" else (*TARGETS, *ATTACKED_TARGETS))
        place.set_xlabel("agents K" if variable == "K" else "target ε")
        place.set_ylabel("trajectories per agent until ε²")
        place.legend(fontsize=7, frameon=False)
    start = of_series(report, ("decbyzpg", False), epsilon=TARGETS[1])[0]["trajectories"]
    axes[0].plot(AGENTS, [start / K for K in AGENTS], "k:", linewidth=1)
    save(drawing, folder / "theory-trajectories.png")

    drawing, (left, middle, right) = figure(3, width=12, height=3.8)
    rounds = range(1, 1 + len(report["diameter"][0]["ratio"]))
    for row in report["diameter"]:
        left.semilogy(rounds, row["ratio"], "o-", markersize=3, label=f"{row['agreement']}, {row['byzantine']} of 13")
    left.semilogy(rounds, [2.0**-k for k in rounds], "k:", label="2^−κ")
    left.set_ylim(bottom=1e-5)  # below are the last digits of a float
    left.set_xlabel("agreement rounds κ")
    left.set_ylabel("largest honest diameter after / before")
    for place, variable in ((middle, "N"), (right, "K")):
        for attacked in (False, True):
            rows = [r for r in report["bias"]["rows"] if r["against"] == variable and (r["byzantine"] > 0) == attacked]
            x = [row[variable] for row in rows]
            errors = [2 * row["standard_error"] for row in rows]
            name = f"α = {SHARE if attacked else 0}"
            place.errorbar(x, [row["error"] for row in rows], errors, marker="o", markersize=4, label=name)
        other = {"N": ("large batch N", "K = 20"), "K": ("agents K", "N = 256")}[variable]
        first = next(r for r in report["bias"]["rows"] if r["against"] == variable)
        place.plot(x, [first["error"] * x[0] / v for v in x], "k:", label="slope −1")
        logarithmic(place, x)
        place.set_xlabel(other[0])
        place.set_ylabel(f"E‖v − ∇J‖², {other[1]}")
    for place in (left, middle, right):
        place.legend(fontsize=8, frameon=False)
    save(drawing, folder / "theory-agreement.png")


def plans(c: Constants, quick: bool) -> list[Plan]:
    """All cells; in a quick look, only the least and a middle K and two ε."""
    found = []
    for name, attacked in EXPONENTS:
        targets = ATTACKED_TARGETS if attacked else TARGETS
        agents, some = ([*ATTACKED], [*ATTACKED_SOME]) if attacked else ([*AGENTS], [*SOME])
        if name == "byzpg-alone":  # one agent alone is ByzPG
            agents, some = agents[1:], some[1:]
        if (name, attacked) == ("decbyzpg", True):  # exact MDA among 40 in every iteration takes its time
            agents = agents[:-1]
        if quick:
            agents, some = [agents[0], some[-1]], some[-1:]
        for epsilon in targets[: 2 if quick else None]:
            for K in agents if epsilon == targets[1] else some:
                found.append(chosen(name, K, round(SHARE * K) if attacked else 0, epsilon, c))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="fewer K and ε")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/theory.json"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"))
    given = parser.parse_args()
    prepare()
    begin = time.monotonic()
    c = constants()
    print(c, flush=True)
    report: dict[str, Any] = {
        "command": "python benchmarks/theory.py" + " --quick" * given.quick, "environment": describe_environment(),
        "seeds": given.seeds, "constants": c._asdict(), "start": float(jnp.linalg.norm(gradient(jnp.zeros(2)))),
        "attack": ATTACK, "rule": RULE, "diameter": diameters(), "bias": bias(512),
    }  # fmt: skip
    print(f"agreement and bias: {time.monotonic() - begin:.0f} s", flush=True)
    rng = np.random.default_rng(3)
    cells, report["cells"] = [], []
    for plan in plans(c, given.quick):
        start = time.monotonic()
        cells.append(measure(plan, given.seeds))
        report["cells"].append({**described(cells[-1], rng), "seconds": round(time.monotonic() - start, 1)})
        print({k: v for k, v in report["cells"][-1].items() if k not in ("curve", "samples")}, flush=True)
    report["slopes"] = slopes(cells)
    report["seconds"] = round(time.monotonic() - begin)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, report)
    pictures(report, given.pictures)
    for row in (*report["slopes"], *report["bias"]["slopes"], *report["diameter"]):
        print(row)
    print(f"{report['seconds']} s")


if __name__ == "__main__":
    main()
