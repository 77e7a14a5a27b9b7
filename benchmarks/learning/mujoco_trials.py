"""Short trials of settings on the MuJoCo tasks, side by side, each until the time is over.

    python benchmarks/learning/mujoco_trials.py --seconds 400 --out trials [--names half-cheetah hopper-small]

Every trial is a run of `jaxbyz train` that is stopped after `--seconds`, and leaves its log. The table `trials.json`
has one row per trial: options, and means over consecutive batches of the honest return of every seed. On an NVIDIA GPU
start its Multi-Process Service before, or the trials take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ATTACKED = {"agents": 13, "byzantine": 3, "attack": "avg-zero"}
SMALL = {"env-param": "scale=true", "N": 2, "B": 2, "epochs": 10, "minibatches": 1, "eta": 5e-4, "initial-std": 0.4}
STEADY = {"N": 8, "B": 8, "epochs": 10, "minibatches": 2, "initial-std": 0.3}
WIDE = {"hidden": "256,256", "critic-hidden": "256,256", "eta": 2e-4}
TRIALS: dict[str, dict[str, Any]] = {
    "half-cheetah": {"trajectories": 1600},
    "half-cheetah-scaled": {"env-param": "scale=true", "trajectories": 1600},
    "half-cheetah-small": {**SMALL, "trajectories": 1000},
    "half-cheetah-discount": {**SMALL, "minibatches": 2, "gamma": 0.98, "gae-lambda": 0.92, "trajectories": 1000},
    "half-cheetah-wide": {**SMALL, **WIDE, "trajectories": 1000},
    "half-cheetah-followed": {**SMALL, "policy": "followed", "trajectories": 1000},
    "hopper": {"trajectories": 3200},
    "hopper-steady": {**STEADY, "trajectories": 3200},
    "hopper-discount": {**STEADY, "gamma": 0.999, "gae-lambda": 0.98, "trajectories": 3200},
    "walker2d": {"trajectories": 3200},
    "walker2d-steady": {**STEADY, "trajectories": 3200},
    "walker2d-followed": {**STEADY, "policy": "followed", "trajectories": 3200},
    "walker2d-wide": {**STEADY, **WIDE, "trajectories": 3200},
}
POINTS = 20  # of every curve
GRACE = 120  # seconds, because a run stops after a segment of 20 iterations


def preset_of(name: str) -> str:
    """Return the preset of a trial, which its name begins with."""
    return max((preset for preset in ("half-cheetah", "hopper", "walker2d") if name.startswith(preset)), key=len)


def start(name: str, arguments: argparse.Namespace) -> subprocess.Popen:
    """Start a trial in its own process."""
    options = {**ATTACKED, "seeds": arguments.seeds, **TRIALS[name]}
    if arguments.trajectories:
        options["trajectories"] = arguments.trajectories
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    command = [sys.executable, "-m", "jaxbyz", "train", "--preset", preset_of(name), *words]
    log = (arguments.out / f"{name}.log").open("w")
    return subprocess.Popen(
        [*command, "--out", str(arguments.runs / name)], stdout=log, stderr=subprocess.STDOUT, env=os.environ
    )


def curves(folder: Path) -> dict[str, Any]:
    """Return the curve of every seed of a run that may be unfinished."""
    files = [folder / name for name in ("metrics.npz", "progress.npz") if (folder / name).is_file()]
    if not files:
        return {"trajectories": 0}
    with np.load(files[0], allow_pickle=False) as file:
        returns, trajectories = file["returns"], file["trajectories"][0]
    parts = np.array_split(np.arange(len(trajectories)), min(POINTS, len(trajectories)))
    return {
        "trajectories": int(trajectories[-1]),
        "at": [int(trajectories[part[-1]]) for part in parts],
        "returns": [[round(float(seed[part].mean()), 2) for part in parts] for seed in returns],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=list(TRIALS), default=list(TRIALS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trajectories", type=int, help="per agent (default: those of the trial)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the table and the logs")
    parser.add_argument("--runs", type=Path, help="folder for the runs (default: runs in the other folder)")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs or arguments.out / "runs"
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or the first process reserves most of a GPU
    deadline = time.monotonic() + arguments.seconds
    running = {name: start(name, arguments) for name in arguments.names}
    while time.monotonic() < deadline and any(process.poll() is None for process in running.values()):
        time.sleep(1)
    for process in running.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    rows = {}
    for name, process in running.items():
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:  # in the middle of a segment
            process.kill()
        rows[name] = {"options": TRIALS[name], **curves(arguments.runs / name)}
        ends = [seed[-1] for seed in rows[name].get("returns", [])]
        print(f"{name:<24} {rows[name]['trajectories']:>6} trajectories {ends}", flush=True)
    (arguments.out / "trials.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
