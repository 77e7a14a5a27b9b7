"""Measure how long a user waits for the first result: whole commands with an empty and with a filled compilation cache.

    python benchmarks/start_time.py [--rounds 3] [--tree NAME=FOLDER …] [--out benchmarks/results/start_time.json]

Each sample is the wall time and the peak memory of one `jaxbyz train` process of a few iterations. Several source trees
can be compared in one run, for example `--tree new=. --tree old=../before`; they take turns, so that noise of the
machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jaxbyz.experiments.run_folder import describe_environment, write_json

TASKS = {
    "CartPole": "--preset cartpole-steady --agents 13 --byzantine 3 --attack avg-zero --trajectories 150",
    "LunarLander": "--preset lunarlander --agents 13 --byzantine 3 --attack avg-zero --trajectories 200",
}


def command_seconds(tree: Path, options: str, cache: Path) -> tuple[float, float]:
    """Run one training and return its wall time in seconds and its peak memory in GB."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "jaxbyz", "train", *options.split(), "--out", f"{folder}/run"]
        process = subprocess.Popen(arguments, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return time.perf_counter() - started, usage.ru_maxrss / 1e6


def measure(trees: dict[str, Path], rounds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return samples by task and tree: seconds with an empty and with a filled cache, and peak memory."""
    samples = {task: {name: {"cold_s": [], "warm_s": [], "peak_gb": []} for name in trees} for task in TASKS}
    for _ in range(rounds):
        for task, options in TASKS.items():
            for name, tree in trees.items():
                with tempfile.TemporaryDirectory() as cache:
                    cold, peak = command_seconds(tree, options, Path(cache))
                    warm, _ = command_seconds(tree, options, Path(cache))
                found = samples[task][name]
                found["cold_s"].append(cold)
                found["warm_s"].append(warm)
                found["peak_gb"].append(peak)
                print(f"{task:<12} {name:<8} cold {cold:6.1f} s   warm {warm:6.1f} s   {peak:.2f} GB", flush=True)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/start_time.json"))
    arguments = parser.parse_args()
    given = arguments.tree or ["jaxbyz=."]
    trees = {name: Path(folder).resolve() for name, _, folder in (item.partition("=") for item in given)}
    samples = measure(trees, arguments.rounds)
    medians = {
        task: {
            name: {kind: statistics.median(values) for kind, values in kinds.items()} for name, kinds in found.items()
        }
        for task, found in samples.items()
    }
    write_json(arguments.out, {"machine": describe_environment(), "median": medians, "samples": samples})


if __name__ == "__main__":
    main()
