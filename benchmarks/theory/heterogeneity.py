"""Measure what heterogeneous agents do to the error of robust aggregation; see docs/measurements/theory.md.

    python benchmarks/theory/heterogeneity.py [--samples 256] [--out benchmarks/results/theory_heterogeneity.json]

Every agent has its own rewards r(s, a)·(1 + s·u), u ~ U(−1, 1), in the MDP of `problem.py`, so that ∇J_k is
known exactly. One large batch of K agents is aggregated under attack and compared with the mean of the honest ∇J_k.
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from problem import ESTIMATOR, MDP, preferences, shared_policy

import jaxbyz as jb
from jaxbyz.accelerate.setup import prepare
from jaxbyz.environments import agent_params, heterogeneous
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling import tabular_mdp

K, F = 20, 4
RULE, ATTACK = "bucketing+rfa", "avg-zero"
SPREADS, BATCHES = (0.0, 0.25, 0.5, 1.0), (32, 128, 512, 2048)
HONEST = K - F


def pairwise(rows: Array) -> Array:
    """Return the mean of ‖x_i − x_l‖² over ordered pairs of different rows, the sum of Definition 2."""
    centred = rows - rows.mean(axis=0, keepdims=True)
    return 2.0 * jnp.sum(centred**2) / (rows.shape[0] - 1)


@functools.cache
def error_of(N: int, samples: int) -> Any:
    """Return the compiled function reward tables `[K, S, A]` -> errors, pairwise distances of messages, ζ²."""

    def measure(rewards: Array, keys: Array) -> tuple[Array, Array]:
        environment = tabular_mdp.environment()._replace(own_params=lambda key: {"reward": rewards})
        parts = {"agents": K, "byzantine": F, "optimizer": "sgd", "eta": 1.0, "N": N, "B": 1, "p": 1.0, **MDP}
        algorithm = jb.byzpg(environment, shared_policy(), aggregator=RULE, attack=ATTACK, **parts)
        theta = jnp.zeros(2)
        gradients = jax.vmap(
            lambda reward: jax.grad(lambda x: tabular_mdp.value(preferences(x).ravel(), own={"reward": reward}))(theta)
        )(rewards)[:HONEST]

        def squared_error(key: Array) -> Array:
            after, _ = algorithm.step(algorithm.init(key), jnp.bool_(True))
            return jnp.sum((after.parameters[0] - gradients.mean(axis=0)) ** 2)

        return jax.lax.map(squared_error, keys, batch_size=16), pairwise(gradients)

    compiled = jax.jit(measure)
    return lambda rewards: compiled(rewards, jax.random.split(jax.random.key(N), samples))


def variance_of_one_trajectory(samples: int = 20_000) -> float:
    """Return σ² at θ_0 in the nominal environment."""
    from jaxbyz.sampling.estimators import estimate
    from jaxbyz.sampling.rollout import collect

    policy, rows = shared_policy(), jnp.zeros((samples, 2))

    @jax.jit
    def run(keys: Array) -> Array:
        episodes = collect(tabular_mdp.environment(), policy, rows, keys, 1, tabular_mdp.HORIZON)
        return jnp.sum(jnp.var(estimate(ESTIMATOR, policy, rows, episodes), axis=0))

    return float(run(jax.random.split(jax.random.key(0), samples)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/theory_heterogeneity.json"))
    arguments = parser.parse_args()
    prepare()
    start, rows = time.monotonic(), []
    sigma2 = variance_of_one_trajectory()
    for N in BATCHES:
        for spread in SPREADS:
            environment = heterogeneous(tabular_mdp.environment(), K, spread={"reward": spread})
            own = agent_params(environment, jax.random.key(1), K)
            rewards = own.get("reward", jnp.tile(jnp.asarray(tabular_mdp.REWARD, jnp.float32), (K, 1, 1)))
            errors, zeta2 = (np.asarray(x, np.float64) for x in error_of(N, arguments.samples)(rewards))
            right = 2 * sigma2 / N + float(zeta2)
            row = {
                "N": N, "spread": spread, "error": errors.mean(), "standard_error": errors.std() / len(errors) ** 0.5,
                "zeta2": float(zeta2), "pairwise": right, "C": errors.mean() / (F / K * right),
            }  # fmt: skip
            rows.append(row)
            print({name: round(float(value), 5) for name, value in row.items()}, flush=True)
    report = {
        "command": "python benchmarks/theory/heterogeneity.py", "environment": describe_environment(), "K": K,
        "byzantine": F, "rule": RULE, "attack": ATTACK, "sigma2": sigma2, "samples": arguments.samples, "rows": rows,
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    write_json(arguments.out, report)


if __name__ == "__main__":
    main()
