"""Measure the MuJoCo tasks' steps per second with random actions and automatic reset, next to MuJoCo, MJX and brax.

    taskset -c 0 python benchmarks/speed/mujoco_speed.py --mujoco PYTHON --mjx PYTHON [--lanes 64 512 8192] [--out FILE]
    python benchmarks/speed/mujoco_speed.py --gpu [--mjx PYTHON]

`--mujoco` names a Python that has gymnasium and mujoco installed; `mujoco.rollout` with one thread is then measured
after us. It returns states only, while our steps include observation, reward, termination and reset.
`--mjx` names a Python with mujoco-mjx, `--brax` one with brax. On a CPU, pin the process to one core. With `--gpu`, the
tasks of `--plain` are also measured without the kernel, as plain XLA.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.platform import trace_for
from jaxbyz.accelerate.setup import set_flags
from jaxbyz.environments import make_environment

TASKS = {  # name -> number of steps of `mujoco.rollout`, about the length of a random episode
    "InvertedPendulum-v5": 8,
    "InvertedDoublePendulum-v5": 8,
    "Swimmer-v5": 50,
    "Reacher-v5": 50,
    "Hopper-v5": 20,
    "Walker2d-v5": 20,
    "HalfCheetah-v5": 50,
}

MUJOCO = """
import sys, time, numpy as np, gymnasium, mujoco
from mujoco import rollout
task, length = sys.argv[1], int(sys.argv[2])
env = gymnasium.make(task).unwrapped
model, data, skip, rng = env.model, env.data, env.frame_skip, np.random.default_rng(0)
kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
starts = []
for seed in range(200):
    env.reset(seed=seed)
    state = np.zeros(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    starts.append(state)
low, high = env.action_space.low, env.action_space.high
control = np.repeat(rng.uniform(low, high, (len(starts), length, len(low))), skip, axis=1)
run = rollout.Rollout(nthread=0)
run.rollout(model, data, np.array(starts[:2]), control[:2])
count, begin = 0, time.process_time()
while time.process_time() - begin < 1.5:
    run.rollout(model, data, np.array(starts), control)
    count += len(starts) * length
print(count / (time.process_time() - begin), mujoco.__version__)
"""

MJX = """
import sys, time, jax, jax.numpy as jnp, gymnasium, mujoco
from mujoco import mjx
clock = time.perf_counter if jax.default_backend() == "gpu" else time.process_time
task, lanes, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
env = gymnasium.make(task).unwrapped
model, skip = mjx.put_model(env.model), env.frame_skip
low, high = jnp.array(env.action_space.low), jnp.array(env.action_space.high)
first = mjx.make_data(model)
data = jax.vmap(lambda q: first.replace(qpos=q))(
    jnp.array(env.init_qpos) + 0.005 * jax.random.normal(jax.random.key(0), (lanes, env.model.nq)))
step = jax.vmap(mjx.step, (None, 0))
@jax.jit
def run(data, key):
    def one(data, key):
        data = data.replace(ctrl=jax.random.uniform(key, (lanes, len(low)), minval=low, maxval=high))
        return jax.lax.fori_loop(0, skip, lambda _, d: step(model, d), data), None
    return jax.lax.scan(one, data, jax.random.split(key, steps))[0]
begin = clock()
program = run.lower(data, jax.random.key(1)).compile()
compiled = clock() - begin
data = jax.block_until_ready(program(data, jax.random.key(1)))
begin = clock()
for i in range(2):
    data = jax.block_until_ready(program(data, jax.random.key(2 + i)))
print(2 * lanes * steps / (clock() - begin), compiled, mujoco.__version__)
"""

BRAX = """
import sys, time, jax, jax.numpy as jnp, brax
from brax import envs
clock = time.perf_counter if jax.default_backend() == "gpu" else time.process_time
name, lanes, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
env = envs.get_environment(name, backend="mjx")
state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), lanes))
@jax.jit
def run(state, key):
    def one(state, key):
        action = jax.random.uniform(key, (lanes, env.action_size), minval=-1.0, maxval=1.0)
        return jax.vmap(env.step)(state, action), None
    return jax.lax.scan(one, state, jax.random.split(key, steps))[0]
begin = clock()
program = run.lower(state, jax.random.key(1)).compile()
compiled = clock() - begin
state = jax.block_until_ready(program(state, jax.random.key(1)))
begin = clock()
state = jax.block_until_ready(program(state, jax.random.key(2)))
print(lanes * steps / (clock() - begin), compiled, brax.__version__)
"""
BRAX_NAMES = {
    "HalfCheetah-v5": "halfcheetah",
    "Hopper-v5": "hopper",
    "Walker2d-v5": "walker2d",
    "Reacher-v5": "reacher",
}


def rollout(name, lanes, steps, traced_for=None):
    """Compile a rollout of all lanes; return it, its first argument, and the seconds of wall-clock and CPU time."""
    if traced_for is not None:
        with trace_for(traced_for):
            return rollout(name, lanes, steps)
    environment = make_environment(name)
    low, high = environment.actions.low, environment.actions.high
    resets = max(1, lanes // 16)

    def step(state, key):
        action_key, reset_key = jax.random.split(key)
        actions = jax.random.uniform(action_key, (lanes, environment.actions.n), minval=low, maxval=high)
        result = jax.vmap(environment.step)(jax.random.split(action_key, lanes), state, actions)
        over = result.terminated | result.truncated
        # Only some of the lanes end in a step. Draw new initial states for 1/16 of them, and use these in turn.
        _, fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, resets))
        turn = (jnp.cumsum(over) - 1) % resets
        state = jax.tree.map(
            lambda a, b: jnp.where(over.reshape(-1, *(1,) * (b.ndim - 1)), a[turn], b), fresh, result.state
        )
        return state, (result.reward.sum() + 0 * result.observation.sum(), over.sum())

    def run(state, key):
        state, (rewards, ends) = jax.lax.scan(step, state, jax.random.split(key, steps))
        return state, rewards.sum(), ends.sum()

    _, state = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.key(0), lanes))
    begin, cpu = time.perf_counter(), time.process_time()
    program = jax.jit(run).lower(state, jax.random.key(1)).compile()
    return program, state, time.perf_counter() - begin, time.process_time() - cpu


def measure(compiled, lanes, steps, samples, clock):
    """Return the measurements of one program; every sample is a call."""
    program, state, wall, cpu = compiled
    state, *_ = jax.block_until_ready(program(state, jax.random.key(2)))  # so that lanes are at different times
    rates, ends = [], 0
    for sample in range(samples):
        begin = clock()
        state, _, ended = jax.block_until_ready(program(state, jax.random.key(3 + sample)))
        rates.append(lanes * steps / (clock() - begin))
        ends += int(ended)
    return {
        "lanes": lanes,
        "steps_per_second": max(rates),
        "samples": rates,
        "compile_seconds": round(wall, 2),
        "compile_cpu_seconds": round(cpu, 2),
        "episodes_ended": ends,
    }


def other(python, program, *args):
    """Run another program in its own interpreter; return the numbers it prints, or why it failed."""
    try:
        done = subprocess.run(
            [python, "-c", program, *map(str, args)], capture_output=True, text=True, check=True, timeout=3600
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"failed": (error.stderr or str(error))[-300:] if isinstance(error.stderr, str) else str(error)[-300:]}
    *numbers, version = done.stdout.split()[-3:]
    return {
        "steps_per_second": float(numbers[0]),
        "compile_seconds": [float(n) for n in numbers[1:]],
        "version": version,
    }


def machine():
    """Describe where this is measured."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        cpu = platform.machine()
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": str(jax.devices()[0].device_kind),
        "load": [round(x, 2) for x in os.getloadavg()],
        "jax": jax.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="sizes for a GPU, and plain XLA next to the kernel")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--lanes", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="number of programs compiled at the same time")
    parser.add_argument("--mujoco", help="path of a Python with gymnasium and mujoco")
    parser.add_argument("--mjx", help="path of a Python with gymnasium and mujoco-mjx")
    parser.add_argument("--brax", help="path of a Python with brax")
    parser.add_argument("--plain", nargs="*", default=["HalfCheetah-v5"], help="tasks to measure without kernel too")
    parser.add_argument("--other-lanes", type=int, help="lanes of MJX and brax")
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    lanes = given.lanes or ([8192, 131072] if given.gpu else [64, 512, 8192])
    steps = given.steps or (100 if given.gpu else 20)
    out = given.out or pathlib.Path(f"benchmarks/results/mujoco_speed{'_gpu' if given.gpu else ''}.json")
    clock = time.perf_counter if given.gpu else time.process_time
    other_lanes = given.other_lanes or (8192 if given.gpu else 64)
    report = {"machine": machine(), "steps": steps, "clock": "wall" if given.gpu else "cpu", "tasks": {}}
    wanted = [(task, count, None) for task in given.tasks for count in lanes]
    if given.gpu:
        wanted += [(task, lanes[0], "gpu") for task in given.plain]
    with concurrent.futures.ThreadPoolExecutor(given.threads) as pool:
        programs = list(pool.map(lambda one: rollout(one[0], one[1], steps, one[2]), wanted))
    # Measure only when nothing compiles any more: the clock counts the CPU time of all threads of this process.
    for (task, count, traced_for), compiled in zip(wanted, programs, strict=True):
        run = measure(compiled, count, steps, given.samples, clock)
        run["version"] = traced_for or ("kernel" if given.gpu else "cpu")
        report["tasks"].setdefault(task, {"runs": []})["runs"].append(run)
        print(task, json.dumps(run), flush=True)
    for task, found in report["tasks"].items():
        if given.mujoco:
            found["mujoco"] = other(given.mujoco, MUJOCO, task, TASKS[task])
        if given.mjx:
            found["mjx"] = other(given.mjx, MJX, task, other_lanes, 20 if given.gpu else 2)
        if given.brax and task in BRAX_NAMES:
            found["brax"] = other(given.brax, BRAX, BRAX_NAMES[task], other_lanes, 20 if given.gpu else 2)
        best = max(run["steps_per_second"] for run in found["runs"])
        for program in ("mujoco", "mjx", "brax"):
            if "steps_per_second" in found.get(program, {}):
                found[program]["ratio"] = round(best / found[program]["steps_per_second"], 2)
            if program in found:
                print(task, program, json.dumps(found[program]), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    set_flags()
    sys.exit(main())
