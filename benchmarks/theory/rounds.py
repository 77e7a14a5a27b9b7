"""Measurements of single rounds: how fast agreement shrinks the honest diameter, and the error of an aggregate."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from convergence import BYZANTINE_SHARE, RESAMPLES, Plan, build, fit_exponents, with_interval
from jaxtyping import Array
from problem import exact_gradient

from jaxbyz.attacks import View
from jaxbyz.attacks.base import Forge
from jaxbyz.attacks.honest_statistics import honest_mean
from jaxbyz.certify.starting_inputs import HONEST_ARRANGEMENTS, honest_rows
from jaxbyz.components import make_agreement, make_attack
from jaxbyz.protocol.agreements import agreements, diameter, run_agreement
from jaxbyz.protocol.exchange import Adversary


def pull_apart(scale: float, own_side: bool) -> Forge:
    """Return an equivocating attack that pulls two groups of receivers in opposite directions.

    Each group receives the honest vector that is farthest on its side, its distance from the honest mean multiplied by
    `scale`. Sides are those of the longest honest direction. With `own_side` a receiver belongs to the side on which
    its own vector lies; otherwise receivers alternate.
    """

    def forge(key: Array, view: View, receiver: Array) -> Array:
        centre = honest_mean(view.messages, view.mask)
        deviations = jnp.where(view.mask[:, None], 0.0, view.messages - centre)
        along = deviations @ deviations[jnp.argmax(jnp.sum(deviations**2, axis=1))]
        side = jnp.where(along[receiver] >= 0 if own_side else receiver % 2 == 0, 1.0, -1.0)
        farthest = jnp.argmax(jnp.where(view.mask, -jnp.inf, side * along))
        return jnp.broadcast_to(centre + scale * deviations[farthest], view.messages.shape)

    return forge


def diameter_ratios(K: int = 13, D: int = 6, rounds: int = 10) -> list[dict[str, Any]]:
    """Measure the honest diameter after κ rounds relative to the one before, for the worst adversary and input.

    MDA and GDA are measured with one Byzantine agent and with as many as they tolerate. `a_round` is the measured
    factor per round, `bound` the proven one (docs/rules.md).
    """
    rows = []
    for kind, bound_factor in (("mda", 3), ("gda", 4)):
        for f in (1, agreements[kind].most(K)):
            by_adversary = worst_ratios(kind, K, f, D, rounds)
            ratios, names = np.stack(list(by_adversary.values())), list(by_adversary)
            worst = ratios.max(axis=0)
            per_round = (worst[4] / worst[1]) ** (1 / 3)  # rounds 3 to 5: the first rounds depend on the input
            rows.append({
                "agreement": kind, "K": K, "byzantine": f, "ratio": [float(f"{x:.3g}") for x in worst],
                "adversary": [names[i] for i in ratios.argmax(axis=0)],
                "a_round": round(float(per_round), 3), "bound": round(bound_factor * f / (K - f), 3),
            })  # fmt: skip
    return rows


def worst_ratios(kind: str, K: int, f: int, D: int, rounds: int) -> dict[str, np.ndarray]:
    """Return adversary -> `[κ]`, the largest diameter ratio over all inputs."""
    forges = {
        f"beyond {scale}{', own side' * own_side}": pull_apart(scale, own_side)
        for scale in (0.5, 1, 1.5, 2, 3)
        for own_side in (False, True)
    }
    for name in ("equivocating-min-max", "equivocating-alie", "dissensus"):
        forges[name] = cast(Forge, make_attack(f"{name}:on=parameters", K, f).parameters)
    mask, agreement = jnp.arange(K) >= K - f, make_agreement(kind, K, f, 1, unsafe=True)
    rng = np.random.default_rng(0)
    honest = [honest_rows(rng, shape, K - f, D, f) for shape in HONEST_ARRANGEMENTS for _ in range(4)]
    inputs = jnp.asarray([np.concatenate([rows, rows[:f]]) for rows in honest], jnp.float32)

    def ratios(theta: Array, which: Array) -> Array:
        def forge(key: Array, view: View, receiver: Array) -> Array:
            return jnp.stack([each(key, view, receiver) for each in forges.values()])[which]

        def one_round(held: Array, key: Array) -> tuple[Array, Array]:
            held = run_agreement(key, agreement, held, Adversary(mask, forge, True)).parameters
            return held, diameter(held, mask)

        keys = jax.random.split(jax.random.key(0), rounds)
        return jax.lax.scan(one_round, theta, keys)[1] / diameter(theta, mask)

    all_ratios = jax.jit(jax.vmap(jax.vmap(ratios, (0, None)), (None, 0)))(inputs, jnp.arange(len(forges)))
    return dict(zip(forges, np.asarray(all_ratios).max(axis=1), strict=True))


def aggregate_error(K: int, f: int, N: int, samples: int) -> dict[str, Any]:
    """Estimate E‖v − ∇J(θ_0)‖² of one aggregated large batch."""
    algorithm = build(Plan("byzpg", K, f, 1.0, N, 1.0, 1.0, 1))

    def squared_error(key: Array) -> Array:
        state = algorithm.init(key)
        after, _ = algorithm.step(state, jnp.bool_(True))
        return jnp.sum((after.parameters - state.parameters - exact_gradient(state.parameters[0])) ** 2)

    all_errors = jax.jit(lambda keys: jax.lax.map(squared_error, keys, batch_size=16))
    errors = np.asarray(all_errors(jax.random.split(jax.random.key(N), samples)), np.float64)
    standard_error = float(errors.std() / samples**0.5)
    return {
        "K": K, "byzantine": f, "N": N, "error": float(errors.mean()), "standard_error": standard_error,
        "samples": errors,
    }  # fmt: skip


def aggregate_errors(samples: int) -> dict[str, Any]:
    """Measure the error against N at K = 20 and against K at N = 256, and fit exponents."""
    report: dict[str, Any] = {"rows": [], "slopes": []}
    rng = np.random.default_rng(2)
    points = {"N": [(20, N) for N in (32, 256, 2048)], "K": [(K, 256) for K in (5, 20, 40)]}
    for share in (0.0, BYZANTINE_SHARE):
        for variable, pairs in points.items():
            rows = [aggregate_error(K, round(share * K), N, samples) for K, N in pairs]
            resampled = [rng.choice(row.pop("samples"), (RESAMPLES, samples)).mean(axis=1) for row in rows]
            errors = np.concatenate([[[row["error"] for row in rows]], np.stack(resampled, axis=1)])
            x = np.array([row[variable] for row in rows], float)
            slope = with_interval(fit_exponents(x, of=errors)[:, 0])
            report["slopes"].append({"share": share, "in": variable, **slope})
            report["rows"] += [{"against": variable, **row} for row in rows]
    return report
