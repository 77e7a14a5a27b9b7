"""Measure the paper's theory on a small MDP whose J and ∇J are known exactly; see docs/measurements/theory.md.

    python benchmarks/theory/measure.py [--seeds 16] [--quick] [--out FILE] [--pictures docs/images]

1. Trajectories per agent until E‖∇J(θ_T̂)‖² ≤ ε², with T̂ uniform over the iterations: exponents of K and ε.
2. Diameter of the honest parameters against agreement rounds κ, for the worst of many equivocating adversaries.
3. E‖v − ∇J‖² of an aggregated large batch against N and K.

`--draw` only draws the pictures from the results file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from convergence import ATTACK, RULE, make_plans, measure, measured_exponents, summarise
from pictures import save_pictures
from problem import exact_gradient, measure_constants
from rounds import aggregate_errors, diameter_ratios

from jaxbyz.accelerate.setup import prepare
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment


def measure_everything(seeds: int, quick: bool) -> dict[str, Any]:
    """Run all measurements and return the report."""
    start = time.monotonic()
    constants = measure_constants()
    print(constants, flush=True)
    report: dict[str, Any] = {
        "command": "python benchmarks/theory/measure.py" + " --quick" * quick, "environment": describe_environment(),
        "seeds": seeds, "constants": constants._asdict(), "start": float(jnp.linalg.norm(exact_gradient(jnp.zeros(2)))),
        "attack": ATTACK, "rule": RULE, "diameter": diameter_ratios(), "bias": aggregate_errors(512), "cells": [],
    }  # fmt: skip
    print(f"agreement and bias: {time.monotonic() - start:.0f} s", flush=True)
    rng = np.random.default_rng(3)
    measurements = []
    for plan in make_plans(constants, quick):
        begin = time.monotonic()
        measurements.append(measure(plan, seeds))
        row = {**summarise(measurements[-1], rng), "seconds": round(time.monotonic() - begin, 1)}
        report["cells"].append(row)
        print({key: value for key, value in row.items() if key not in ("curve", "samples")}, flush=True)
    report["slopes"] = measured_exponents(measurements)
    report["seconds"] = round(time.monotonic() - start)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="measure fewer K and ε")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/theory.json"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"), help="folder of the pictures")
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw the results file")
    arguments = parser.parse_args()
    if arguments.draw:
        report = json.loads(arguments.out.read_text())
    else:
        prepare()
        report = measure_everything(arguments.seeds, arguments.quick)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, report)
    save_pictures(report, arguments.pictures)
    for row in (*report["slopes"], *report["bias"]["slopes"], *report["diameter"]):
        print(row)
    print(f"{report['seconds']} s")


if __name__ == "__main__":
    main()
