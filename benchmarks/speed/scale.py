"""Agreement among up to 100,000 agents: random committees beside all-to-all; see docs/measurements/scale.md.

    python benchmarks/speed/scale.py [--agents 100 1000 10000 100000] [--size 386] [--out benchmarks/results/scale.json]

A tenth of the agents is Byzantine and sends ALIE's message, computed in every committee from what it sees there. Honest
parameters start as a standard normal cloud. Measured: CPU seconds of the compilation, seconds per round, bytes per
round that the agents send, the honest diameter after each round in diameters before the first, and how far the honest
mean has moved. All-to-all, with the same rule for all K messages, is measured up to `--most-all` agents.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxbyz.accelerate.setup import prepare
from jaxbyz.components import make_agreement, make_attack
from jaxbyz.files import write_json
from jaxbyz.protocol.agreements import run_agreement
from jaxbyz.protocol.committees import failure_probability, members_tolerated
from jaxbyz.protocol.exchange import Adversary
from jaxbyz.runs.run_folder import describe_environment

SHARE, RULE, ATTACK = 0.1, "trimmed-mean", "alie:on=parameters"
BLOCK = 4096  # rows whose distances to as many others are computed at a time


@jax.jit
def farthest(block: Array, other: Array) -> Array:
    """Return the largest squared distance between a row of one block and a row of another."""
    products = jnp.matmul(block, other.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.max(jnp.sum(block**2, axis=1)[:, None] + jnp.sum(other**2, axis=1)[None] - 2.0 * products)


def diameter(rows: np.ndarray) -> float:
    """Return the largest distance between two rows.

    Members of a committee that are told the same hold the same vector, so that few different rows are left after the
    first round.
    """
    distinct = np.unique(np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}"))
    rows = distinct.view(rows.dtype).reshape(-1, rows.shape[1])
    rows = rows - rows.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    size = min(BLOCK, len(rows))
    rows = np.concatenate([rows, np.repeat(rows[:1], -len(rows) % size, axis=0)])
    blocks = [jnp.asarray(rows[i : i + size]) for i in range(0, len(rows), size)]
    pairs = itertools.combinations_with_replacement(blocks, 2)
    return float(np.sqrt(max(0.0, *(float(farthest(*pair)) for pair in pairs))))


def measure(K: int, D: int, rounds: int, name: str, repeats: int) -> dict[str, Any]:
    """Measure one agreement of K agents with D parameters."""
    f = int(SHARE * K)
    agreement = make_agreement(name, K, f, 1)
    assert agreement is not None
    attack = make_attack(ATTACK, K, f)
    mask = jnp.arange(K) >= K - f
    adversary = Adversary(mask, attack.parameters, attack.equivocates, attack.init(K, D))

    def one_round(key: Array, rows: Array, mask: Array) -> Array:  # XLA would evaluate sums over a constant mask itself
        return run_agreement(key, agreement, rows, adversary._replace(mask=mask)).parameters

    start = jax.random.normal(jax.random.key(0), (K, D))
    begin = time.process_time()
    program = jax.jit(one_round).lower(jax.random.key(1), start, mask).compile()
    compiled = time.process_time() - begin
    jax.block_until_ready(program(jax.random.key(1), start, mask))
    times = []
    for i in range(repeats):
        begin = time.monotonic()
        jax.block_until_ready(program(jax.random.key(i), start, mask))
        times.append(time.monotonic() - begin)
    honest = np.asarray(start)[: K - f]
    first, mean = diameter(honest), honest.mean(axis=0, dtype=np.float64)
    rows, diameters, drifts = start, [], []
    for i in range(rounds):
        rows = program(jax.random.key(100 + i), rows, mask)
        honest = np.asarray(rows)[: K - f]
        diameters.append(diameter(honest) / first)
        drifts.append(float(np.linalg.norm(honest.mean(axis=0, dtype=np.float64) - mean)) / first)
    size = agreement.rule.committee or K
    unsafe = 0.0 if size == K else K // size * failure_probability(K, f, size, members_tolerated(size))
    return {
        "agents": K, "byzantine": f, "D": D, "agreement": name, "members": size, "seconds": min(times),
        "compile_cpu_seconds": compiled, "bytes_per_round": 4.0 * K * (size - 1) * D,
        "bytes_per_agent": 4.0 * (size - 1) * D, "unsafe_probability_per_round": unsafe,
        "diameter": diameters, "drift": drifts,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--size", type=int, default=386, help="parameters D (default: CartPole's policy, 386)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most-all", type=int, default=10_000, help="largest K for all-to-all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scale.json"))
    arguments = parser.parse_args()
    prepare()
    rows = []
    for K in arguments.agents:
        for name in ("committees", RULE)[: 2 if arguments.most_all >= K else 1]:
            rows.append(measure(K, arguments.size, arguments.rounds, name, arguments.repeats))
            shown = {key: value for key, value in rows[-1].items() if key not in ("diameter", "drift")}
            print(shown, [f"{value:.2g}" for value in rows[-1]["diameter"]], flush=True)
            write_json(
                arguments.out,
                {
                    "command": shlex.join(["python", *sys.argv]),
                    "environment": describe_environment(), "share": SHARE, "rule": RULE, "attack": ATTACK, "rows": rows,
                },
            )  # fmt: skip


if __name__ == "__main__":
    main()
