"""Time a whole run of DecByzPG up to 8000 trajectories with our sampling and with that of `plain.py`.

    python benchmarks/speed/whole_run.py [--trajectories 8000] [--rounds 2] [--out benchmarks/results/whole_run.json]

CartPole with 13 honest agents and the preset `cartpole-steady`. The runs differ only in how episodes are sampled and
gradients are computed (`jaxbyz.sampling.page.sampler` or `plain.sampler`). Ours is timed on one device, as the plain
program, and with its agents on all cores, as the command line runs it. The plain program runs in a separate process
with the default flags of XLA. Everything is compiled before it is timed. The file also contains the returns, which
are equal in distribution, and the times of ten seeds on all cores against one seed on one core and on all cores.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

from default_flags import prepare, with_default_flags

prepare()  # before JAX starts, so that every core becomes a device

import numpy as np  # noqa: E402
import plain  # noqa: E402

import jaxbyz as jb  # noqa: E402
from jaxbyz.configuration import building  # noqa: E402
from jaxbyz.files import write_json  # noqa: E402
from jaxbyz.runs.run import run  # noqa: E402
from jaxbyz.runs.run_folder import describe_environment  # noqa: E402

ONE_DEVICE = "seeds=1"


def timed(seeds: int, trajectories: int, mesh: str | None = None, sampler=None) -> dict:
    """Return the seconds and the returns of a run, after an equal run has compiled its programs."""
    building._build_once.cache_clear()
    patch = plain.replaced_sampler(sampler) if sampler else contextlib.nullcontext()
    with patch:
        config = jb.resolve("cartpole-steady", agents=13, seeds=seeds, trajectories=trajectories)
        run(config, mesh=mesh)
        started = time.perf_counter()
        done = run(config, mesh=mesh)
        seconds = time.perf_counter() - started
    building._build_once.cache_clear()
    returns = done.metrics["returns"]
    at = np.linspace(0, returns.shape[1] - 1, 17).astype(int)
    return {
        "seconds": seconds,
        "trajectories": done.metrics["trajectories"][0, at].tolist(),
        "return": returns[:, at].round(1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is repeated, in turns")
    parser.add_argument("--sweep", type=int, default=1600, help="trajectories of the runs with 1 and 10 seeds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/whole_run.json"))
    given = parser.parse_args()
    report: dict = {"command": "python benchmarks/speed/whole_run.py", "environment": describe_environment()}
    names = ("ours", "one_device", "plain", "one_seed", "one_seed_one_device", "ten_seeds")
    report |= {name: [] for name in names}

    def over(slow: str, fast: str) -> list[float]:
        return [a["seconds"] / b["seconds"] for a, b in zip(report[slow], report[fast], strict=True)]

    for _ in range(given.rounds):
        report["ours"].append(timed(1, given.trajectories))
        report["plain"].append(
            with_default_flags().submit(timed, 1, given.trajectories, ONE_DEVICE, plain.sampler).result()
        )
        report["one_device"].append(timed(1, given.trajectories, ONE_DEVICE))
        report["one_seed"].append(timed(1, given.sweep))
        report["one_seed_one_device"].append(timed(1, given.sweep, ONE_DEVICE))
        report["ten_seeds"].append(timed(10, given.sweep))
        report["ratios"] = {
            "plain_over_ours": over("plain", "ours"),
            "plain_over_one_device": over("plain", "one_device"),
            "ten_seeds_over_one": over("ten_seeds", "one_seed"),
            "ten_seeds_over_one_on_one_device": over("ten_seeds", "one_seed_one_device"),
        }
        print(report["ratios"], report["ours"][-1]["return"], report["plain"][-1]["return"], flush=True)
        write_json(given.out, report)


if __name__ == "__main__":
    main()
