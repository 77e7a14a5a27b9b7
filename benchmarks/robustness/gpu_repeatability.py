"""Does the same command give the same bits if its programs are compiled anew? Writes results/gpu_repeatability.json.

    python benchmarks/robustness/gpu_repeatability.py --repeats 3

Every training runs in its own process with an empty cache, with and without `--deterministic`, and then once more with
the programs that it has left there. The file says from which iteration on the metrics of the first runs differ, if at
all, and how long the first run (with compilation) and the second run (without) of each pair took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from jaxbyz.files import write_json  # noqa: E402
from jaxbyz.runs.run_folder import describe_environment  # noqa: E402 (from this checkout)

RESULTS = ROOT / "benchmarks" / "results" / "gpu_repeatability.json"
CASES = {
    "CartPole, 13 agents, 10 seeds": ["--byzantine=3", "--attack=avg-zero", "--seeds=10", "--trajectories=2000"],
    "LunarLander, 13 agents, 4 seeds": [
        "--env=LunarLander-v3", "--byzantine=3", "--attack=avg-zero", "--seeds=4", "--trajectories=240",
    ],
}  # fmt: skip


def train(
    options: list[str], deterministic: bool, folder: Path, name: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Train in a process of its own with the cache of this folder; return the metrics and what was printed as JSON."""
    words = ["train", *options, "--quiet", "--json", "--out", str(folder / name)]
    words += ["--deterministic"] if deterministic else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAXBYZ_STORE_PROGRAMS": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "jaxbyz", *words], env=environment, capture_output=True, text=True, check=True
    )
    with np.load(folder / name / "metrics.npz") as data:
        metrics = {name: data[name] for name in data.files}
    return metrics, json.loads(done.stdout.strip().splitlines()[-1])


def first_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> int | None:
    """Return the first iteration, counted from 1, in which a metric differs in a bit; None if there is none."""
    where = []
    for name, one in a.items():
        same = (one == b[name]) | ((one != one) & (b[name] != b[name]))  # two NaN are the same
        differs = ~same.reshape(*one.shape[:2], -1).all(axis=(0, 2))
        where += [int(np.argmax(differs)) + 1] if differs.any() else []
    return min(where, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="trainings per case and setting")
    parser.add_argument("--only", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for name, options in CASES.items():
        for deterministic in (False, True):
            if arguments.only and arguments.only not in name:
                continue
            runs, again = [], []
            for _ in range(arguments.repeats):
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(train(options, deterministic, Path(folder), "first"))
                    again.append(train(options, deterministic, Path(folder), "again"))
            differences = [first_difference(runs[0][0], metrics) for metrics, _ in runs[1:]]
            with_iterations = [found for found in differences if found is not None]
            rows.append(
                {
                    "case": name,
                    "deterministic": deterministic,
                    "repeats": arguments.repeats,
                    "differ": len(with_iterations),
                    "from_iteration": min(with_iterations, default=None),
                    "seconds": [summary["seconds"] for _, summary in runs],
                    "seconds_again": [summary["seconds"] for _, summary in again],
                    "returns": [summary["return"]["seeds"] for _, summary in runs],
                }
            )
            print({key: value for key, value in rows[-1].items() if key != "returns"}, flush=True)
            write_json(arguments.out, {"environment": describe_environment(), "rows": rows})


if __name__ == "__main__":
    main()
