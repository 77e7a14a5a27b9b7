"""The paper's theory, measured on a small MDP whose J and ∇J are known exactly.

    python benchmarks/theory.py [--seeds 64] [--out benchmarks/results/theory.json] [--pictures docs/images]

Three things, with plain ascent and the algorithms as the paper writes them (previous estimate (θ_t − θ_{t−1})/η, no
baseline, no clipping):

1. Trajectories an agent needs until E‖∇J(θ_T̂)‖² ≤ ε², T̂ uniform over the iterations so far, with N, p, η chosen as in
   Corollaries 1 and 2 (N ∝ ε⁻²(α + 1/K), p = 1/N, η = ½ min(1/√A, 1/L) with A ∝ α/p² + 1/(pK)): slopes in K and in ε.
2. Diameter of honest parameters against agreement rounds κ; the adversary tells every receiver something else.
3. E‖v − ∇J‖² of an aggregated large batch against N.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbyz.agreements import agreements, diameter, run_agreement
from jaxbyz.algorithms import byzpg, decbyzpg
from jaxbyz.api import make_agreement, make_attack, make_rule
from jaxbyz.cli import prepare_jax
from jaxbyz.environments import tabular
from jaxbyz.estimators import Estimator
from jaxbyz.page import Page
from jaxbyz.results import describe_environment
from jaxbyz.training import common_coins

AGENTS = (1, 2, 4, 8, 16, 32)
SHARES = (0.0, 0.2)
TARGETS = (0.2, 0.14, 0.1)  # ε; the first policies have ‖∇J‖ of about 0.4
BATCH, NOISE, SMOOTH = 4, 0.6, 0.5  # B; the constants in N and in η: σ² and L
ATTACK, RULE = "avg-zero", "rfa"
gradient = jax.grad(tabular.value)


def algorithm(name: str, K: int, f: int, N: int, p: float, eta: float):
    """Algorithm 1 or 2 to the letter."""
    page = Page(N, min(BATCH, N), Estimator(gamma=tabular.GAMMA, horizon=tabular.HORIZON), "realized", eta)
    parts = {
        "agents": K, "byzantine": f, "aggregator": make_rule(RULE, K, f), "optimizer": optax.sgd(eta),
        "attack": make_attack(ATTACK if f else "none", K, f), "page": page, "p": p,
    }  # fmt: skip
    if name == "byzpg":
        return byzpg(tabular.environment(), tabular.policy(), **parts)
    return decbyzpg(tabular.environment(), tabular.policy(), agreement=make_agreement("mda", K, f, 6), **parts)


def chosen(K: int, alpha: float, epsilon: float) -> tuple[int, float, float]:
    """N, p and η as the corollaries choose them."""
    N = max(1, round(NOISE * (alpha + 1 / K) / epsilon**2))
    p = 1 / N
    A = alpha / p**2 + 1 / (p * K)
    return N, p, 0.5 * min(1 / A**0.5, 1 / SMOOTH)


def convergence(name: str, K: int, alpha: float, epsilon: float, seeds: int) -> dict:
    """Trajectories until the mean over iterations and seeds of ‖∇J‖² is at most ε²."""
    f = int(alpha * K)
    N, p, eta = chosen(K, f / K, epsilon)
    method = algorithm(name, K, f, N, p, eta)
    T = math.ceil(2 / (epsilon**2 * eta))

    def run(key):
        coins = common_coins(jax.random.fold_in(key, 1), p, T)

        def step(state, coin):
            norms = jnp.sum(jax.vmap(gradient)(state.parameters) ** 2, axis=1)
            honest = norms[: K - f] if norms.shape[0] == K else norms
            state, metrics = method.step(state, coin)
            return state, (jnp.mean(honest), metrics.trajectories)

        return jax.lax.scan(step, method.init(key), coins)[1]

    norms, sampled = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))
    so_far = np.cumsum(np.asarray(norms, np.float64).mean(axis=0)) / np.arange(1, T + 1)
    spent = np.cumsum(np.asarray(sampled, np.float64).mean(axis=0))
    below = so_far <= epsilon**2
    shown = slice(None, None, max(1, T // 40))
    return {
        "algorithm": name, "K": K, "byzantine": f, "epsilon": epsilon, "N": N, "p": p, "eta": eta,
        "trajectories": float(spent[np.argmax(below)]) if below.any() else None,
        "curve": [[round(float(x)), float(f"{y:.4g}")] for x, y in zip(spent[shown], so_far[shown], strict=True)],
    }  # fmt: skip


def slope(x: list[float], y: list[float]) -> float:
    """Of a straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slopes(runs: list[dict]) -> list[dict]:
    """In K at each ε, in ε at each K, for every algorithm, with and without attackers."""
    found = []
    for name in ("decbyzpg", "byzpg"):
        for attacked in (False, True):
            here = [
                r for r in runs
                if r["algorithm"] == name and (r["byzantine"] > 0) == attacked and r["trajectories"] is not None
            ]  # fmt: skip
            for kind, fixed in (("K", "epsilon"), ("epsilon", "K")):
                for value in sorted({r[fixed] for r in here}):
                    rows = [r for r in here if r[fixed] == value]
                    if len(rows) >= 3:
                        exponent = slope([r[kind] for r in rows], [r["trajectories"] for r in rows])
                        found.append(
                            {"algorithm": name, "attacked": attacked, "in": kind, fixed: value, "slope": exponent}
                        )
    return found


def diameters(K: int = 13, f: int = 3, D: int = 6, trials: int = 200) -> list[dict]:
    """Largest and mean honest diameter after κ rounds over the one before, equivocating adversary."""
    rows = []
    for kind in ("mda", "gda"):
        f_kind = min(f, agreements[kind].most(K))
        attack = make_attack("equivocating-min-max:on=parameters", K, f_kind)
        for kappa in range(1, 11):
            agreement = make_agreement(kind, K, f_kind, kappa)

            def one(key, agreement=agreement, f_kind=f_kind, attack=attack):
                theta = jax.random.normal(jax.random.fold_in(key, 0), (K, D))
                mask = jnp.arange(K) >= K - f_kind
                out = run_agreement(
                    jax.random.fold_in(key, 1), agreement, theta, mask, attack.parameters, equivocates=True,
                    memory=attack.init(K, D), step=jnp.int32(0),
                )  # fmt: skip
                return diameter(out.parameters, ~mask) / diameter(theta, ~mask)

            ratio = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(kappa), trials)))
            rows.append(
                {
                    "agreement": kind,
                    "byzantine": f_kind,
                    "kappa": kappa,
                    "largest": float(ratio.max()),
                    "mean": float(ratio.mean()),
                }
            )
    return rows


def bias(seeds: int, K: int = 16) -> list[dict]:
    """E‖v − ∇J(θ_0)‖² of one aggregated large batch."""
    theta = tabular.policy().init(jax.random.key(5))
    exact = gradient(theta)
    rows = []
    for f in (0, 3):
        for N in (4, 16, 64, 256):
            eta = 1.0
            method = algorithm("byzpg", K, f, N, 1.0, eta)

            def one(key, method=method, eta=eta):
                state = method.init(key)
                state = state._replace(parameters=theta[None], previous=theta[None])
                after, _ = method.step(state, jnp.bool_(True))
                return jnp.sum(((after.parameters[0] - theta) / eta - exact) ** 2)

            error = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(N), 4 * seeds)))
            rows.append({"K": K, "byzantine": f, "N": N, "error": float(error.mean()),
                         "standard_error": float(error.std() / len(error) ** 0.5)})  # fmt: skip
    return rows


def pictures(report: dict, folder: Path) -> None:
    """theory-trajectories.png: trajectories against K and curves; theory-agreement.png: diameter and bias."""
    from jaxbyz.report.plots import figure, save

    drawing, axes = figure(2, rows=2, width=10, height=7)
    for place, (name, attacked) in zip(
        axes.ravel(), [(n, a) for n in ("decbyzpg", "byzpg") for a in (False, True)], strict=True
    ):
        for epsilon in TARGETS:
            rows = [
                r for r in report["convergence"]
                if r["algorithm"] == name and r["epsilon"] == epsilon and r["trajectories"] is not None
                and (r["byzantine"] > 0) == attacked
            ]  # fmt: skip
            place.loglog([r["K"] for r in rows], [r["trajectories"] for r in rows], "o-", label=f"ε = {epsilon}")
        if not attacked:
            first = [r for r in report["convergence"] if r["algorithm"] == name and r["epsilon"] == TARGETS[0]]
            start = next((r["trajectories"] for r in first if r["trajectories"]), 1.0)
            place.loglog(AGENTS, [start / K for K in AGENTS], "k:", label="slope −1")
        place.set_title(f"{name}, {'α = 0.2 (' + ATTACK + ')' if attacked else 'α = 0'}", fontsize=10)
        place.set_xlabel("agents K")
        place.set_ylabel("trajectories per agent")
        place.legend(fontsize=8, frameon=False)
    save(drawing, folder / "theory-trajectories.png")

    drawing, (left, right) = figure(2, width=10, height=3.8)
    for kind in ("mda", "gda"):
        rows = [r for r in report["diameter"] if r["agreement"] == kind]
        largest = [max(r["largest"], 1e-9) for r in rows]
        left.semilogy([r["kappa"] for r in rows], largest, "o-", label=f"{kind}, largest")
    left.semilogy(range(1, 11), [2.0**-k for k in range(1, 11)], "k:", label="2^−κ")
    left.set_xlabel("agreement rounds κ")
    left.set_ylabel("honest diameter after / before")
    left.legend(fontsize=8, frameon=False)
    for f in (0, 3):
        rows = [r for r in report["bias"] if r["byzantine"] == f]
        right.loglog([r["N"] for r in rows], [r["error"] for r in rows], "o-", label=f"{f} of 16 Byzantine")
    first = report["bias"][0]
    right.loglog([4, 256], [first["error"], first["error"] * 4 / 256], "k:", label="slope −1")
    right.set_xlabel("large batch N")
    right.set_ylabel("E‖v − ∇J‖²")
    right.legend(fontsize=8, frameon=False)
    save(drawing, folder / "theory-agreement.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/theory.json"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"))
    given = parser.parse_args()
    prepare_jax()
    begin = time.monotonic()
    runs = []
    for name in ("decbyzpg", "byzpg"):
        for alpha in SHARES:
            for K in AGENTS:
                if alpha and int(alpha * K) == 0:
                    continue
                for epsilon in TARGETS:
                    runs.append(convergence(name, K, alpha, epsilon, given.seeds))
                    print({k: v for k, v in runs[-1].items() if k != "curve"}, flush=True)
    report = {
        "command": "python benchmarks/theory.py", "environment": describe_environment(), "seeds": given.seeds,
        "convergence": runs, "slopes": slopes(runs), "diameter": diameters(), "bias": bias(given.seeds),
        "bias_slopes": {},
    }  # fmt: skip
    for f in (0, 3):
        rows = [r for r in report["bias"] if r["byzantine"] == f]
        report["bias_slopes"][str(f)] = slope([r["N"] for r in rows], [r["error"] for r in rows])
    report["seconds"] = round(time.monotonic() - begin, 1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    pictures(report, given.pictures)
    for row in (*report["slopes"], *report["diameter"], *report["bias"]):
        print(row)
    print(report["bias_slopes"], f"{report['seconds']} s")


if __name__ == "__main__":
    main()
