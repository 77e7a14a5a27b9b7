"""The gradient-found attack on long messages: the search in all D dimensions beside the one in a subspace.

    python benchmarks/speed/subspace.py [--rule caf] [--rounds 5] [--out benchmarks/results/subspace.json]

Thirteen agents, 3 of them Byzantine, and random honest messages with a common part. For every D, both programs take
turns; the file has the seconds of every call and the damage of the forged messages in honest spreads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.attacks import gradient_found, honest_mean
from jaxbyz.attacks.gradient_found import WIDE, honest_spread
from jaxbyz.files import write_json
from jaxbyz.protocol.exchange import Adversary, omniscient_view, sent_to
from jaxbyz.rules import aggregators
from jaxbyz.runs.run_folder import describe_environment

AGENTS, BYZANTINE = 13, 3
LENGTHS = (WIDE, 2 * WIDE, 4 * WIDE, 16 * WIDE)


def damage_function(rule_name: str, in_subspace: bool) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a compiled function (key, honest messages `[K, D]`) -> the damage that the attack does."""
    rule = aggregators[rule_name].build(AGENTS, BYZANTINE)
    forge = gradient_found(on="gradients").gradients
    mask = jnp.arange(AGENTS) < BYZANTINE

    def damage(key: jax.Array, x: jax.Array) -> jax.Array:
        view = omniscient_view(key, rule, rule.init(*x.shape), x, Adversary(mask))
        sent = sent_to(key, view._replace(rotates=in_subspace), forge, jnp.int32(0), restore_own=False)
        return jnp.linalg.norm(view.rule(sent) - honest_mean(x, mask)) / honest_spread(view)

    return jax.jit(damage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", default="caf", choices=("caf", "krum", "mda", "multi-krum"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/subspace.json"))
    given = parser.parse_args()
    rows = []
    for D in LENGTHS:
        ways = {"all dimensions": damage_function(given.rule, False), "subspace": damage_function(given.rule, True)}
        row: dict = {"D": D, "seconds": {way: [] for way in ways}, "damage": {way: [] for way in ways}}
        for i in range(given.rounds + 1):
            rng = np.random.default_rng(i)
            x = (rng.normal(size=(AGENTS, D)) + 0.3 * rng.normal(size=D)).astype(np.float32)
            for way, damage in ways.items():
                started = time.perf_counter()
                value = float(damage(jax.random.key(i), x))
                if i > 0:  # the first call compiles
                    row["seconds"][way].append(round(time.perf_counter() - started, 4))
                    row["damage"][way].append(round(value, 4))
        ratios = np.divide(*row["seconds"].values())
        row["times as fast"] = [round(float(ratio), 2) for ratio in ratios]
        medians = {way: statistics.median(row["seconds"][way]) for way in ways}
        mean_damage = {way: round(float(np.mean(row["damage"][way])), 4) for way in ways}
        print(f"D = {D}: {medians} s, {np.median(ratios):.1f} times as fast; mean damage {mean_damage}", flush=True)
        rows.append(row)
    write_json(given.out, {"environment": describe_environment(), "rule": given.rule, "rows": rows})


if __name__ == "__main__":
    main()
