"""CPU time of one iteration with each option of docs/federations.md, against the plain iteration.

    python benchmarks/speed/federation_options.py [--repeats 12] [--out benchmarks/results/federation_options.json]

DecByzPG on CartPole, 13 agents, 3 Byzantine ones (AvgZero), RFA, MDA with κ = 4, large batches of 50 episodes that all
last 200 steps, so that every variant samples the same number of steps. All variants are compiled first and then
measured in turn, again and again; the ratio is that of the least CPU times.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbyz as jb
from jaxbyz.accelerate.setup import prepare
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment

COMMON: dict[str, Any] = {
    "agents": 13, "byzantine": 3, "attack": "avg-zero", "horizon": 200, "p": 1.0, "unsafe": True,
    "env_param": "x_threshold=1e9,theta_threshold_radians=1e9",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "env_spread gravity=0.2": {"env_spread": "gravity=0.2"},
    "participation 0.7": {"participation": 0.7},
    "participation 0.7, cached": {"participation": 0.7, "absent": "cached"},
    "delay 3": {"delay": 3},
    "drop 0.05": {"drop": 0.05},
    "compression top-k": {"compression": "top-k"},
    "local_steps 2": {"local_steps": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=2, help="iterations per measurement")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/federation_options.json"))
    arguments = parser.parse_args()
    prepare()
    programs = {}
    for name, options in VARIANTS.items():
        algorithm = jb.build(jb.resolve(**COMMON, **options))
        step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(jax.random.key(0))
        state, metrics = jax.block_until_ready(step(state, jnp.bool_(True)))
        programs[name] = step, state
        print(f"compiled {name}, length {float(metrics.length):.0f}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(arguments.repeats):
        for name, (step, state) in programs.items():
            begin, now = time.process_time(), state
            for _ in range(arguments.iterations):
                now, _ = step(now, jnp.bool_(True))
            jax.block_until_ready(now)
            times[name].append(time.process_time() - begin)
    least = {name: min(values) / arguments.iterations for name, values in times.items()}
    rows = [
        {
            "option": name, "milliseconds": 1e3 * least[name], "ratio": least[name] / least["plain"],
            "median_ratio": float(np.median(np.array(values) / np.array(times["plain"]))),
        }
        for name, values in times.items()
    ]  # fmt: skip
    for row in rows:
        print(row)
    command = "python benchmarks/speed/federation_options.py"
    write_json(arguments.out, {"command": command, "environment": describe_environment(), "rows": rows})


if __name__ == "__main__":
    main()
