"""One agent of jaxbyz beside PPO of Stable-Baselines3: return, samples and time on three tasks.

    python benchmarks/learning/beside_ppo.py --sb3 PYTHON [TASK …]     (a Python with stable-baselines3)

jaxbyz trains a single agent (`page-pg`) with the presets that use critics, 16 clipped steps per batch and Adam; their
budgets are those below. Stable-Baselines3 takes the options of its RL zoo for the task, and as many environment steps
as jaxbyz took on average. Both then play 100 episodes per seed with the most likely actions. The time is the processor
time of training all seeds, which depends less on the load of the machine than the time on the clock: for jaxbyz that
of a whole process that starts with nothing compiled, and of a second one; for the other that of `learn`, with one
thread. Writes benchmarks/results/beside_ppo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEEDS, EPISODES = 3, 100
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"preset": "general-discrete", "trajectories": 300},
    "Acrobot-v1": {"preset": "acrobot", "trajectories": 500},
    "Pendulum-v1": {"preset": "pendulum", "trajectories": 500},
}
SB3: dict[str, dict[str, Any]] = {  # rl-baselines3-zoo, hyperparams/ppo.yml
    "CartPole-v1": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "learning_rate": "linear 1e-3", "clip_range": "linear 0.2",
    },
    "Acrobot-v1": {"n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4, "normalize": True},
    "Pendulum-v1": {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "learning_rate": 1e-3, "use_sde": True,
        "sde_sample_freq": 4,
    },
}  # fmt: skip


def ours(task: str, folder: Path) -> dict[str, Any]:
    """Train with the command line, twice, and evaluate."""
    import jaxbyz as jb
    from jaxbyz.trained.evaluation import evaluate

    options = {"algorithm": "page-pg", "env": task, "seeds": SEEDS, **TASKS[task]}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    seconds = []
    for attempt in ("first", "second"):
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "jaxbyz", "train", *words, "--quiet", "--out", str(folder / task / attempt)]
        subprocess.run(command, check=True, env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache" / task)})
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(round(ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime, 1))
    run = jb.load_run(folder / task / "first")
    steps = (run.metrics["length"] * run.metrics["batch"]).sum(axis=1)
    returns = evaluate(run.config, run.policy["last"][:, 0], EPISODES, greedy=True)["returns"].mean(axis=1)
    return {
        "options": options,
        "steps": int(steps.mean()),
        "returns": [round(float(one), 1) for one in returns],
        "cpu_seconds": seconds,
    }


def theirs(task: str, steps: int) -> dict[str, Any]:
    """Train and evaluate with Stable-Baselines3; runs in its own Python."""
    import numpy as np
    import stable_baselines3
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    def value(text: Any) -> Any:
        return (lambda left: left * float(text.split()[1])) if isinstance(text, str) else text

    torch.set_num_threads(1)  # a second one would mostly wait, with networks of this size
    returns, seconds = [], []
    for seed in range(SEEDS):
        options = {name: value(text) for name, text in SB3[task].items()}
        envs = make_vec_env(task, options.pop("n_envs"), seed=seed)
        normalised = options.pop("normalize", False)
        envs = VecNormalize(envs) if normalised else envs
        started = time.process_time()
        model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **options).learn(steps)
        seconds.append(time.process_time() - started)
        played = make_vec_env(task, 8, seed=10_000 + seed)
        if normalised:
            played = VecNormalize(played, training=False, norm_reward=False)
            played.obs_rms = envs.obs_rms
        returns.append(float(np.mean(evaluate_policy(model, played, EPISODES, return_episode_rewards=True)[0])))
    return {
        "version": stable_baselines3.__version__, "options": SB3[task], "steps": steps,
        "returns": [round(one, 1) for one in returns], "cpu_seconds": [round(sum(seconds), 1)],
    }  # fmt: skip


def main() -> None:
    """Measure all tasks and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK", help="by default all")
    parser.add_argument("--sb3", metavar="PYTHON", help="a Python with stable-baselines3")
    parser.add_argument("--theirs", nargs=2, metavar=("TASK", "STEPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.theirs:
        print(json.dumps(theirs(arguments.theirs[0], int(arguments.theirs[1]))))
        return
    from jaxbyz.files import read_json, write_json
    from jaxbyz.runs.run_folder import describe_environment

    out = Path(__file__).parents[1] / "results" / "beside_ppo.json"
    tasks: dict[str, Any] = read_json(out)["tasks"] if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for task in arguments.tasks:
            tasks[task] = {"jaxbyz": ours(task, Path(folder))}
            if arguments.sb3:
                words = [arguments.sb3, __file__, "--theirs", task, str(tasks[task]["jaxbyz"]["steps"])]
                printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
                tasks[task]["stable-baselines3"] = json.loads(printed.splitlines()[-1])
            print(json.dumps({task: tasks[task]}), flush=True)
            found = {"seeds": SEEDS, "episodes": EPISODES, "environment": describe_environment(), "tasks": tasks}
            write_json(out, found)


if __name__ == "__main__":
    main()
