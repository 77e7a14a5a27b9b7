"""Liars in a federation whose agents replay each other's trajectories; see docs/measurements/federations.md.

    python benchmarks/robustness/audits.py [--seeds 3] [--trajectories 800] [--out benchmarks/results/audits.json]

For the mean and for a robust rule, and for every attack: the final honest return with and without audits for the same
budget of trajectories per agent, and the iteration in which the last liar was found out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxbyz as jb
from jaxbyz.accelerate.setup import prepare
from jaxbyz.files import write_json
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.run_folder import describe_environment

ATTACKS = ("avg-zero", "large-noise", "alie", "random-action")
ALGORITHMS = ("dec-page-pg", "decbyzpg")
FEDERATION = {"agents": 9, "byzantine": 2, "env_param": "max_steps_in_episode=200", "horizon": 200}
LAST = 0.1  # the part of a run that the final return is the mean of


def measure(algorithm: str, attack: str, audit: float, seeds: int, trajectories: int) -> dict[str, Any]:
    """Train one setting with all seeds."""
    config = jb.resolve(
        "cartpole", algorithm=algorithm, attack=attack, audit=audit, seeds=seeds, trajectories=trajectories,
        **FEDERATION,
    )  # fmt: skip
    plan, begun = make_plan(config), time.monotonic()
    train = jax.jit(jax.vmap(lambda key: jb.train(jb.build(config, plan.iterations), key, plan.iterations, plan.coins)))
    result = train(plan.keys)
    returns = np.asarray(result.metrics.returns)[:, -max(1, int(LAST * plan.iterations)) :].mean(axis=1)
    found: dict[str, Any] = {}
    if audit:
        excluded_at = np.asarray(result.run.state.attack_memory.excluded_at)
        liars = excluded_at[:, -config.byzantine :]
        assert (excluded_at[:, : -config.byzantine] == -1).all(), "an honest agent is never excluded"
        found = {"found_out_after": (1 + np.where((liars >= 0).all(axis=1), liars.max(axis=1), -1)).tolist()}
    return {
        "algorithm": algorithm, "attack": attack, "audit": audit, "iterations": plan.iterations,
        "trajectories": np.asarray(result.metrics.batch).sum(axis=1).tolist(), "returns": returns.round(1).tolist(),
        **found, "seconds": round(time.monotonic() - begun),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trajectories", type=int, default=800)
    parser.add_argument("--audit", type=float, default=0.25)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audits.json"))
    arguments = parser.parse_args()
    prepare()
    rows = []
    for algorithm in ALGORITHMS:
        for attack in ATTACKS:
            for audit in (0.0, arguments.audit):
                rows.append(measure(algorithm, attack, audit, arguments.seeds, arguments.trajectories))
                print(rows[-1], flush=True)
                report = {"environment": describe_environment(), "federation": FEDERATION, "runs": rows}
                write_json(arguments.out, report)


if __name__ == "__main__":
    main()
