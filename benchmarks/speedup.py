"""How many fewer trajectories 13 agents need than one, each at its own best step size: CartPole, preset cartpole-best.

    python benchmarks/speedup.py [--seeds 10] [--out benchmarks/results/speedup.json]

For every step size and batch, trajectories an agent until the mean over seeds of the honest return, averaged over the
last 16 trajectories, reaches 400. Episodes are short when learning is fast, so that the whole search takes minutes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from jaxbyz.accelerate.setup import prepare
from jaxbyz.experiments.config import resolve
from jaxbyz.experiments.files import write_json
from jaxbyz.experiments.run import run
from jaxbyz.experiments.run_folder import describe_environment
from jaxbyz.report.statistics import first_reached, smoothed

LEVEL, WIDTH, MOST = 400, 16, 640
STEPS = (5e-3, 1e-2, 2e-2, 4e-2)
FEDERATIONS = {"1": {"algorithm": "page-pg"}, "13": {"agents": 13}}


def measure(who: dict, batch: int, eta: float, seeds: int) -> dict:
    """One training, and when it arrives."""
    options = {**who, "N": batch, "B": batch, "eta": eta, "eta_end": None, "seeds": seeds}
    done = run(resolve("cartpole-best", trajectories=MOST, **options))
    x, y = smoothed(done.metrics, WIDTH)
    arrived = float(first_reached(x, y.mean(axis=0), LEVEL))
    return {
        "batch": batch,
        "eta": eta,
        "trajectories": None if math.isnan(arrived) else int(arrived),
        "end": round(float(y[:, -1].mean()), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/speedup.json"))
    given = parser.parse_args()
    prepare()
    report: dict = {
        "command": "python benchmarks/speedup.py", "environment": describe_environment(), "seeds": given.seeds,
        "level": LEVEL, "runs": {}, "best": {},
    }  # fmt: skip
    for name, who in FEDERATIONS.items():
        rows = [measure(who, batch, eta, given.seeds) for batch in (4, 8) for eta in STEPS]
        report["runs"][name] = rows
        arrived = [row for row in rows if row["trajectories"] is not None]
        report["best"][name] = min(arrived, key=lambda row: row["trajectories"]) if arrived else None
        print(name, report["best"][name], flush=True)
        write_json(given.out, report)


if __name__ == "__main__":
    main()
