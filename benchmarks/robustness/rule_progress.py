"""How far does one step of a rule follow the true gradient while three of 13 agents lie?

    python benchmarks/robustness/rule_progress.py          # writes benchmarks/results/rule_progress.json and prints it
    python benchmarks/robustness/rule_progress.py --show   # prints the tables from the file

The agents of suite v1-lite estimate the gradient g at the same policy with their four trajectories, and three of them
lie. The progress of a rule with result a is ⟨a, g⟩/‖g‖²: 1 for the true gradient, 0 for no progress, negative if the
step leads down. It is averaged over draws; g is the mean over other draws. The policies are ten initial ones, and what
the attack-free mean has made of them after ten steps; those without a gradient are left out. The noise is
√(E‖x − g‖²)/‖g‖ of one agent's message x.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbyz as jb
from jaxbyz.benchmark.entries import MEAN, NO_ATTACK, Cell, cell_config, options_of
from jaxbyz.benchmark.suite import load_suite
from jaxbyz.benchmark.table import number
from jaxbyz.configuration.building import build
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling.estimators import estimate
from jaxbyz.sampling.rollout import collect

TARGET = Path(__file__).parents[1] / "results" / "rule_progress.json"
RULES = ("mean", "rfa", "bucketing+rfa", "nnm+trimmed-mean", "median", "caf", "krum", "mda")
STEPS = (0, 10)  # iterations of the attack-free mean before the measurement
POLICIES, DRAWS = 10, 64


def measure(task: str) -> list[dict[str, Any]]:
    """Return one row per number of steps: the noise, and the progress of every rule under every attack per policy."""
    suite = load_suite("v1-lite")
    federation = suite.federations["k13"]
    K, f = federation.agents, federation.byzantine
    cell = Cell(task, federation.name, MEAN, NO_ATTACK)
    config = cell_config(suite, cell, options_of(suite, {}, cell))
    algorithm = build(config)
    policy = algorithm.policy

    @jax.jit
    def messages(key: jax.Array, theta: jax.Array) -> jax.Array:
        """Return `[DRAWS, K, D]`: all draws are sampled side by side."""
        rows = jnp.broadcast_to(theta, (DRAWS * K, policy.size))
        episodes = collect(
            algorithm.environment, policy, rows, jax.random.split(key, len(rows)), config.N, config.horizon
        )
        return estimate(config, policy, rows, episodes).reshape(DRAWS, K, policy.size)

    mask = np.arange(K) >= K - f

    def aggregated(rule: str, attack: str, key: jax.Array, x: jax.Array) -> jax.Array:
        received = jb.attack(attack, key, x, mask, rule=rule)[0] if attack != NO_ATTACK else x
        return jb.aggregate(rule, key, received, byzantine=f)

    # Without jit around them, the one-call forms know how many agents lie; they are compiled themselves.
    programs = {
        (rule, attack): jax.vmap(partial(aggregated, rule, attack))
        for rule in RULES
        for attack in (NO_ATTACK, *suite.attacks)
    }
    rows = []
    for steps in STEPS:
        noise, progress = [], {pair: [] for pair in programs}
        for seed, theta in enumerate(policies(config, steps)):
            keys = jax.random.split(jax.random.key(seed), 4)
            x, first, second = (np.asarray(messages(key, theta)) for key in keys[:3])
            # Two independent estimates, so that their noise does not count as length.
            g, other = first.mean((0, 1)), second.mean((0, 1))
            length2 = float(g @ other)
            if length2 <= 0:  # every episode has the same return, for example
                continue
            noise.append(float(np.sqrt(np.mean(np.sum((x - g) ** 2, -1)) / length2)))
            for pair, program in programs.items():
                results = np.asarray(program(jax.random.split(keys[3], DRAWS), jnp.asarray(x)))
                progress[pair].append(float(np.mean(results @ g) / length2))
        rows.append(
            {
                "task": task,
                "steps": steps,
                "noise": noise,
                "progress": {
                    rule: {attack: progress[rule, attack] for attack in (NO_ATTACK, *suite.attacks)} for rule in RULES
                },
            }
        )
    return rows


def policies(config: Any, steps: int) -> list[jax.Array]:
    """Return the parameters of ten seeds after some iterations of the attack-free mean."""
    algorithm = build(config)
    keys = jax.random.split(jax.random.key(0), POLICIES)
    if steps == 0:
        return list(jax.vmap(algorithm.init)(keys).parameters[:, 0])
    trained = jax.jit(jax.vmap(lambda key: jb.train(algorithm, key, steps).run.state))(keys)
    return list(trained.parameters[:, 0])


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table per task and number of steps: the median over policies."""
    lines = []
    for row in rows:
        noise = np.median(row["noise"])
        attacks = list(next(iter(row["progress"].values())))
        lines += ["", f"{row['task']} after {row['steps']} steps, noise {noise:.1f}:", ""]
        lines += [f"| rule | {' | '.join(attacks)} |", "| --- |" + " --: |" * len(attacks)]
        for rule, by_attack in row["progress"].items():
            lines.append(
                f"| {rule} | {' | '.join(number(float(np.median(by_attack[attack]))) for attack in attacks)} |"
            )
    return "\n".join(lines).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the tables of the file")
    if not parser.parse_args().show:
        rows = [row for task in ("tabular", "cartpole") for row in measure(task)]
        write_json(TARGET, {"policies": POLICIES, "draws": DRAWS, "environment": describe_environment(), "rows": rows})
    print(table(json.loads(TARGET.read_text())["rows"]))


if __name__ == "__main__":
    main()
