"""Measure LunarLander's steps per second with random actions and automatic reset, next to envpool on one thread.

    taskset -c 0 python benchmarks/speed/lunar_lander_speed.py [--lanes 512 2048 8192] [--envpool PYTHON] [--out FILE]

For every number of lanes (episodes at once), the compile time of a rollout and samples of steps per second are
reported. `--envpool` names a Python that has envpool installed; its C++ lander is then measured alternately with ours.
Pin the process to one core for a fair comparison. On a GPU, omit envpool and use
`--lanes 1000 10000 100000 1000000 --threads 4`, which compiles the programs at the same time.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import subprocess
import time

import jax
import jax.numpy as jnp

from jaxbyz.environments.lunar_lander import environment as lunar_lander
from jaxbyz.environments.lunar_lander.velocity_solver import VELOCITY_SWEEPS

ENVPOOL = """
import sys, time, numpy as np, envpool
lanes, steps = int(sys.argv[1]), int(sys.argv[2])
env = envpool.make_gymnasium("LunarLander-v3", num_envs=lanes, num_threads=1, seed=0)
env.reset()
actions = np.random.default_rng(0).integers(0, 4, (steps, lanes)).astype(np.int32)
for t in range(min(steps, 20)):
    env.step(actions[t])
begin = time.perf_counter()
for t in range(steps):
    env.step(actions[t])
print(lanes * steps / (time.perf_counter() - begin), envpool.__version__)
"""


def rollout(lanes, steps):
    """Return a compiled function (state, key) -> (state, sums) of random play with automatic reset, and a state."""
    env, params = lunar_lander.LunarLander(), lunar_lander.EnvParams()
    reset = jax.vmap(env.reset_env, (0, None))
    advance = jax.vmap(env.step_env, (0, 0, 0, None))
    resets = -(-lanes // 16)

    def step(state, key):
        action_key, step_key, reset_key = jax.random.split(key, 3)
        actions = jax.random.randint(action_key, (lanes,), 0, 4)
        _, state, reward, over, _ = advance(jax.random.split(step_key, lanes), state, actions, params)
        # About 1 % of the lanes end in a step. Draw new initial states for 1/16 of them, and use these in turn.
        _, fresh = reset(jax.random.split(reset_key, resets), params)
        turn = (jnp.cumsum(over) - 1) % resets
        state = jax.tree.map(lambda a, b: jnp.where(over.reshape(-1, *(1,) * (b.ndim - 1)), a[turn], b), fresh, state)
        return state, (reward.sum(), over.sum())

    def run(state, key):
        state, (rewards, ends) = jax.lax.scan(step, state, jax.random.split(key, steps))
        return state, rewards.sum(), ends.sum()

    _, state = jax.jit(reset)(jax.random.split(jax.random.key(0), lanes), params)
    begin = time.perf_counter()
    program = jax.jit(run).lower(state, jax.random.key(1)).compile()
    return program, state, time.perf_counter() - begin


def cpu_name():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="number of programs compiled at the same time")
    parser.add_argument("--envpool", default=None, help="path of a Python interpreter with envpool")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results/lunar_lander_speed.json"))
    given = parser.parse_args()
    report = {
        "machine": {
            "platform": f"{platform.system()} {platform.machine()}",
            "cpu": cpu_name(),
            "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "device": str(jax.devices()[0].device_kind),
            "load": [round(x, 2) for x in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), "jax": jax.__version__},
        "velocity_sweeps": VELOCITY_SWEEPS,
        "steps": given.steps,
        "compiled_at_once": given.threads,
        "runs": [],
    }
    with concurrent.futures.ThreadPoolExecutor(given.threads) as pool:
        compiling = [(lanes, pool.submit(rollout, lanes, given.steps)) for lanes in given.lanes]
    for lanes, future in compiling:
        program, state, compiled = future.result()
        state, *_ = jax.block_until_ready(
            program(state, jax.random.key(2))
        )  # so that lanes are at different times of their episodes
        ours, theirs, ends = [], [], 0
        for sample in range(given.samples):
            begin = time.perf_counter()
            state, _, ended = jax.block_until_ready(program(state, jax.random.key(3 + sample)))
            ours.append(lanes * given.steps / (time.perf_counter() - begin))
            ends += int(ended)
            if given.envpool:
                command = [given.envpool, "-c", ENVPOOL, str(lanes), str(max(20, 40_000 // lanes))]
                rate, version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                theirs.append(float(rate))
                report["versions"]["envpool"] = version
        run = {
            "lanes": lanes,
            "compile_seconds": round(compiled, 2),
            "steps_per_second": max(ours),
            "samples": ours,
            "episodes_ended": ends,
        }
        if theirs:
            ratio = sorted(a / b for a, b in zip(ours, theirs, strict=True))[len(ours) // 2]
            run |= {"envpool_steps_per_second": max(theirs), "envpool_samples": theirs, "median_ratio": ratio}
        report["runs"].append(run)
        print(json.dumps(run), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
