"""Measure how time and memory of an iteration grow with the numbers of agents, parameters and seeds.

    python benchmarks/speed/growth.py [--out benchmarks/results/growth.json] [--picture docs/images/growth.png]
    python benchmarks/speed/growth.py --draw   # draws the results file

Agents (RFA and four rounds of GDA) and parameters (13 agents, RFA and MDA) are varied with episodes of one step, so
that only the protocol is measured; seeds are varied with small batches of fresh CartPole policies. Memory is what the
compiled program allocates besides its arguments. Exponents are fitted to the upper half of each range.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from against_plain import samples

import jaxbyz as jb
from jaxbyz.algorithms import Algorithm, decbyzpg
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment

AGENTS = (5, 13, 50, 200, 1000)
WIDTHS = (4, 16, 64, 256, 1000)  # of two hidden layers: 42 to 1 million parameters
SEEDS = (1, 10, 100, 1000)


def protocol(agents: int, hidden: tuple[int, int], agreement: str) -> Algorithm:
    """Build DecByzPG with episodes of one step."""
    environment = jb.make_environment("CartPole-v1")
    f = 0 if agents < 13 else agents // 13
    return decbyzpg(
        environment,
        jb.mlp_policy(environment, hidden=hidden),
        agents=agents,
        byzantine=f,
        aggregator="rfa",
        agreement=agreement,
        N=1,
        B=1,
        horizon=1,
        p=1.0,
    )


def measured(size: int, algorithm: Algorithm, rounds: int, seeds: int = 1, coin: bool = True) -> dict[str, Any]:
    states = jax.vmap(algorithm.init)(jax.random.split(jax.random.key(0), seeds))
    step = jax.jit(jax.vmap(algorithm.step, in_axes=(0, None)))
    program = step.lower(states, jnp.bool_(coin)).compile()
    memory = program.memory_analysis()
    taken = samples(rounds, it=lambda: program(states, jnp.bool_(coin)))["it"]
    row = {"size": size, "seconds": taken, "bytes": memory.temp_size_in_bytes + memory.output_size_in_bytes}
    print({**row, "seconds": statistics.median(taken)}, flush=True)
    return row


def exponent(rows: list[dict], value: Callable[[dict], float]) -> float:
    upper = rows[len(rows) // 2 :]
    return float(np.polyfit(np.log([r["size"] for r in upper]), np.log([value(r) for r in upper]), 1)[0])


def draw(report: dict, picture: Path) -> None:
    """Draw time and memory, one row each, against agents, parameters and seeds."""
    from jaxbyz.report.plots import COLOURS, figure, save

    columns = {
        "agents": ("RFA, four rounds of GDA, one-step episodes", "agents K"),
        "parameters": ("K = 13, RFA, four rounds of MDA", "parameters D"),
        "seeds": ("K = 13, CartPole, a small batch", "seeds"),
    }
    drawing, grid = figure(3, 2, width=10.5, height=5.6, sharex="col")
    for column, (name, (setting, label)) in zip(grid.T, columns.items(), strict=True):
        rows, found = report[name]["rows"], report[name]["exponents"]
        size = [r["size"] for r in rows]
        symbol = label[-1] if name != "seeds" else "S"
        milliseconds = [1e3 * statistics.median(r["seconds"]) for r in rows]
        for axes, values, kind, colour in (
            (column[0], milliseconds, "time", COLOURS[0]),
            (column[1], [r["bytes"] / 2**20 for r in rows], "memory", COLOURS[1]),
        ):
            axes.loglog(size, values, "o-", color=colour)
            text = f"{kind} grows as {symbol}^{found[kind]:.2f}"
            axes.text(0.04, 0.93, text, transform=axes.transAxes, fontsize=9, va="top")
        column[0].set_title(setting, fontsize=10)
        column[1].set_xlabel(label)
    grid[0, 0].set_ylabel("milliseconds per iteration")
    grid[1, 0].set_ylabel("memory (MiB)")
    machine = report["environment"]
    device = f"{machine['cores']} cores of {machine['system']}" if machine["platform"] == "cpu" else machine["device"]
    drawing.suptitle(f"One iteration of DecByzPG, {device}; exponents of the upper half of each range", fontsize=10)
    save(drawing, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/growth.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/growth.png"))
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw the results file")
    given = parser.parse_args()
    if given.draw:
        draw(json.loads(given.out.read_text()), given.picture)
        return
    report: dict[str, Any] = {"command": "python benchmarks/speed/growth.py", "environment": describe_environment()}
    sweep = jb.build(jb.resolve("cartpole-steady", agents=13, byzantine=3, attack="avg-zero"))
    report["agents"] = {"rows": [measured(K, protocol(K, (16, 16), "gda"), given.rounds) for K in AGENTS]}
    deep = [protocol(13, (width, width), "mda") for width in WIDTHS]
    report["parameters"] = {"rows": [measured(one.policy.size, one, given.rounds) for one in deep]}
    report["seeds"] = {"rows": [measured(S, sweep, given.rounds, S, coin=False) for S in SEEDS]}
    for name in ("agents", "parameters", "seeds"):
        rows = report[name]["rows"]
        report[name]["exponents"] = {
            "time": exponent(rows, lambda r: statistics.median(r["seconds"])),
            "memory": exponent(rows, lambda r: r["bytes"]),
        }
        print(name, report[name]["exponents"], flush=True)
    write_json(given.out, report)
    draw(report, given.picture)


if __name__ == "__main__":
    main()
