"""How much of the gain of federating is left under every attack that was trained.

    python benchmarks/learning/tasks.py catch --rows none,budget,normalized --together --seed 1000
    python benchmarks/robustness/keep_the_gain.py table catch cartpole
    python benchmarks/robustness/keep_the_gain.py picture --out docs/images/memory.png

The score of a task under an attack is (A − alone)/(honest − alone), where A is the mean return over the whole run and
over the seeds, "alone" one agent and "honest" 13 honest agents with the mean: 0 means that joining was not worth it,
and 1 that the attack cost nothing. 3 of 13 agents are Byzantine. The standard error is that of the difference to one
agent alone, paired by seed; that of the gain (honest − alone) is in the first line of the table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

REFERENCES = ("alone", "honest")
NOT_ATTACKS = (*REFERENCES, "naive", "pooled")


def mean_returns(label: str) -> dict[tuple[str, str], np.ndarray]:
    """Return the mean return over the run of every seed with a rule that remembers, (task, row) -> `[seeds]`."""
    from tasks import TASKS

    from jaxbyz.files import read_rows

    rows = read_rows(Path("benchmarks/results/tasks.jsonl.gz"))
    shown = [row for row in rows if row["row"] in REFERENCES or (row["label"] == label and remembers(row))]
    found = {(row["task"], row["row"]): row for row in shown}
    order = {key: found[key] for key in sorted(found, key=lambda key: list(TASKS).index(key[0]))}
    return {key: np.array(row["return"]).mean(axis=1) for key, row in order.items()}


def remembers(row: dict[str, Any]) -> bool:
    """Whether the rule of a row remembers senders."""
    return (row["config"]["pre_aggregator"] or "").startswith("memory")


def table(arguments: argparse.Namespace) -> None:
    """Print the scores as Markdown, one row per attack."""
    returns = mean_returns(arguments.label)
    trained = dict.fromkeys(task for task, row in returns if row not in NOT_ATTACKS)
    complete = [task for task in trained if all((task, row) in returns for row in REFERENCES)]
    tasks = arguments.tasks or complete
    if unknown := [task for task in tasks if task not in complete]:
        sys.exit(f"unknown task {unknown[0]!r}, or its table has no rule that remembers; known: {', '.join(complete)}")
    attacks = sorted({row for task, row in returns if task in tasks and row not in NOT_ATTACKS})

    def cell(task: str, row: str) -> str:
        if (task, row) not in returns:
            return "–"
        alone, gain = returns[task, "alone"], np.mean(returns[task, "honest"] - returns[task, "alone"])
        ratio = (returns[task, row] - alone) / gain
        text = f"{ratio.mean():.2f} ± {ratio.std(ddof=1) / len(ratio) ** 0.5:.2f}"
        return text.replace("-", "−")

    scores = {row: [cell(task, row) for task in tasks] for row in ["honest", *attacks]}
    print("| attack | " + " | ".join(tasks) + " |")
    print("| --- |" + " --: |" * len(tasks))
    for row, cells in scores.items():
        print(f"| {row} | " + " | ".join(cells) + " |")


def picture(arguments: argparse.Namespace) -> None:
    """Draw the trust of every sender and the weight of the liars over the batches of one run."""
    import jax
    import jax.numpy as jnp
    import matplotlib.pyplot as plt

    import jaxbyz as jb
    from jaxbyz.configuration.resolving import resolve
    from jaxbyz.rules import senders_of

    jb.prepare()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
    for axis, attack in zip(axes, ("sign-flip", "budget"), strict=True):
        config = resolve("acrobot", agents=13, byzantine=3, attack=attack, aggregator="memory+rfa", seed=1000)
        algorithm = jb.build(config)
        step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(jax.random.key(config.seed))
        trust, weight = [], []
        for _ in range(60):
            state, metrics = step(state, jnp.bool_(True))
            remembered = senders_of(state.rules)
            assert remembered is not None
            trust.append(np.where(remembered.excluded[0], 0.0, remembered.trust[0]))
            weight.append(float(metrics.byzantine_weight))
        curves = np.array(trust)
        axis.plot(curves[:, :10], color="tab:blue", alpha=0.4, lw=1)
        axis.plot(curves[:, 10:], color="tab:red", lw=1.5)
        axis.plot(weight, color="black", ls=":", lw=1.5)
        axis.set(title=attack, xlabel="batch")
    axes[0].set_ylabel("trust of each sender\n(dotted: weight of the liars)")
    figure.savefig(arguments.out, dpi=100)


def main() -> None:
    """Run a command of this script."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "learning"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    printing = commands.add_parser("table")
    printing.add_argument("tasks", nargs="*", help="columns, in this order (default: all tasks)")
    printing.add_argument("--label", default="", help="of the rows of tasks.py; those of the presets have none")
    printing.set_defaults(call=table)
    drawing = commands.add_parser("picture")
    drawing.add_argument("--out", default="docs/images/memory.png")
    drawing.set_defaults(call=picture)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
