"""How far the limits are: what a large CartPole batch must compute and move, at the rates this machine reaches.

    python benchmarks/limits.py [--out benchmarks/results/limits.json]

13 agents, 50 episodes of 500 steps, rollout and gradient, on one core. Four rates are measured in the same process:
matrix products and copies (what a roofline is made of), and the two things this program needs besides, tanh and random
bits. Each divided into the amount needed gives seconds nobody can go below; their sum, as they share one core, is the
floor. The rest is traffic of small arrays, the environment's own formulas and loop overhead.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import speed

from jaxbyz.experiments.files import write_json
from jaxbyz.experiments.run_folder import describe_environment

LAYERS = ((4, 16), (16, 16), (16, 2))
STEPS = speed.AGENTS * speed.EPISODES * speed.HORIZON


def needed() -> dict[str, float]:
    """Of one batch: floating-point operations, bytes, tanh and random 32-bit words."""
    forward = sum(2 * a * b + b for a, b in LAYERS)
    units = sum(b for _, b in LAYERS)
    environment = 40  # CartPole's formulas, sin and cos counted as one each
    stored = 4 * (4 + 1 + 1 + 1) + 1  # observation, action, reward, log-probability; alive
    return {
        "flops": STEPS * (forward + 3 * forward + environment),  # rollout; forward and backward of the gradient
        "bytes": STEPS * stored * 2,  # written by the rollout, read by the gradient
        "tanh": STEPS * units * 2,
        "random_words": STEPS * 1,  # one uniform number an action
    }


def rate(amount: float, program: Callable[..., Any], *args: Any, rounds: int = 7) -> float:
    compiled = jax.jit(program)
    return amount / min(speed.samples(rounds, it=lambda: compiled(*args))["it"])


def rates() -> dict[str, float]:
    n, length = 1024, 2**24
    square = jax.random.normal(jax.random.key(0), (n, n))
    block = jax.random.normal(jax.random.key(0), (256, 256))  # stays in the cache
    line = jnp.arange(length, dtype=jnp.float32)
    many = 200
    return {
        "flops": rate(2 * n**3, lambda a: a @ a, square),
        "bytes": rate(8 * length, lambda a: a + 1.0, line),
        "tanh": rate(many * block.size, lambda a: jax.lax.fori_loop(0, many, lambda _, x: jnp.tanh(x) + 0.5, a), block),
        "random_words": rate(2**22, lambda key: jax.random.bits(key, (2**22,)), jax.random.key(0)),
    }


def measure(rounds: int = 9) -> dict[str, Any]:
    amounts, reached = needed(), rates()
    taken = speed.samples(rounds, **speed.batch_programs(speed.AGENTS, endless=True))
    floor = {name: amounts[name] / reached[name] for name in amounts}
    seconds = statistics.median(taken["ours"])
    return {
        "needed": amounts,
        "rates": reached,
        "floor_seconds": floor,
        "seconds": taken["ours"],
        "share_of_matrix_limit": floor["flops"] / seconds,
        "share_of_copy_limit": floor["bytes"] / seconds,
        "share_of_floor": sum(floor.values()) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/limits.json"))
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before JAX starts its threads
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report = {"command": "python benchmarks/limits.py", "environment": describe_environment(), **measure()}
    print({name: value for name, value in report.items() if name not in ("environment", "seconds")})
    write_json(given.out, report)


if __name__ == "__main__":
    main()
