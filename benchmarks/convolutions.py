"""Convolutions of many agents: XLA's own beside one matrix product per row of the kernel.

    python benchmarks/convolutions.py [--seeds 1 10] [--rounds 5] [--out benchmarks/results/convolutions-cpu.json]

The federation is that of the preset `breakout` with 13 agents, 3 of them Byzantine (AvgZero). For every number of
seeds, three programs are measured in both ways: the episodes of a batch, the estimates of all agents from these
episodes, and a whole iteration. All are compiled and run once before they are timed, and the two ways take turns. The
file has the seconds of every round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from jaxbyz.accelerate.setup import prepare

prepare()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import jaxbyz as jb  # noqa: E402
from jaxbyz.accelerate.convolutions import convolve_by_products, plain_convolve  # noqa: E402
from jaxbyz.experiments.run_folder import describe_environment  # noqa: E402
from jaxbyz.files import write_json  # noqa: E402
from jaxbyz.policies import convolutional  # noqa: E402
from jaxbyz.sampling.estimators import estimate  # noqa: E402
from jaxbyz.sampling.rollout import collect  # noqa: E402

WAYS = {"convolution": plain_convolve, "products": convolve_by_products}
FEDERATION = {"agents": 13, "byzantine": 3, "attack": "avg-zero"}


def programs(seeds: int, convolve: Callable) -> dict[str, Callable[[], Any]]:
    """Return compiled programs of the episodes, the estimates and an iteration with this convolution."""
    with mock.patch.object(convolutional, "convolve", convolve):
        config = jb.resolve("breakout", **FEDERATION)
        algorithm = jb.build(config)
        environment = jb.make_environment(config.env)
        policy, estimator = algorithm.policy, jb.Estimator(gamma=config.gamma, horizon=config.horizon)
        keys = jax.random.split(jax.random.key(0), seeds * config.agents)
        theta = jax.vmap(policy.init)(keys)

        @jax.jit
        def episodes(theta: jax.Array, keys: jax.Array) -> Any:
            return collect(environment, policy, theta, keys, config.N, config.horizon)

        @jax.jit
        def estimates(theta: jax.Array, batch: Any) -> jax.Array:
            return estimate(estimator, policy, theta, batch)

        batch = episodes(theta, keys)
        states = jax.vmap(algorithm.init)(jax.random.split(jax.random.key(0), seeds))
        iterate = jax.jit(jax.vmap(algorithm.step, in_axes=(0, None)))
        made = {
            "episodes": lambda: episodes(theta, keys),
            "estimates": lambda: estimates(theta, batch),
            "iteration": lambda: iterate(states, jnp.bool_(True))[0].parameters,
        }
        for program in made.values():
            jax.block_until_ready(program())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/convolutions-cpu.json"))
    given = parser.parse_args()
    rows = []
    for seeds in given.seeds:
        made = {way: programs(seeds, convolve) for way, convolve in WAYS.items()}
        for part in ("episodes", "estimates", "iteration"):
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way in WAYS:
                    started = time.perf_counter()
                    jax.block_until_ready(made[way][part]())
                    seconds[way].append(round(time.perf_counter() - started, 5))
            ratios = sorted(a / b for a, b in zip(*seconds.values(), strict=True))
            ratio = {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
            medians = {way: statistics.median(taken) for way, taken in seconds.items()}
            print(f"{seeds} seeds, {part}: {medians} s, products {ratio['median']:.2f} times as fast", flush=True)
            rows.append({"seeds": seeds, "part": part, "ratio": ratio, "seconds": seconds})
    write_json(given.out, {"environment": describe_environment(), "federation": FEDERATION, "rows": rows})


if __name__ == "__main__":
    main()
