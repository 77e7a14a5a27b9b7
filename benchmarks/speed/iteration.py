"""Whole iterations of task presets: ways to go through the steps of a batch, and ways to convolve, side by side.

    python benchmarks/speed/iteration.py [--tasks lunarlander breakout] [--seeds 1 10] [--out FILE]

The federation has 13 agents, 3 of them Byzantine (AvgZero). It first trains for a while, because episodes of trained
policies differ in length; then one iteration is measured in every way:

- `chunks`: the sums of an update go through the chunks of all episodes, until the longest has ended;
- `strips`: they go through chunks of episodes that have not ended, in the layout for this platform;
- `products`: as `strips`, and a convolution is one matrix product per row of its kernel instead of XLA's operation.

All are compiled and run once before they are timed, and they take turns. The file has the seconds of every round, and
the largest difference between the parameters after an iteration and those after one with `chunks`; where rounding
changes an action, the episodes differ. On a CPU, XLA compiles its convolutions of many agents for several minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from against_plain import ratio, samples  # prepares JAX, so it comes first

import jax  # isort: skip
import jax.numpy as jnp

import jaxbyz as jb
from jaxbyz.accelerate import episode_sums
from jaxbyz.accelerate.convolutions import convolve, plain_convolve
from jaxbyz.files import write_json
from jaxbyz.policies import convolutional
from jaxbyz.runs.run_folder import describe_environment

FEDERATION = {"agents": 13, "byzantine": 3, "attack": "avg-zero"}
IMAGES = ("breakout", "asterix", "spaceinvaders")


@contextlib.contextmanager
def traced(way: str) -> Iterator[None]:
    """Trace programs in one way."""
    chosen = convolve if way == "products" else plain_convolve
    with mock.patch.object(convolutional, "convolve", chosen), contextlib.ExitStack() as stack:
        if way == "chunks":
            stack.enter_context(mock.patch.object(episode_sums, "layout", lambda _: "chunks"))
        yield


def lowered(config: jb.Config, way: str, states: Any) -> jax.stages.Lowered:
    """Trace one iteration of all seeds."""
    with traced(way):
        return jax.jit(jax.vmap(jb.build(config).step, in_axes=(0, None))).lower(states, jnp.bool_(True))


def measure(task: str, seeds: int, warm_up: int, rounds: int) -> dict[str, Any]:
    """Train for a while, then time an iteration in every way."""
    config = jb.resolve(task, **FEDERATION)
    states = jax.vmap(jb.build(config).init)(jax.random.split(jax.random.key(0), seeds))
    ways = ("chunks", "strips", "products") if task in IMAGES else ("chunks", "strips")
    traces = [lowered(config, way, states) for way in ways]
    with ThreadPoolExecutor() as pool:
        compiled = dict(zip(ways, pool.map(lambda trace: trace.compile(), traces), strict=True))

    def parameters(way: str) -> Callable[[], jax.Array]:
        return lambda: compiled[way](states, jnp.bool_(True))[0].parameters

    for _ in range(warm_up):
        states, metrics = compiled[ways[-1]](states, jnp.bool_(True))
    programs = {way: parameters(way) for way in ways}
    differences = {way: float(jnp.max(jnp.abs(programs[way]() - programs["chunks"]()))) for way in ways[1:]}
    seconds = samples(rounds, **programs)
    ratios = {way: ratio(seconds, "chunks", way) for way in ways[1:]}
    length = float(jnp.mean(metrics.length))
    print(f"{task}, {seeds} seeds, mean length {length:.0f}", flush=True)
    for way, taken in seconds.items():
        faster = f"{ratios[way]['median']:.2f} times as fast" if way in ratios else ""
        print(f"  {way:8}  {statistics.median(taken):8.4f} s  {faster}", flush=True)
    print("  differences", differences, flush=True)
    return {"task": task, "seeds": seeds, "iterations before": warm_up, "mean length": length, "seconds": seconds,
            "times as fast as chunks": ratios, "differences": differences}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["lunarlander", "breakout"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--iterations", type=int, default=60, help="before the measurement (60)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/iteration-cpu.json"))
    given = parser.parse_args()
    rows = [measure(task, seeds, given.iterations, given.rounds) for task in given.tasks for seeds in given.seeds]
    write_json(given.out, {"environment": describe_environment(), "federation": FEDERATION, "rows": rows})


if __name__ == "__main__":
    main()
