"""Compare the time of a large CartPole batch with a lower bound from the rates that this machine reaches.

    python benchmarks/speed/limits.py [--out benchmarks/results/limits.json]

The batch has 13 agents with 50 episodes of 500 steps; rollout and gradient run on one core. Four rates are measured in
the same process: matrix products and copies (as in a roofline model), tanh, and random bits. The amount of each that
the batch needs, divided by its rate, is a time that no program can undercut. All four share one core, so their sum is a
lower bound. The rest of the time goes to small arrays, the environment's formulas and loop overhead.
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
from against_plain import AGENTS, EPISODES, HORIZON, batch_programs, samples

from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment

LAYERS = ((4, 16), (16, 16), (16, 2))
STEPS = AGENTS * EPISODES * HORIZON


def needed_amounts() -> dict[str, float]:
    """Return what one batch needs: floating-point operations, bytes, tanh evaluations and random 32-bit words."""
    forward = sum(2 * a * b + b for a, b in LAYERS)
    units = sum(b for _, b in LAYERS)
    environment = 40  # CartPole's formulas, sin and cos counted as one each
    stored = 4 * (4 + 1 + 1 + 1) + 1  # observation, action, reward, log-probability; alive
    return {
        "flops": STEPS * (forward + 3 * forward + environment),  # rollout; forward and backward of the gradient
        "bytes": STEPS * stored * 2,  # written by the rollout, read by the gradient
        "tanh": STEPS * units * 2,
        "random_words": STEPS * 1,  # one uniform number per action
    }


def rate(amount: float, program: Callable[..., Any], *args: Any, rounds: int = 7) -> float:
    """Return amount per second of the fastest of several calls."""
    compiled = jax.jit(program)
    return amount / min(samples(rounds, it=lambda: compiled(*args))["it"])


def measured_rates() -> dict[str, float]:
    """Measure the four rates, per second."""
    n, length, repeats = 1024, 2**24, 200
    square = jax.random.normal(jax.random.key(0), (n, n))
    block = jax.random.normal(jax.random.key(0), (256, 256))  # stays in the cache
    line = jnp.arange(length, dtype=jnp.float32)
    return {
        "flops": rate(2 * n**3, lambda a: a @ a, square),
        "bytes": rate(8 * length, lambda a: a + 1.0, line),
        "tanh": rate(
            repeats * block.size, lambda a: jax.lax.fori_loop(0, repeats, lambda _, x: jnp.tanh(x) + 0.5, a), block
        ),
        "random_words": rate(2**22, lambda key: jax.random.bits(key, (2**22,)), jax.random.key(0)),
    }


def measure(rounds: int = 9) -> dict[str, Any]:
    """Time the batch and compare it with the lower bounds."""
    amounts, rates = needed_amounts(), measured_rates()
    taken = samples(rounds, **batch_programs(AGENTS, endless=True))
    floor = {name: amounts[name] / rates[name] for name in amounts}
    seconds = statistics.median(taken["ours"])
    return {
        "needed": amounts,
        "rates": rates,
        "floor_seconds": floor,
        "seconds": taken["ours"],
        "share_of_matrix_limit": floor["flops"] / seconds,
        "share_of_copy_limit": floor["bytes"] / seconds,
        "share_of_floor": sum(floor.values()) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/limits.json"))
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # must precede the start of JAX's threads
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report = {"command": "python benchmarks/speed/limits.py", "environment": describe_environment(), **measure()}
    print({name: value for name, value in report.items() if name not in ("environment", "seconds")})
    write_json(arguments.out, report)


if __name__ == "__main__":
    main()
