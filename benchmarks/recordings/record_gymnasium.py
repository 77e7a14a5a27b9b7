"""Record steps and returns of gymnasium's classic control tasks, for the fidelity test. Needs a Python with gymnasium.

    python benchmarks/recordings/record_gymnasium.py tests/data/classic_control.npz [--seed 0]

For every task: `state` before a step, `action`, and `observation`, `reward` and `terminated` after it, from episodes
with random actions whose starts are spread over the state space; and `returns` of random episodes from the task's own
starts. Continuous actions also lie outside of their bounds.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np

STEPS, EPISODES = 120, 100
# name -> half-widths of the states from which recorded steps start
TASKS = {
    "CartPole-v1": (2.3, 2.0, 0.2, 2.0),
    "Acrobot-v1": (3.1, 3.1, 8.0, 15.0),
    "Pendulum-v1": (3.1, 8.0),
    "MountainCar-v0": (0.6, 0.07),
    "MountainCarContinuous-v0": (0.6, 0.07),
}
CENTRES = {"MountainCar-v0": (-0.3, 0.0), "MountainCarContinuous-v0": (-0.2, 0.0)}


def random_action(env: gymnasium.Env, rng: np.random.Generator, spread: float = 1.0) -> int | np.ndarray:
    """Return a uniformly random action, for continuous ones from a range that is `spread` times as wide."""
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return int(rng.integers(env.action_space.n))
    return (spread * rng.uniform(env.action_space.low, env.action_space.high)).astype(np.float32)


def recorded_steps(env: gymnasium.Env, name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return single steps from random states."""
    rows: dict[str, list] = {key: [] for key in ("state", "action", "observation", "reward", "terminated")}
    centre = np.array(CENTRES.get(name, np.zeros(len(TASKS[name]))))
    for i in range(STEPS):
        env.reset(seed=i)
        state = centre + np.array(TASKS[name]) * rng.uniform(-1, 1, len(centre))
        env.unwrapped.state = state.copy()
        action = random_action(env, rng, 2.0)
        observation, reward, terminated, _, _ = env.unwrapped.step(action)
        for key, value in zip(rows, (state, action, observation, reward, terminated), strict=True):
            rows[key].append(value)
    return {key: np.array(values, np.int32 if key == "action" and np.ndim(values[0]) == 0 else np.float32)
            for key, values in rows.items()}  # fmt: skip


def random_returns(env: gymnasium.Env, rng: np.random.Generator) -> np.ndarray:
    """Return the returns of episodes with random actions."""
    returns = []
    for i in range(EPISODES):
        env.reset(seed=1000 + i)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(random_action(env, rng))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return np.array(returns, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, record = np.random.default_rng(given.seed), {"version": np.array(gymnasium.__version__)}
    for name in TASKS:
        env = gymnasium.make(name)
        steps = recorded_steps(env, name, rng)
        for key, values in {**steps, "returns": random_returns(env, rng)}.items():
            record[f"{name}/{key}"] = values
    np.savez_compressed(given.path, **record)


if __name__ == "__main__":
    main()
