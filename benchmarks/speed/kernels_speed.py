"""Rules on a GPU with and without kernels of matrices, alone and in whole iterations.

    python benchmarks/speed/kernels_speed.py [--small] [--out benchmarks/results/kernels-speed.json]

- `filter`: what CAF computes from the Gram matrices of 13 messages, 10 seeds × 48 tries of an attack;
- `caf of many`: CAF on 10 × 48 sets of messages `[13, 5000]`, and `caf of one`: on `[13, 1000]`;
- `iteration`: one iteration of Catch's preset, 13 agents, three of them Byzantine, 10 seeds: with CAF under the attack
  opt-ipm, which applies the rule many times, and with RFA alone and behind the memory of senders, under AvgZero
  and opt-ipm.

Everything is compiled and run once before it is timed, and the programs of a group take turns. The file has the seconds
of every round, the median and the range of the ratios of rounds, how many calls of kernels a program has, and the
largest difference of what two programs return; RFA with and without memory differ by what they compute. `--small`
measures few and short programs, to see that the script works: on a CPU, kernels are interpreted, so that their times
say nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from against_plain import ratio, samples  # prepares JAX, so it comes first

import jax  # isort: skip
import jax.numpy as jnp

import jaxbyz as jb
from jaxbyz.accelerate.kernels import one_matrix_kernel
from jaxbyz.accelerate.platform import Platform, trace_for
from jaxbyz.files import write_json
from jaxbyz.rules import Receiver
from jaxbyz.rules.caf import caf, filtered_shares
from jaxbyz.runs.run_folder import describe_environment

AGENTS, BYZANTINE = 13, 3
PLATFORMS: dict[str, Platform] = {"with kernels": "kernels", "without": "gpu"}


class Sizes(NamedTuple):
    """How much is measured."""

    seeds: int = 10
    tries: int = 48
    rounds: int = 30
    iterations: int = 12  # rounds of whole iterations


class Program(NamedTuple):
    """A program that is being compiled, its arguments, and how often it calls kernels."""

    compiled: Future
    arguments: tuple[Any, ...]
    kernels: int

    def run(self) -> jax.Array:
        return self.compiled.result()(*self.arguments)


class Compiler(NamedTuple):
    """Traces functions one after another, and compiles them in threads meanwhile."""

    threads: ThreadPoolExecutor

    def start(self, function: Callable[..., jax.Array], platform: Platform, *arguments: Any) -> Program:
        """Trace a function for a platform. It must be a new function object, which JAX has not traced before."""
        with trace_for(platform):
            traced = jax.jit(function).trace(*arguments)
            lowered = traced.lower()
        calls = str(traced.jaxpr).count("pallas_call[")
        return Program(self.threads.submit(lowered.compile), arguments, calls)


def aggregate(messages: jax.Array) -> jax.Array:
    return caf(BYZANTINE).apply(jax.random.key(0), messages, Receiver(messages[0], jnp.int32(0)), ()).rows[0]


def rule_programs(compiler: Compiler, sizes: Sizes) -> dict[str, dict[str, Program]]:
    """Return the filter and the rule, by group. The Byzantine messages are ten times as long as the others."""
    many = jax.random.normal(jax.random.key(0), (sizes.seeds, sizes.tries, AGENTS, 5000))
    many = many.at[..., :BYZANTINE, :].multiply(10.0)
    gram = jnp.einsum("stid,stjd->stij", many, many) / 5000
    usable = jnp.ones(gram.shape[:3])
    filtered = partial(filtered_shares, n=AGENTS, byzantine=BYZANTINE)
    groups: dict[str, dict[str, Program]] = {"filter": {}, "caf of many": {}, "caf of one": {}}
    for name, platform in PLATFORMS.items():
        filter_one = partial(one_matrix_kernel, filtered)
        groups["filter"][name] = compiler.start(jax.vmap(jax.vmap(filter_one)), platform, gram, usable)
        groups["caf of many"][name] = compiler.start(jax.vmap(jax.vmap(partial(aggregate))), platform, many)
        groups["caf of one"][name] = compiler.start(partial(aggregate), platform, many[0, 0, :, :1000])
    return groups


def iteration_programs(compiler: Compiler, sizes: Sizes) -> dict[str, dict[str, Program]]:
    """Return one iteration of all seeds with several rules."""

    def start(rule: str, attack: str = "opt-ipm", platform: Platform = "kernels") -> Program:
        config = jb.resolve("catch", agents=AGENTS, byzantine=BYZANTINE, attack=attack, aggregator=rule)
        algorithm = jb.build(config)
        states = jax.jit(jax.vmap(algorithm.init))(jax.random.split(jax.random.key(0), sizes.seeds))
        step = jax.vmap(algorithm.step, in_axes=(0, None))
        return compiler.start(lambda *arguments: step(*arguments)[0].parameters, platform, states, jnp.bool_(True))

    def with_memory(attack: str) -> dict[str, Program]:
        return {rule: start(rule, attack) for rule in ("rfa", "memory+rfa")}

    return {
        "iteration, avg-zero": with_memory("avg-zero"),
        "iteration, opt-ipm": with_memory("opt-ipm"),
        "iteration, opt-ipm, caf": {name: start("caf", platform=PLATFORMS[name]) for name in PLATFORMS},
    }


def measure(sizes: Sizes) -> dict[str, Any]:
    """Compile all programs, then time those of a group in turns."""
    rows = {}
    with ThreadPoolExecutor() as threads:
        compiler = Compiler(threads)
        groups = {**iteration_programs(compiler, sizes), **rule_programs(compiler, sizes)}
    for group, programs in groups.items():
        rounds = sizes.iterations if "iteration" in group else sizes.rounds
        seconds = samples(rounds, **{name: program.run for name, program in programs.items()})
        first, second = programs
        difference = jnp.max(jnp.abs(programs[first].run() - programs[second].run()))
        rows[group] = {
            "seconds": seconds,
            "median": {name: statistics.median(taken) for name, taken in seconds.items()},
            f"{second} / {first}": ratio(seconds, second, first),
            "kernels": {name: program.kernels for name, program in programs.items()},
            "largest difference": float(difference),
        }
        print(group, {key: value for key, value in rows[group].items() if key != "seconds"}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few seeds, tries and rounds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels-speed.json"))
    given = parser.parse_args()
    sizes = Sizes(seeds=2, tries=2, rounds=2, iterations=1) if given.small else Sizes()
    started = time.perf_counter()
    rows = measure(sizes)
    report = {"environment": describe_environment(), "sizes": sizes._asdict(), "rows": rows}
    write_json(given.out, {**report, "seconds in all": time.perf_counter() - started})


if __name__ == "__main__":
    main()
