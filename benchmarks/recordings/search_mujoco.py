"""Search for healthy states in which a MuJoCo task here differs from MuJoCo itself.

    JAX_ENABLE_X64=1 python benchmarks/recordings/search_mujoco.py PYTHON [--tasks Hopper-v5] [--seconds 60] [--seed 0]

PYTHON has gymnasium and mujoco (see `record_mujoco.py`). The cross-entropy method improves sequences of actions from
a normal reset. Every step that MuJoCo takes until the episode ends is taken here from the same state in float64, and
a sequence is the better the larger its largest difference of velocities is. Because contacts that are missing here
differ only once they happen, there is also one search per pair of links that can touch, which is rewarded for a small
distance of the two as well. Survival counts a little. Searches start anew, with another initial state, until the time
is over.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.environments import make_environment
from jaxbyz.environments.mujoco.task import initial_state, transition

TASKS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Swimmer-v5", "Reacher-v5")
POPULATION, ELITE, HELD, SEGMENTS, ITERATIONS = 64, 8, 5, 20, 100
SMALLEST_DEVIATION = 0.1  # of actions in the population
BLOCK = 512  # steps that are compared at once
PER_STEP, PER_METRE = 0.05, 40.0  # what survival and distance count beside the decimal logarithm of the difference
RECORDER = Path(__file__).parent / "record_mujoco.py"


class Replay:
    """A process with MuJoCo that plays sequences of actions."""

    def __init__(self, python: str, task: str, folder: Path) -> None:
        self.folder = folder
        command = [python, str(RECORDER), "replay", str(folder), "--tasks", task]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self, actions: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Return the steps of sequences `[n, T, a]` from the initial state of a seed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        np.save(self.folder / "actions.npy", actions)
        print(seed, file=self.process.stdin, flush=True)
        if not self.process.stdout.readline():
            sys.exit("the process with MuJoCo ended")
        with np.load(self.folder / "steps.npz") as file:
            return dict(file)


class Search:
    """The searches for one task, and what they have found."""

    def __init__(self, replay: Replay, task: str, rng: np.random.Generator) -> None:
        self.replay, self.rng = replay, rng
        self.environment = make_environment(task)
        raw = self.environment.raw

        def step(qpos: Any, qvel: Any, action: Any) -> Any:
            _, state, reward, terminated = transition(
                raw.task, raw.task.params, initial_state(raw.task, raw.task.params, qpos, qvel), action
            )
            return state.qvel, reward, terminated

        self.step = jax.jit(jax.vmap(step))
        self.found: dict[str, Any] = {"steps": 0, "searches": 0, "difference": 0.0, "reward": 0.0, "terminations": 0}
        self.found["closest"] = {}

    def differences(self, steps: dict[str, np.ndarray]) -> np.ndarray:
        """Return the largest difference of velocities in every sequence, `[POPULATION]`, and note the largest."""
        count = len(steps["number"])
        results = []
        for first in range(0, count, BLOCK):  # so that one compiled program serves all
            rows = np.minimum(np.arange(first, first + BLOCK), count - 1)
            results.append(self.step(*(jnp.asarray(steps[key][rows]) for key in ("qpos", "qvel", "action"))))
        qvel, reward, terminated = (np.concatenate(x)[:count] for x in zip(*results, strict=True))
        error = np.abs(qvel - steps["next_qvel"]).max(axis=1)
        worst = int(error.argmax())
        if error[worst] > self.found["difference"]:
            self.found["difference"] = float(error[worst])
            self.found["at"] = {key: steps[key][worst].tolist() for key in ("qpos", "qvel", "action")}
        self.found["reward"] = max(self.found["reward"], float(np.abs(reward - steps["reward"]).max()))
        self.found["terminations"] += int((terminated != steps["terminated"]).sum())
        self.found["steps"] += count
        largest = np.zeros(POPULATION)
        np.maximum.at(largest, steps["number"], error)
        return largest

    def improve(self, pair: int, deadline: float) -> int:
        """Run one search, also for the pair of links with this number if there is one; return the number of pairs."""
        actions, seed = self.environment.actions, int(self.rng.integers(2**31))
        high = np.asarray(actions.high)
        mean, deviation = np.zeros((SEGMENTS, actions.n)), np.ones((SEGMENTS, actions.n))
        pairs = 0
        for _ in range(ITERATIONS):
            drawn = mean + deviation * self.rng.standard_normal((POPULATION, *mean.shape))
            population = np.clip(drawn, -1, 1)
            sequences = np.repeat(high * population, HELD, axis=1).astype(np.float32)
            steps = self.replay.steps(sequences, seed)
            pairs, score = len(steps["pairs"]), np.log10(self.differences(steps) + 1e-16)
            for name, distance in zip(steps["pairs"], steps["closest"].min(axis=0), strict=True):
                self.found["closest"][str(name)] = min(float(distance), self.found["closest"].get(str(name), np.inf))
            score += PER_STEP * np.bincount(steps["number"], minlength=POPULATION)
            if pair < pairs:
                score -= PER_METRE * np.maximum(steps["closest"][:, pair], 0.0)
            best = population[np.argsort(-score)[:ELITE]]
            mean, deviation = best.mean(axis=0), np.maximum(best.std(axis=0), SMALLEST_DEVIATION)
            if time.monotonic() > deadline:
                break
        self.found["searches"] += 1
        return pairs


def search(python: str, task: str, seconds: float, rng: np.random.Generator) -> dict[str, Any]:
    """Search for at most about this many seconds; return what was tried and found."""
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(python, task, Path(folder))
        searching, deadline = Search(replay, task, rng), time.monotonic() + seconds
        number = 0
        while time.monotonic() < deadline:
            pairs = searching.improve(number, deadline)
            number = number + 1 if number < pairs else 0
        replay.process.communicate()  # closes its input, which ends it
    return searching.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="a Python with gymnasium and mujoco")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seconds", type=float, default=60, help="per task")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if not os.environ.get("JAX_ENABLE_X64"):
        sys.exit("set JAX_ENABLE_X64=1: the comparison is in float64")
    rng = np.random.default_rng(given.seed)
    print(json.dumps({task: search(given.python, task, given.seconds, rng) for task in given.tasks}))


if __name__ == "__main__":
    main()
