"""How much of the gain of federating is left under every attack, with and without memory of senders.

    python benchmarks/robustness/keep_the_gain.py run catch mountaincar-continuous --rules caf memory+rfa
    python benchmarks/robustness/keep_the_gain.py table
    python benchmarks/robustness/keep_the_gain.py picture --out docs/images/memory.png

The score of a seed is (A − alone)/(honest − alone), where A is the mean return over the whole run, "alone" one agent
and "honest" 13 honest agents with the mean, both averaged over the same seeds: 0 means that joining was not worth it,
and 1 that the attack cost nothing. 3 of 13 agents are Byzantine. A row that exists is not trained again. Attacks that
share a program are trained together; those that search the rule for their messages take most of the time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path("benchmarks/results/keep_the_gain.jsonl.gz")
ATTACKS = [
    "none", "avg-zero", "min-max", "alie", "coupled-alie", "drift", "turning-drift", "sign-flip", "reward-flip",
    "random-action", "downhill", "scattered", "budget", "discredit", "sleeper", "normalized", "opt-ipm",
]  # fmt: skip
REFERENCES: dict[str, dict[str, Any]] = {"alone": {"algorithm": "page-pg"}, "honest": {"agents": 13}}
FEDERATION = {"agents": 13, "byzantine": 3}


def configurations(task: str, rules: list[str], attacks: list[str], seeds: int, seed: int) -> dict[str, Any]:
    """Return the missing rows of a task, name -> configuration."""
    from tasks import TASKS

    from jaxbyz.configuration.resolving import resolve
    from jaxbyz.files import read_rows

    options = {name: own for name, own in REFERENCES.items()} | {
        f"{rule} {attack}": {**FEDERATION, "aggregator": rule, "attack": attack} for rule in rules for attack in attacks
    }
    length = {"trajectories": TASKS[task].budget, "seeds": seeds, "seed": seed}
    finished = {row["name"] for row in read_rows(TABLE)}
    return {
        f"{task} {name}": resolve(TASKS[task].preset, **length, **own)
        for name, own in options.items()
        if f"{task} {name}" not in finished
    }


def run(arguments: argparse.Namespace) -> None:
    """Train the missing rows and add them to the table."""
    import jaxbyz as jb
    from jaxbyz.files import add_row
    from jaxbyz.reproduction.training_results import batches_of_trainings, train_and_record

    jb.prepare()
    for task in arguments.tasks:
        missing = configurations(task, arguments.rules, arguments.attacks, arguments.seeds, arguments.seed)
        for batch in batches_of_trainings(missing, together=True):
            for name, (metrics, record) in train_and_record(batch).items():
                _, *rule, attack = name.split()
                returns, weight = metrics["returns"], metrics["byzantine_weight"]
                row = {
                    "name": name, "task": task, "rule": " ".join(rule) or attack, "attack": attack if rule else "",
                    "mean_return": np.round(returns.mean(axis=1), 4).tolist(),
                    "last_batches": np.round(returns[:, -3:].mean(axis=1), 4).tolist(),
                    "byzantine_weight": round(float(np.nanmean(weight)), 4),
                    "config": record["config"], "environment": record["environment"], "seconds": record["seconds"],
                }  # fmt: skip
                add_row(TABLE, row)
                print(name, f"{returns.mean():.4g}", f"{record['seconds']} s", flush=True)


def scores() -> dict[tuple[str, str, str], np.ndarray]:
    """Return the score of every seed: (task, rule, attack) -> `[seeds]`."""
    from jaxbyz.files import read_rows

    rows = read_rows(TABLE)
    mean = {(row["task"], row["rule"], row["attack"]): np.array(row["mean_return"]) for row in rows}
    alone, honest = ({task: mean[task, name, ""].mean() for task, _, _ in mean} for name in REFERENCES)
    return {
        (task, rule, attack): (values - alone[task]) / (honest[task] - alone[task])
        for (task, rule, attack), values in mean.items()
        if attack
    }


def table(arguments: argparse.Namespace) -> None:
    """Print the mean scores as Markdown, one row per attack."""
    found = scores()
    columns = sorted({(task, rule) for task, rule, _ in found})
    print("| attack | " + " | ".join(f"{task}, `{rule}`" for task, rule in columns) + " |")
    print("| --- |" + " --: |" * len(columns))
    for attack in ATTACKS:
        cells = [found.get((task, rule, attack)) for task, rule in columns]
        texts = ["–" if values is None else f"{values.mean():.2f}".replace("-", "−") for values in cells]
        print(f"| {attack} | " + " | ".join(texts) + " |")


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
        config = resolve("acrobot", **FEDERATION, attack=attack, aggregator="memory+rfa", seed=1000)
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
    runs = commands.add_parser("run")
    runs.add_argument("tasks", nargs="+")
    runs.add_argument("--rules", nargs="+", default=["caf", "memory+rfa"])
    runs.add_argument("--attacks", nargs="+", default=ATTACKS)
    runs.add_argument("--seeds", type=int, default=10)
    runs.add_argument("--seed", type=int, default=1000)
    runs.set_defaults(call=run)
    commands.add_parser("table").set_defaults(call=table)
    drawing = commands.add_parser("picture")
    drawing.add_argument("--out", default="docs/images/memory.png")
    drawing.set_defaults(call=picture)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
