"""Time the batch of `against_plain.py` with vector environments of gymnasium and batched networks of PyTorch.

    python benchmarks/speed/torch_batch.py native|sync ROUNDS     (a Python with torch and gymnasium)

13 agents with 50 episodes of exactly 500 steps of CartPole each; actions are drawn from each agent's own network (16,
16, tanh), then the GPOMDP gradient of every agent is computed. All 650 environments are one vector environment, the 13
networks are batched matrix products, autograd records nothing while sampling, and one backward pass computes all
gradients. `native` is gymnasium's NumPy version of CartPole over all lanes, `sync` its `SyncVectorEnv` of single
environments, which works for all environments. Prints the seconds of every round and the number of threads as JSON.
"""

import itertools
import json
import sys
import time

import gymnasium
import numpy as np
import torch

AGENTS, EPISODES, HORIZON, GAMMA = 13, 50, 500, 0.999
LANES = AGENTS * EPISODES


def environments(kind):
    """Make endless episodes, as in `against_plain.py`: the thresholds cannot be reached."""
    if kind == "native":
        vector = gymnasium.make_vec("CartPole-v1", num_envs=LANES, vectorization_mode="vector_entry_point")
        inner = [vector.unwrapped]
        vector.unwrapped.max_episode_steps = 10**9
    else:
        make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=10**9)  # noqa: E731
        vector = gymnasium.vector.SyncVectorEnv([make for _ in range(LANES)])
        inner = [env.unwrapped for env in vector.envs]
    for env in inner:
        env.x_threshold = env.theta_threshold_radians = 1e9
    return vector


def layers(generator):
    sizes = (4, 16, 16, 2)
    weights = []
    for before, after in itertools.pairwise(sizes):
        weights.append(torch.randn(AGENTS, before, after, generator=generator) / before**0.5)
        weights.append(torch.zeros(AGENTS, 1, after))
    return [w.requires_grad_() for w in weights]


def scores(weights, x):
    for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
        x = torch.tanh(torch.baddbmm(bias, x, kernel))
    return torch.log_softmax(x, dim=-1)


def batch(vector, weights, seed):
    observations = np.empty((HORIZON, LANES, 4), np.float32)
    actions, rewards = np.empty((HORIZON, LANES), np.int64), np.empty((HORIZON, LANES), np.float32)
    seen, _ = vector.reset(seed=seed)
    with torch.no_grad():
        for t in range(HORIZON):
            observations[t] = seen
            logits = scores(weights, torch.from_numpy(observations[t]).view(AGENTS, EPISODES, 4))
            chosen = (torch.rand(AGENTS, EPISODES) > logits[..., 0].exp()).long()
            actions[t] = chosen.reshape(-1).numpy()
            seen, rewards[t], *_ = vector.step(actions[t])
    value = torch.from_numpy(rewards) * (GAMMA ** torch.arange(HORIZON))[:, None]
    to_go = value.flip(0).cumsum(0).flip(0).view(HORIZON, AGENTS, EPISODES).transpose(0, 1).reshape(AGENTS, -1)
    x = torch.from_numpy(observations).view(HORIZON, AGENTS, EPISODES, 4).transpose(0, 1).reshape(AGENTS, -1, 4)
    a = torch.from_numpy(actions).view(HORIZON, AGENTS, EPISODES).transpose(0, 1).reshape(AGENTS, -1, 1)
    objective = (scores(weights, x).gather(2, a).squeeze(2) * to_go).sum() / EPISODES
    return torch.autograd.grad(objective, weights)


def main():
    kind, rounds = sys.argv[1], int(sys.argv[2])
    vector, weights = environments(kind), layers(torch.Generator().manual_seed(0))
    batch(vector, weights, 0)
    seconds = []
    for seed in range(rounds):
        begin = time.perf_counter()
        gradient = batch(vector, weights, seed)
        seconds.append(time.perf_counter() - begin)
        assert all(torch.isfinite(g).all() for g in gradient)
    versions = {"torch": torch.__version__, "gymnasium": gymnasium.__version__, "threads": torch.get_num_threads()}
    print(json.dumps({"kind": kind, "seconds": seconds, **versions}))


if __name__ == "__main__":
    main()
