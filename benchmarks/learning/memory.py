"""A task that needs a memory: CartPole without velocities, under attack, with a GRU and with a perceptron.

    python benchmarks/learning/memory.py [--seeds 5] [--out benchmarks/results/memory.json]

The options are those of the task's preset; the perceptron has the two hidden layers of the general preset. For every
row the file has the seconds of training, and for every seed the mean return of the honest agents over the last 100
trajectories and the smoothed curve.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import jaxbyz as jb

FIRST_SEED = 1000  # the preset was chosen with others
ATTACKED = {"agents": 13, "byzantine": 3, "attack": "avg-zero"}
ROWS: dict[str, dict[str, Any]] = {
    "gru": ATTACKED,
    "mlp": {**ATTACKED, "policy": "mlp", "hidden": (32, 32)},
    "gru naive": {**ATTACKED, "algorithm": "dec-page-pg"},
    "gru alone": {"algorithm": "page-pg"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trajectories", type=int, help="per agent (default: those of the preset)")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory.json"))
    given = parser.parse_args()
    jb.prepare()
    from jaxbyz.files import write_json
    from jaxbyz.report.statistics import window_averages
    from jaxbyz.reproduction.training_results import train_and_record

    length = {} if given.trajectories is None else {"trajectories": given.trajectories}
    results = {}
    for name in given.rows.split(","):
        options = {**length, "seeds": given.seeds, "seed": FIRST_SEED, **ROWS[name]}
        config = jb.resolve(env="CartPoleNoVelocity-v1", **options)
        metrics, record = train_and_record({name: config})[name]
        end = np.array([metrics["trajectories"][:, -1].min()])
        final = window_averages(metrics, end - 100, end)[:, 0]
        results[name] = {**record, "final": [round(float(value), 1) for value in final]}
        print(name, results[name]["final"], f"{record['seconds']} s", flush=True)
        write_json(given.out, results)


if __name__ == "__main__":
    main()
