"""What a memory costs: one iteration with a GRU and with a perceptron of the same width.

    python benchmarks/speed/memory_speed.py [--widths 16 32 64] [--out benchmarks/results/memory_speed.json]

Thirteen agents sample 8 episodes of CartPole without velocities each, which all last 500 steps because the pole may
fall, and use them 8 times, as in the task's preset. The numbers are seconds of processor time, the least of several
iterations, so that other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxbyz as jb

ENDLESS = "theta_threshold_radians=1e9,x_threshold=1e9"


def seconds(policy: str, width: int, epochs: int, rounds: int) -> float:
    """Return the least processor time of an iteration."""
    config = jb.resolve(env="CartPoleNoVelocity-v1", env_param=ENDLESS, agents=13, byzantine=3, attack="avg-zero",
                        policy=policy, hidden=(width,), epochs=epochs)  # fmt: skip
    algorithm = jb.build(config)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    step = jax.jit(lambda state: algorithm.step(state, jnp.bool_(True))[0])
    state = jax.block_until_ready(step(state))
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        state = jax.block_until_ready(step(state))
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory_speed.json"))
    given = parser.parse_args()
    jb.prepare()
    from jaxbyz.files import write_json
    from jaxbyz.runs.run_folder import describe_environment

    rows = []
    for width in given.widths:
        for epochs in (1, 8):
            mlp, gru = (seconds(policy, width, epochs, given.rounds) for policy in ("mlp", "gru"))
            rows.append({"width": width, "epochs": epochs, "mlp": round(mlp, 4), "gru": round(gru, 4)})
            print(rows[-1], f"ratio {gru / mlp:.1f}", flush=True)
    write_json(given.out, {"environment": describe_environment(), "rows": rows})


if __name__ == "__main__":
    main()
