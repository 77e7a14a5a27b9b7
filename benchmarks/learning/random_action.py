"""Why acting at random breaks the mean on LunarLander without a baseline: the size and direction of the messages.

    python benchmarks/learning/random_action.py [--seeds 4] [--out benchmarks/results/random_action.json]

Thirteen honest agents train as Dec-PAGE-PG does (large batches of 96 with a leave-one-out baseline). Before and after
that, 3 of the 13 act uniformly at random for one batch. With and without a baseline, the file has the length of their
mean message over that of the honest mean, the cosine of both, and the cosine of the mean of all 13 with the honest mean
of another batch, in which nobody lies; every number is one per seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbyz as jb
from jaxbyz.attacks.environment import random_action
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling.page import Sampled, Sampler, sampler
from jaxbyz.sampling.scoring import SamplingInputs

AGENTS, BYZANTINE, EPISODES, ITERATIONS = 13, 3, 96, 20


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def compare(messages: np.ndarray, honest_messages: np.ndarray) -> dict[str, float]:
    """Compare messages `[K, D]`, the first of which are Byzantine, with those of a batch in which nobody lies."""
    liars, honest = messages[:BYZANTINE].mean(axis=0), messages[BYZANTINE:].mean(axis=0)
    truth = honest_messages.mean(axis=0)
    return {
        "length of the liars' mean, relative": float(np.linalg.norm(liars) / np.linalg.norm(honest)),
        "cosine of the liars' mean with the honest mean": cosine(liars, honest),
        "cosine of the mean of all with the honest mean": cosine(messages.mean(axis=0), truth),
        "cosine of the mean of honest agents with that of another batch": cosine(honest, truth),
    }


def measure(seeds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the comparisons by training and baseline, and the mean honest returns."""
    environment = jb.make_environment("LunarLander-v3")
    policy = jb.mlp_policy(environment, (64, 64), output_activation="tanh")
    sampling = {"N": EPISODES, "p": 1.0, "horizon": 1000}
    trained = jb.dec_page_pg(environment, policy, agents=AGENTS, baseline="leave-one-out", **sampling)
    train = jax.jit(lambda key: jb.train(trained, key, ITERATIONS).run.state.parameters[0])
    acts_at_random = random_action().interference(environment.actions)
    mask = jnp.arange(AGENTS) < BYZANTINE
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    draw: dict[str, Any] = {}
    for baseline in ("none", "leave-one-out"):
        sample = sampler(environment, policy, jb.Sampling(baseline=baseline, **sampling), acts_at_random)

        def sampled(theta: jax.Array, key: jax.Array, mask: jax.Array, sample: Sampler = sample) -> Sampled:
            theta = jnp.tile(theta, (AGENTS, 1))
            inputs = SamplingInputs(theta, theta, theta, jax.random.split(key, AGENTS), mask, {}, sample.init(key))
            return sample.large(inputs).sampled

        draw[baseline] = jax.jit(sampled)
    for seed in range(seeds):
        key = jax.random.key(seed)
        for when, theta in (("initial policy", policy.init(key)), (f"after {ITERATIONS} batches", train(key))):
            for baseline, sampled in draw.items():
                lying, honest = sampled(theta, key, mask), sampled(theta, jax.random.fold_in(key, 1), mask & False)
                values = compare(np.asarray(lying.estimate), np.asarray(honest.estimate))
                values |= {
                    "return of liars": float(jnp.mean(lying.returns[:BYZANTINE])),
                    "return of honest agents": float(jnp.mean(lying.returns[BYZANTINE:])),
                }
                cell = found.setdefault(when, {}).setdefault(baseline, {})
                for name, value in values.items():
                    cell.setdefault(name, []).append(round(value, 4))
                print(seed, when, baseline, {name: round(value, 3) for name, value in values.items()}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/random_action.json"))
    given = parser.parse_args()
    jb.prepare()
    results = measure(given.seeds)
    write_json(given.out, {"environment": describe_environment(), "seeds": given.seeds, "results": results})


if __name__ == "__main__":
    main()
