"""Error of rules that assume a wrong number of Byzantine agents; see docs/measurements/federations.md.

    python benchmarks/robustness/misjudged.py [--starts 768] [--out benchmarks/results/misjudged.json] [--draw]

For every rule, every number f̂ that it defends against and every number f that is present: the largest error ratio of
Definition 2, ‖a − x̄‖² over the honest variation, among the certifier's starting inputs. No search climbs from them, so
the numbers are lower bounds of the worst case, and equal inputs are used for all rules and all f̂.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.accelerate.setup import prepare
from jaxbyz.certify import named_rule
from jaxbyz.certify.robust_aggregation import error_ratio
from jaxbyz.certify.starting_inputs import aggregation_inputs
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment

K, D = 13, 13
RULES = ("krum", "multi-krum", "mda", "trimmed-mean", "nnm+trimmed-mean", "rfa")
ASSUMED, PRESENT = tuple(range(6)), tuple(range(7))


def ratios(name: str, assumed: int, inputs: dict[int, Any]) -> list[float]:
    """Return the largest ratio of a rule that defends against `assumed` agents, for every number that is present."""
    with jax.enable_x64(True):
        rule = named_rule(name, K, assumed)
        keys = jax.random.split(jax.random.key(0), 8)
        largest = fast_compiling_jit(
            lambda x, m: jnp.max(jax.lax.map(lambda one: error_ratio(rule, keys, *one), (x, m), batch_size=64))
        )
        return [float(largest(*inputs[f])) for f in PRESENT]


def measure(starts: int) -> dict[str, Any]:
    """Measure all cells."""
    start = time.monotonic()
    inputs = {}
    for f in PRESENT:
        points, masks = aggregation_inputs(0, starts, K, f, D) if f else aggregation_inputs(0, starts, K, 1, D)
        exact = masks.sum(axis=1) == f  # the certifier also tries fewer than f
        kept = np.resize(np.flatnonzero(exact), starts // 2)
        inputs[f] = points[kept, 0], masks[kept]
    rows = {}
    for name in RULES:
        rows[name] = [ratios(name, assumed, inputs) for assumed in ASSUMED]
        print(name, np.round(np.log10(np.maximum(rows[name], 1e-9)), 1).tolist(), flush=True)
    return {
        "command": "python benchmarks/robustness/misjudged.py", "environment": describe_environment(), "K": K, "D": D,
        "starts": starts, "assumed": ASSUMED, "present": PRESENT, "ratios": rows,
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw one square per rule: f̂ down, f across, colour log10 of the ratio."""
    from jaxbyz.report.plots import figure, save

    drawing, axes = figure(3, 2, width=9.6, height=6.4)
    for ax, (name, values) in zip(axes.flat, report["ratios"].items(), strict=True):
        logs = np.log10(np.clip(np.asarray(values, float), 1e-2, 1e4))
        image = ax.imshow(logs, cmap="cividis", vmin=-2, vmax=4, origin="lower", aspect="auto")
        ax.set_xticks(range(len(PRESENT)), PRESENT)
        ax.set_yticks(range(len(ASSUMED)), ASSUMED)
        ax.grid(False)
        ax.set_title(name, fontsize=10)
        for (i, j), value in np.ndenumerate(np.asarray(values, float)):
            text = "∞" if value > 1e3 else f"{value:.2g}" if value > 1e-9 else "0"
            ax.text(j, i, text, ha="center", va="center", fontsize=7, color="black" if logs[i, j] > 1 else "white")
    drawing.supxlabel("Byzantine agents present, f", fontsize=10)
    drawing.supylabel("Byzantine agents assumed, f̂", fontsize=10)
    drawing.colorbar(image, ax=axes, label="largest error ratio found, log10 (the cells have the ratio; ∞: above 1000)")
    drawing.suptitle(
        f"Error of rules that assume f̂ of K = {report['K']} agents to be Byzantine while f are", fontsize=10
    )
    save(drawing, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=768)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/misjudged.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/misjudged.png"))
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw the results file")
    arguments = parser.parse_args()
    if not arguments.draw:
        prepare()
        write_json(arguments.out, measure(arguments.starts))
    draw(json.loads(arguments.out.read_text()), arguments.picture)


if __name__ == "__main__":
    main()
