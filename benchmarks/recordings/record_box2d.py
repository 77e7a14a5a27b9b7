"""Record LunarLander episodes of gymnasium's Box2D with all random draws, so that they can be replayed.

    python benchmarks/recordings/record_box2d.py POLICY EPISODES FIRST_SEED OUT.npz
        [--continuous] [--wind] [--gravity -10]

Policies: heuristic; random; noop; noisy (a fifth of the heuristic's actions are random); lateral (the heuristic flies
to a random place, so that it lands on hills); hard (falls too fast); bounce (random engines once on the ground); hover
(stays close to the ground for 400 steps, then lands).

This script needs gymnasium and box2d-py, which jaxbyz does not need; `make test-box2d` installs them separately.

Arrays of E episodes, padded with zeros to the longest length T (`length` contains the length of each):
  heights [E, 12] raw terrain draws    force [E, 2] initial force in newtons    wind [E, 2] initial wind indices
  action [E, T] or [E, T, 2]           draws [E, T, 2] randomness of the engines, U(-1, 1)
  obs [E, T+1, 8] reset first          reward [E, T]
  outcome [E] 0 landed, 1 crashed, 2 out of bounds, 3 unfinished after 1000 steps
"""

import argparse

import numpy as np
from gymnasium.envs.box2d import lunar_lander

HORIZON = 1000


class RecordingGenerator:
    """A NumPy generator that records every draw."""

    def __init__(self, seed: int):
        self.generator, self.uniforms, self.integers_drawn = np.random.default_rng(seed), [], []

    def uniform(self, *args, **kwargs):
        self.uniforms.append(self.generator.uniform(*args, **kwargs))
        return self.uniforms[-1]

    def integers(self, *args, **kwargs):
        self.integers_drawn.append(self.generator.integers(*args, **kwargs))
        return self.integers_drawn[-1]


def choose(policy, env, obs, rng, t, target):
    """Return the action of a policy; `target` is where `lateral` lands."""

    def random_action():
        return rng.uniform(-1, 1, 2) if env.continuous else int(rng.integers(4))

    seen = np.array(obs)
    if policy == "noop":
        return np.zeros(2) if env.continuous else 0
    if policy == "random":
        return random_action()
    if policy == "noisy" and rng.random() < 0.2:
        return random_action()
    if policy == "bounce" and (obs[6] or obs[7] or t > 250):
        return random_action()
    if policy == "lateral":
        seen[0] -= target
    elif policy == "hard":
        seen[3] += 0.35
        seen[6:] = 0
    elif policy == "hover" and t < 400:
        seen[1] -= 0.08 + 0.1 * np.sin(t / 20)
        seen[6:] = 0
    return lunar_lander.heuristic(env, seen)


def record(env, policy, seed):
    """Record one episode as a dictionary of lists."""
    recorder, rng = RecordingGenerator(seed), np.random.default_rng(seed + 10**6)
    target = rng.uniform(-0.7, 0.7)
    env._np_random = recorder
    obs, _ = env.reset()
    episode = {
        "heights": np.asarray(recorder.uniforms[0]),
        "force": np.asarray(recorder.uniforms[1:3], float),
        "wind": np.asarray(recorder.integers_drawn or [0, 0], np.int32),
        "obs": [obs],
        "action": [],
        "reward": [],
        "outcome": 3,
    }
    recorder.uniforms.clear()
    for t in range(HORIZON):
        action = choose(policy, env, obs, rng, t, target)
        obs, reward, terminated, _, _ = env.step(action)
        episode["obs"].append(obs)
        episode["action"].append(action)
        episode["reward"].append(reward)
        if terminated:
            episode["outcome"] = 0 if reward == 100 else 1 if env.game_over else 2
            break
    episode["draws"] = np.asarray(recorder.uniforms, float).reshape(len(episode["action"]), 2)
    return episode


def record_many(policy, episodes, first_seed, continuous=False, wind=False, gravity=-10.0):
    """Record many episodes as the arrays described above."""
    env = lunar_lander.LunarLander(continuous=continuous, enable_wind=wind, gravity=gravity)
    rows = [record(env, policy, first_seed + e) for e in range(episodes)]
    length = np.array([len(row["action"]) for row in rows])

    def padded(name, steps):
        out = np.zeros((len(rows), steps, *np.shape(rows[0][name])[1:]), np.float32)
        for e, row in enumerate(rows):
            out[e, : len(row[name])] = row[name]
        return out

    longest = length.max()
    action = padded("action", longest)
    return {
        **{name: np.array([row[name] for row in rows]) for name in ("heights", "force", "wind")},
        "action": action if continuous else action.astype(np.int8),
        "draws": padded("draws", longest),
        "obs": padded("obs", longest + 1),
        "reward": padded("reward", longest),
        "outcome": np.array([row["outcome"] for row in rows], np.int8),
        "length": length,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy")
    parser.add_argument("episodes", type=int)
    parser.add_argument("first_seed", type=int)
    parser.add_argument("out")
    parser.add_argument("--continuous", action="store_true")
    parser.add_argument("--wind", action="store_true")
    parser.add_argument("--gravity", type=float, default=-10.0)
    given = parser.parse_args()
    data = record_many(given.policy, given.episodes, given.first_seed, given.continuous, given.wind, given.gravity)
    np.savez_compressed(given.out, **data)
    returns, outcomes = data["reward"].sum(axis=1), np.bincount(data["outcome"], minlength=4)
    print(
        f"{given.policy}: {given.episodes} episodes, return {returns.mean():.1f} (sd {returns.std():.1f}), "
        f"length {data['length'].mean():.1f}, landed/crashed/out/unfinished {outcomes.tolist()}"
    )


if __name__ == "__main__":
    main()
