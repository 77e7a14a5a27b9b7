"""Measure how long a user waits for the first result: whole commands with an empty and with a filled compilation cache.

    python benchmarks/speed/start_time.py [--rounds 3] [--task CartPole …] [--tree NAME=FOLDER …] [--out FILE]

Each sample is the wall time, the CPU time and the peak memory of one `jaxbyz train` process of a few iterations, and
the size of the compiled programs that it left in its cache. Several source trees can be compared in one run, for
example `--tree new=. --tree old=../before`; they take turns, so that noise of the machine hits all of them alike. On a
machine that others use as well, CPU times are comparable and wall times are not; the file says how loaded it was.

It also measures a second call of `jb.aggregate` against a call of the same rule that was jitted directly.
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
from typing import Any

from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment

# Five iterations each.
TASKS = {
    "CartPole": "--preset cartpole --agents 13 --byzantine 3 --attack avg-zero --trajectories 40",
    "LunarLander": "--preset lunarlander --agents 13 --byzantine 3 --attack avg-zero --trajectories 80",
}


def run_command(tree: Path, options: str, cache: Path) -> dict[str, float]:
    """Run one training; return wall and CPU seconds, peak memory in GB, and the load of the machine before it."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    load, started = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "jaxbyz", "train", *options.split(), "--out", f"{folder}/run"]
        process = subprocess.Popen(arguments, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return {
        "wall_s": time.perf_counter() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_gb": usage.ru_maxrss / 1e6,
        "load_before": load,
    }


def measure(trees: dict[str, Path], tasks: list[str], rounds: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return samples by task and tree: the cold and the warm start, and the programs in the cache between them."""
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {task: {name: [] for name in trees} for task in tasks}
    for _ in range(rounds):
        for task in tasks:
            for name, tree in trees.items():
                with tempfile.TemporaryDirectory() as cache:
                    cold = run_command(tree, TASKS[task], Path(cache))
                    files = [path for path in Path(cache).rglob("*") if path.is_file()]
                    sizes = {path.name.rpartition("-")[0] or path.name: path.stat().st_size for path in files}
                    warm = run_command(tree, TASKS[task], Path(cache))
                programs = {"files": len(files), "megabytes": sum(sizes.values()) / 1e6, "largest": max(sizes.values())}
                samples[task][name].append({"cold": cold, "warm": warm, "programs": programs})
                print(f"{task:<12} {name:<8} cold {cold}\n{'':<21} warm {warm}", flush=True)
    return samples


def one_call(rounds: int = 200) -> dict[str, float]:
    """Return the microseconds of a call of `jb.aggregate` after the first, and of the same rule jitted directly."""
    import jax

    import jaxbyz as jb
    from jaxbyz.rules import Receiver

    key, messages = jax.random.key(0), jax.random.normal(jax.random.key(1), (13, 57))
    rule = jb.rfa()
    direct = jax.jit(lambda key, x, own: rule.apply(key, x, Receiver(x[own], own), rule.init(*x.shape)).rows[0])
    calls = {
        "direct": lambda: direct(key, messages, 0),
        "aggregate": lambda: jb.aggregate("rfa", key, messages, byzantine=3),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            jax.block_until_ready(call())
            taken[name].append(1e6 * (time.perf_counter() - started))
    medians = {f"{name}_us": statistics.median(values) for name, values in taken.items()}
    return medians | {"ratio": medians["aggregate_us"] / medians["direct_us"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", action="append", choices=TASKS, help="may be repeated (default: all)")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/start_time.json"))
    arguments = parser.parse_args()
    given = arguments.tree or ["jaxbyz=."]
    trees = {name: Path(folder).resolve() for name, _, folder in (item.partition("=") for item in given)}
    calls = one_call()
    print(calls, flush=True)
    samples = measure(trees, arguments.task or list(TASKS), arguments.rounds)
    median = {
        task: {
            name: {
                start: {
                    key: statistics.median(row[start][key] for row in rows) for key in ("wall_s", "cpu_s", "peak_gb")
                }
                for start in ("cold", "warm")
            }
            for name, rows in found.items()
        }
        for task, found in samples.items()
    }
    found = {"machine": describe_environment(), "one_call": calls, "median": median, "samples": samples}
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
