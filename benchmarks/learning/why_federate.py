"""The picture of README.md: one agent alone, and thirteen with and without liars, from what `tasks.py` has trained.

python benchmarks/learning/why_federate.py benchmarks/results/tasks.jsonl.gz --out docs/images/why_federate.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from tasks import WORST, read

TASKS = {"walker2d": "Walker2d", "inverted-double-pendulum": "InvertedDoublePendulum", "spaceinvaders": "SpaceInvaders"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="table of benchmarks/learning/tasks.py")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = read(arguments.results)
    figure, axes = plt.subplots(1, len(TASKS), figsize=(10, 3.1), layout="constrained")
    for axis, (task, title) in zip(axes, TASKS.items(), strict=True):
        lines_of = {
            "honest": ("13 honest agents", "#0072b2", "-"),
            WORST: ("3 of 13 lie, robust rule, worst attack", "#009e73", "-"),
            "alone": ("one agent alone", "#555555", "--"),
            "naive": ("3 of 13 lie, plain average", "#d55e00", "-"),
        }
        for row, (label, colour, style) in lines_of.items():
            record = rows[task, row]
            x, y = np.array(record["trajectories"]), np.array(record["return"])
            axis.plot(x, y.mean(axis=0), style, color=colour, label=label)
            axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.12, linewidth=0)
            print(f"{task} {record['row']}: {np.mean(record['final']):.1f} at the end, mean over {len(y)} seeds")
        axis.set(title=title, xlabel="episodes per agent")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("return of the honest agents")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(arguments.out, dpi=150)


if __name__ == "__main__":
    main()
