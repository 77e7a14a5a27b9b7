"""Agreement among up to 100,000 agents: random committees beside all-to-all; see docs/scale.md.

    python benchmarks/scale.py [--agents 100 1000 10000 100000] [--size 64] [--out benchmarks/results/scale.json]

A tenth of the agents is Byzantine and sends ALIE's message, computed in every committee from what it sees there. Honest
parameters start as a standard normal cloud. Measured: seconds per round, bytes per round that the agents send, the
honest diameter after each round in diameters before the first, and how far the honest mean has moved. All-to-all, with
the same rule for all K messages, is measured up to `--most-all` agents.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxbyz.accelerate.setup import prepare
from jaxbyz.components import make_agreement, make_attack
from jaxbyz.experiments.run_folder import describe_environment
from jaxbyz.files import write_json
from jaxbyz.protocol.agreements import run_agreement
from jaxbyz.protocol.committees import failure_probability, members_tolerated
from jaxbyz.protocol.communication import Adversary

SHARE, RULE, ATTACK = 0.1, "trimmed-mean", "alie:on=parameters"
BLOCK = 2048  # rows whose distances to all others are computed at a time


def diameter(rows: Array, mask: Array) -> Array:
    """Return the largest distance between two honest rows, without a K × K array."""
    honest = jnp.where(mask[:, None], rows[0][None], rows)  # agent 0 is honest
    squares = jnp.sum(honest**2, axis=1)

    def farthest(block: Array) -> Array:
        products = jnp.matmul(block, honest.T, precision=jax.lax.Precision.HIGHEST)
        return jnp.max(jnp.sum(block**2, axis=1)[:, None] + squares[None] - 2.0 * products)

    pad = -rows.shape[0] % min(BLOCK, rows.shape[0])
    blocks = jnp.concatenate([honest, jnp.tile(honest[:1], (pad, 1))]).reshape(-1, min(BLOCK, len(rows)), rows.shape[1])
    return jnp.sqrt(jnp.maximum(jnp.max(jax.lax.map(farthest, blocks)), 0.0))


def measure(K: int, D: int, rounds: int, name: str, repeats: int) -> dict[str, Any]:
    """Measure one agreement of K agents with D parameters."""
    f = int(SHARE * K)
    agreement = make_agreement(name, K, f, 1)
    assert agreement is not None
    attack = make_attack(ATTACK, K, f)
    mask = jnp.arange(K) >= K - f
    adversary = Adversary(mask, attack.parameters, attack.equivocates, attack.init(K, D))
    one_round = jax.jit(lambda key, rows: run_agreement(key, agreement, rows, adversary).parameters)
    spread = jax.jit(lambda rows: (diameter(rows, mask), jnp.sum(jnp.where(mask[:, None], 0.0, rows), 0) / (K - f)))
    start = jax.random.normal(jax.random.key(0), (K, D))
    begin = time.monotonic()
    jax.block_until_ready(one_round(jax.random.key(1), start))
    compiled = time.monotonic() - begin
    times = []
    for i in range(repeats):
        begin = time.monotonic()
        jax.block_until_ready(one_round(jax.random.key(i), start))
        times.append(time.monotonic() - begin)
    first, mean = spread(start)
    rows, diameters, drifts = start, [], []
    for i in range(rounds):
        rows = one_round(jax.random.key(100 + i), rows)
        now, moved = spread(rows)
        diameters.append(float(now / first))
        drifts.append(float(jnp.linalg.norm(moved - mean) / first))
    size = agreement.rule.committee or K
    unsafe = 0.0 if size == K else K // size * failure_probability(K, f, size, members_tolerated(size))
    return {
        "agents": K, "byzantine": f, "D": D, "agreement": name, "members": size, "seconds": min(times),
        "compile_seconds": compiled, "bytes_per_round": 4.0 * K * (size - 1) * D,
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
                    "command": "python benchmarks/scale.py", "environment": describe_environment(), "share": SHARE,
                    "rule": RULE, "attack": ATTACK, "rows": rows,
                },
            )  # fmt: skip


if __name__ == "__main__":
    main()
