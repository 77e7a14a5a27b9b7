"""How many fewer trajectories 13 agents need than one, each at its own best step size and batch (CartPole).

    python benchmarks/learning/speedup.py [--seeds 10] [--out benchmarks/results/speedup.json]

For every step size and batch size, the preset cartpole is trained until the honest return, averaged over seeds and
the last 16 trajectories, reaches 400. Episodes are short while a policy is bad, so the search takes minutes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from jaxbyz.accelerate.setup import prepare
from jaxbyz.configuration.resolving import resolve
from jaxbyz.files import write_json
from jaxbyz.report.statistics import first_reached, smoothed
from jaxbyz.runs.run import run
from jaxbyz.runs.run_folder import describe_environment

TARGET_RETURN, WINDOW, MAX_TRAJECTORIES = 400, 16, 640
STEP_SIZES, BATCH_SIZES = (5e-3, 1e-2, 2e-2, 4e-2), (4, 8)
FEDERATIONS: dict[str, dict[str, Any]] = {"1": {"algorithm": "page-pg"}, "13": {"agents": 13}}


def measure(federation: dict[str, Any], batch: int, eta: float, seeds: int) -> dict[str, Any]:
    """Train once; return the trajectories until the target (None if it is not reached) and the return at the end."""
    options = {**federation, "N": batch, "B": batch, "eta": eta, "eta_end": None, "seeds": seeds}
    result = run(resolve("cartpole", aggregator="rfa", trajectories=MAX_TRAJECTORIES, **options))
    x, y = smoothed(result.metrics, WINDOW)
    needed = float(first_reached(x, y.mean(axis=0), TARGET_RETURN))
    return {
        "batch": batch,
        "eta": eta,
        "trajectories": None if math.isnan(needed) else int(needed),
        "end": round(float(y[:, -1].mean()), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/speedup.json"))
    arguments = parser.parse_args()
    prepare()
    report: dict[str, Any] = {
        "command": "python benchmarks/learning/speedup.py", "environment": describe_environment(),
        "seeds": arguments.seeds, "level": TARGET_RETURN, "runs": {}, "best": {},
    }  # fmt: skip
    for name, federation in FEDERATIONS.items():
        rows = [measure(federation, batch, eta, arguments.seeds) for batch in BATCH_SIZES for eta in STEP_SIZES]
        reached = [row for row in rows if row["trajectories"] is not None]
        report["runs"][name] = rows
        report["best"][name] = min(reached, key=lambda row: row["trajectories"]) if reached else None
        print(name, report["best"][name], flush=True)
        write_json(arguments.out, report)


if __name__ == "__main__":
    main()
