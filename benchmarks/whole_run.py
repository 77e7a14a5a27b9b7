"""A whole run of DecByzPG from the first policy to 8000 trajectories: our sampling against the plain program's.

    python benchmarks/whole_run.py [--trajectories 8000] [--seeds 1] [--out benchmarks/results/whole_run.json]

CartPole, 13 agents, nobody lies, preset `cartpole`. Both runs differ in how episodes are collected and gradients taken
(`jaxbyz.page.sampler` or `plain.sampler`) and in nothing else; both are compiled before the clock starts. The returns
are kept beside the times: the two learn the same, in distribution. Also ten seeds against one, on all cores.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from unittest import mock

from jaxbyz.cli import prepare_jax

prepare_jax()  # before anything below starts JAX: every core is a device

import numpy as np  # noqa: E402
import plain  # noqa: E402

import jaxbyz as jb  # noqa: E402
from jaxbyz import algorithms, experiment  # noqa: E402
from jaxbyz.results import describe_environment, write_json  # noqa: E402


def timed(seeds: int, trajectories: int, sampler=None) -> dict:
    """Seconds and returns of a run whose programs have all been compiled by one like it."""
    experiment._build.cache_clear()
    patch = mock.patch.object(algorithms, "sampler", sampler) if sampler else contextlib.nullcontext()
    with patch:
        config = jb.resolve("cartpole", agents=13, seeds=seeds, trajectories=trajectories)
        experiment.run(config)
        started = time.perf_counter()
        done = experiment.run(config)
        seconds = time.perf_counter() - started
    experiment._build.cache_clear()
    returns = done.metrics["return"]
    at = np.linspace(0, returns.shape[1] - 1, 17).astype(int)
    return {
        "seconds": seconds,
        "trajectories": done.metrics["trajectories"][0, at].tolist(),
        "return": returns[:, at].round(1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=2, help="of the runs with 1 and 10 seeds")
    parser.add_argument("--sweep", type=int, default=1600, help="trajectories of the runs with 1 and 10 seeds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/whole_run.json"))
    given = parser.parse_args()
    report: dict = {"command": "python benchmarks/whole_run.py", "environment": describe_environment()}
    report |= {"ours": [], "plain": [], "one_seed": [], "ten_seeds": []}
    report["ours"].append(timed(1, given.trajectories))
    report["plain"].append(timed(1, given.trajectories, plain.sampler))
    for _ in range(given.rounds):
        report["one_seed"].append(timed(1, given.sweep)["seconds"])
        report["ten_seeds"].append(timed(10, given.sweep)["seconds"])
        both, sweeps = (
            zip(report["plain"], report["ours"], strict=True),
            zip(report["ten_seeds"], report["one_seed"], strict=True),
        )
        ratios = {
            "plain_over_ours": [a["seconds"] / b["seconds"] for a, b in both],
            "ten_seeds_over_one": [a / b for a, b in sweeps],
        }
        report["ratios"] = ratios
        print(ratios, report["ours"][-1]["return"], report["plain"][-1]["return"], flush=True)
        write_json(given.out, report)


if __name__ == "__main__":
    main()
