"""How sampling agents can hand liars a majority, and what cached messages repair; see docs/measurements/federations.md.

    python benchmarks/robustness/participation.py [--seeds 32] [--out benchmarks/results/participation.json]
    python benchmarks/robustness/participation.py --arrivals   # chance against the adversary: results/arrivals.json

ByzPG on the MDP of `jaxbyz.sampling.tabular_mdp`, whose return J is known exactly: 13 workers, 4 of them
Byzantine, which send −3 times the honest mean (IPM), RFA, large batches only. With few participants, Byzantine
workers are sometimes the majority of those asked.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jaxbyz as jb
from jaxbyz.accelerate.setup import prepare
from jaxbyz.files import write_json
from jaxbyz.protocol.participation import Participation
from jaxbyz.report.statistics import standard_deviation
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling import tabular_mdp

K, F, ITERATIONS = 13, 4, 200
PARTICIPATION = (1.0, 0.7, 0.5, 0.3)
ARRIVALS = {
    "participation 0.7": {"participation": 0.7},
    "participation 0.7, cached": {"participation": 0.7, "absent": "cached"},
    "delay 8": {"delay": 8},
    "drop 0.2": {"drop": 0.2},
}


def chance_of_majority(present: int) -> float:
    """Return the probability that at least half of the agents drawn are Byzantine."""
    ways = sum(math.comb(F, b) * math.comb(K - F, present - b) for b in range(-(-present // 2), min(F, present) + 1))
    return ways / math.comb(K, present)


def returns(seeds: int, **channel: Any) -> np.ndarray:
    """Return J of the last parameters of every seed; `channel` are the options of `ChannelOptions`."""
    algorithm = jb.byzpg(
        tabular_mdp.environment(), tabular_mdp.policy(), agents=K, byzantine=F, aggregator="rfa",
        attack="ipm:epsilon=3", optimizer="sgd", eta=0.3, N=10, B=2, p=1.0, unsafe=True,
        gamma=tabular_mdp.GAMMA, horizon=tabular_mdp.HORIZON, **channel,
    )  # fmt: skip

    def one(key: Array) -> Array:
        last = jb.train(algorithm, key, ITERATIONS, jnp.ones(ITERATIONS, bool)).run.state.parameters[0]
        return tabular_mdp.value(last)

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), seeds)))


def summary(found: np.ndarray) -> dict[str, float]:
    """Return mean, standard deviation (n − 1 in the denominator) and the worst seed."""
    return {"mean": float(found.mean()), "std": float(standard_deviation(found)), "worst": float(found.min())}


def participation_rows(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the results for every number of participants, without and with cached messages."""
    for participation in PARTICIPATION:
        for absent in ("ignore", "cached")[: 1 if participation == 1 else 2]:
            channel = {"participation": participation, "absent": absent}
            present = Participation(**channel).present(K)
            found = summary(returns(seeds, **channel))
            yield {**channel, "present": present, "chance": chance_of_majority(present), **found}


def arrival_rows(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the results if chance decides what arrives, and if the adversary does."""
    for name, channel in ARRIVALS.items():
        for who in ("random", "adversarial"):
            yield {"limits": name, "arrivals": who, **summary(returns(seeds, arrivals=who, **channel))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--arrivals", action="store_true", help="chance against the adversary")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    prepare()
    start, rows = time.monotonic(), []
    out = arguments.out or Path("benchmarks/results") / f"{'arrivals' if arguments.arrivals else 'participation'}.json"
    for row in (arrival_rows if arguments.arrivals else participation_rows)(arguments.seeds):
        rows.append(row)
        print(row, flush=True)
        report = {
            "command": f"python benchmarks/robustness/participation.py{' --arrivals' * arguments.arrivals}",
            "environment": describe_environment(), "K": K, "byzantine": F, "iterations": ITERATIONS,
            "seeds": arguments.seeds, "rows": rows, "seconds": round(time.monotonic() - start),
        }  # fmt: skip
        write_json(out, report)


if __name__ == "__main__":
    main()
