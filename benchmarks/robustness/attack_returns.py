"""One-step damage of an attack beside the final return of a short training under it, for every rule and attack.

    python benchmarks/robustness/attack_returns.py            # writes results/attack_returns.json and prints it
    python benchmarks/robustness/attack_returns.py krum mda   # only these rules; their rows in the file are replaced
    python benchmarks/robustness/attack_returns.py --show     # prints the table from the file

Damage is that of `attack_damage.py`: the distance of the aggregate from the honest mean in honest spreads, on random
messages. The training is ByzPG with large batches on the MDP of `jaxbyz.sampling.tabular_mdp`, whose return J is known
exactly: K = 13 workers, f = 3 of them Byzantine, plain ascent. All attacks and seeds of a rule are one program; the
attack is an index in the adversary's memory, so that the rule is compiled once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import attack_damage
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jaxbyz as jb
from jaxbyz.accelerate.fast_compilation import fast_compiling_jit
from jaxbyz.accelerate.setup import prepare
from jaxbyz.algorithms.base import starting_with_attack
from jaxbyz.attacks import attacks
from jaxbyz.attacks.one_of import one_of
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling import tabular_mdp

K, F = attack_damage.K, attack_damage.F
SEEDS, ITERATIONS, BATCH, STEP_SIZE = 16, 150, 8, 0.3
RULES = ("mean", "krum", "rfa", "mda", "median", "trimmed-mean", "centered-clipping", "caf", "nnm+rfa", "bucketing+rfa")
ATTACKS = (
    "zero", "sign-flip", "avg-zero", "ipm", "alie", "min-max", "mimic", "opt-ipm", "opt-alie", "normalized", "drift",
    "coupled-alie", "learned", "large-noise",
)  # fmt: skip
UNATTACKED = "none"
TARGET = Path(__file__).parents[1] / "results" / "attack_returns.json"


def returns(rule: str) -> dict[str, list[float]]:
    """Return J of the last parameters for every attack and seed, without attack first."""
    built = [attacks[name].build(K, F) for name in (UNATTACKED, *ATTACKS)]

    algorithm = jb.byzpg(
        tabular_mdp.environment(), tabular_mdp.policy(), agents=K, byzantine=F, aggregator=rule,
        attack=one_of(built), optimizer="sgd", eta=STEP_SIZE, N=BATCH, B=2, p=1.0,
        gamma=tabular_mdp.GAMMA, horizon=tabular_mdp.HORIZON,
    )  # fmt: skip

    def one(index: Array, key: Array) -> Array:
        start = starting_with_attack(algorithm, index).init(key)
        last, _ = jax.lax.scan(algorithm.step, start, jnp.ones(ITERATIONS, bool))
        return tabular_mdp.value(last.parameters[0])

    keys = jax.random.split(jax.random.key(0), SEEDS)
    under = jax.vmap(one, in_axes=(None, 0))
    found = fast_compiling_jit(lambda indices: jax.lax.map(lambda i: under(i, keys), indices))(jnp.arange(len(built)))
    values = np.nan_to_num(np.asarray(found, np.float64), nan=0.0)
    return {name: row.tolist() for name, row in zip((UNATTACKED, *ATTACKS), values, strict=True)}


def measure(rule: str) -> dict[str, dict[str, float]]:
    """Return one-step damage, and mean and standard deviation of the final return, for every attack."""
    damage = attack_damage.damages(rule, only=ATTACKS)
    rows = {}
    for name, values in returns(rule).items():
        one_step = {} if name == UNATTACKED else {"damage": damage[name]}
        rows[name] = {**one_step, "return": float(np.mean(values)), "std": float(np.std(values, ddof=1))}
    return rows


def rank_correlation(rows: dict[str, dict[str, float]]) -> float:
    """Return Spearman's correlation between damage and lost return over attacks."""
    damage = [row["damage"] for name, row in rows.items() if name != UNATTACKED]
    lost = [-row["return"] for name, row in rows.items() if name != UNATTACKED]
    ranks = [np.argsort(np.argsort(values)) for values in (damage, lost)]
    return float(np.corrcoef(*ranks)[0, 1])


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return one line per rule and one column per attack: damage, and the final return."""

    def number(value: float) -> str:
        return "∞" if not np.isfinite(value) else f"{value:.2f}" if value < 100 else f"{value:.0f}"

    lines = [f"| rule | none | {' | '.join(ATTACKS)} | ρ |", f"| --- | --- |{' --- |' * len(ATTACKS)} --- |"]
    for rule, rows in results.items():
        worst = min((name for name in ATTACKS), key=lambda name: rows[name]["return"])
        cells = [f"{rows[UNATTACKED]['return']:.2f}"]
        for name in ATTACKS:
            text = f"{number(rows[name]['damage'])} → {rows[name]['return']:.2f}"
            cells.append(f"**{text}**" if name == worst else text)
        lines.append(f"| {rule} | {' | '.join(cells)} | {rank_correlation(rows):.2f} |")
    return "\n".join(lines)


def stored() -> dict[str, dict[str, dict[str, float]]]:
    """Return what has been measured, in the order of `RULES`."""
    rows = json.loads(TARGET.read_text())["rules"] if TARGET.exists() else {}
    plain = {rule: {a: {k: float(v) for k, v in row.items()} for a, row in rows[rule].items()} for rule in rows}
    return {rule: plain[rule] for rule in RULES if rule in plain}


def main(names: list[str]) -> None:
    prepare()
    for rule in [] if names == ["--show"] else names or RULES:
        start = time.process_time()
        rows = measure(rule)
        print(f"{rule}: {time.process_time() - start:.0f} s of CPU time", file=sys.stderr, flush=True)
        plain = {
            name: {attack: {k: v if np.isfinite(v) else "inf" for k, v in row.items()} for attack, row in found.items()}
            for name, found in {**stored(), rule: rows}.items()
        }
        report = {
            "command": "python benchmarks/robustness/attack_returns.py", "environment": describe_environment(),
            "agents": K, "byzantine": F, "seeds": SEEDS, "iterations": ITERATIONS,
            "batch": BATCH, "step_size": STEP_SIZE,
        }  # fmt: skip
        write_json(TARGET, {**report, "rules": plain})
    print(table(stored()))


if __name__ == "__main__":
    main(sys.argv[1:])
