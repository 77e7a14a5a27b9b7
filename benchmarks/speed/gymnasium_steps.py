"""Steps per second in environments of gymnasium: training, sampling alone, and random actions alone.

    python benchmarks/speed/gymnasium_steps.py [--tasks CartPole-v1 LunarLander-v3 HalfCheetah-v5] [--out FILE]

LunarLander needs Box2D and HalfCheetah needs MuJoCo. A federation of 13 agents with the preset of the task trains for a
while, because episodes of trained policies differ in length. Then these take turns, all with the same processes, and as
many episodes at a time as the federation has:

- `training`: whole iterations, from the first step of an episode to the agreement;
- `sampling`: the episodes of an iteration;
- `random`: the same vector environment is stepped with random actions by a loop in Python, and nothing else; an
  episode that has ended is followed by the next one;
- `sync`: gymnasium's `SyncVectorEnv` with random actions, in this process.

A step is one call of `step` of an environment. The file has the steps per second of every round, and the median of
their ratios to `random` and to the faster of `random` and `sync`, and how many processes played the last batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import against_plain  # noqa: F401 (prepares JAX, so it comes first)

import gymnasium  # isort: skip
import jax
import numpy as np

import jaxbyz as jb
from jaxbyz.algorithms.agents import run_key
from jaxbyz.files import write_json
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling.rollout import collect
from jaxbyz.training import segments

WARM_UP = {"CartPole-v1": 20, "LunarLander-v3": 10, "HalfCheetah-v5": 2}  # iterations
ITERATIONS = {"CartPole-v1": 5, "LunarLander-v3": 2, "HalfCheetah-v5": 1}  # per round
SECONDS = 3.0  # per round, of random actions


class Counter:
    """Counts the steps of the environments that a host runs."""

    def __init__(self, host: Any):
        self.steps, ask = 0, host._ask

        def counted(command: str, chosen: np.ndarray, values: np.ndarray) -> Any:
            self.steps += len(chosen) if command == "step" else 0
            return ask(command, chosen, values)

        host._ask = counted

    def per_second(self, work: Callable[[], Any]) -> float:
        before, begun = self.steps, time.perf_counter()
        work()
        return (self.steps - before) / (time.perf_counter() - begun)


def random_actions(space: gymnasium.Space, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(0, space.n, shape, dtype=np.int32)
    return rng.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32)


def measure(task: str, rounds: int) -> dict[str, Any]:
    config = jb.resolve(env=f"gymnasium:{task}", agents=13, trajectories=10**6)
    plan, space = make_plan(config), gymnasium.make(task).action_space
    environment, policy = plan.algorithm.environment, plan.algorithm.policy
    host, lanes, rng = environment.host, config.agents * config.N, np.random.default_rng(0)
    counter, each = Counter(host), ITERATIONS[task]
    coins = np.ones(WARM_UP[task] + each * (rounds + 1), bool)
    training = segments(plan.algorithm, plan.keys, coins, np.zeros(1, int), length=each)
    for segment in training:
        if segment.done >= WARM_UP[task]:
            break
    parameters = segment.runs.state.parameters[0]
    sample = jax.jit(lambda keys: collect(environment, policy, parameters, keys, config.N, config.horizon).returns)
    keys = jax.random.split(run_key(jax.random.key(1)), config.agents)
    jax.block_until_ready(sample(keys))

    def fresh(count: int) -> np.ndarray:
        return host._reset(rng.integers(0, 2**31, count), np.zeros(count, np.int32))[1]

    def random_steps() -> None:
        tickets, end = fresh(lanes), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            _, _, terminated, truncated, _ = host._step(tickets, random_actions(space, (lanes,), rng))
            over = terminated | truncated
            if over.any():
                tickets[over] = fresh(over.sum())
        host._release(tickets)

    vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(task)] * lanes)
    vector.reset(seed=0)

    def sync() -> None:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            vector.step(random_actions(space, (lanes,), rng))
            counter.steps += lanes

    ways = {
        "training": lambda: next(training),
        "sampling": lambda: jax.block_until_ready(sample(keys)),
        "random": random_steps,
        "sync": sync,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            found[name].append(counter.per_second(work))
    vector.close()
    fastest = np.maximum(found["random"], found["sync"])
    ratios = {
        f"{name} to {base}": statistics.median(np.array(found[name]) / speeds)
        for name in ("training", "sampling")
        for base, speeds in (("random", found["random"]), ("the fastest", fastest))
    }
    print(task, {name: round(statistics.median(values)) for name, values in found.items()}, ratios, flush=True)
    return {"episodes": lanes, "processes": host._count, "steps_per_second": found, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", default=list(WARM_UP), choices=list(WARM_UP))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    given = parser.parse_args()
    results = {task: measure(task, given.rounds) for task in given.tasks}
    if given.out:
        write_json(Path(given.out), {"machine": describe_environment(), "tasks": results})


if __name__ == "__main__":
    main()
