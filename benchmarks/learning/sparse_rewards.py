"""The price of robustness when rewards are sparse: how much of the honest mean a rule keeps on Acrobot's first batches.

    python benchmarks/learning/sparse_rewards.py [--seeds 8] [--out benchmarks/results/sparse_rewards.json]

Thirteen honest agents sample batches of 8 episodes with the same initial policy. With a leave-one-out baseline, an
agent none of whose episodes reaches the goal sends exactly zero; with a critic, trained on two earlier batches of its
own, it does not. For both, the file has the mean number of agents that saw a success, and for every rule the mean of
‖rule(messages)‖ / ‖mean(messages)‖ over the seeds in which some agent sends anything.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxbyz as jb
from jaxbyz.files import write_json
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.sampling.page import sampler
from jaxbyz.sampling.scoring import SamplingInputs

AGENTS, BYZANTINE, EPISODES, HORIZON, BATCHES = 13, 3, 8, 500, 3
RULES = ("rfa", "caf", "trimmed-mean", "nnm+rfa", "bucketing+rfa", "krum")


def batches(baseline: str, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the messages `[seeds, K, D]` and the mean returns `[seeds, K]` of a batch."""
    environment = jb.make_environment("Acrobot-v1")
    policy = jb.mlp_policy(environment, (32, 32))
    advantages = "normalised" if baseline == "critic" else "plain"
    settings = jb.Sampling(N=EPISODES, p=1.0, gamma=0.99, horizon=HORIZON, baseline=baseline, advantages=advantages)
    sample = sampler(environment, policy, settings)
    large, honest = jax.jit(sample.large), jnp.zeros(AGENTS, bool)
    messages, returns = [], []
    for seed in range(seeds):
        key = jax.random.key(seed)
        theta = jnp.tile(policy.init(key), (AGENTS, 1))
        start = sample.init(key)
        critics = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (AGENTS, *jnp.shape(leaf))), start)
        for t in range(BATCHES if baseline == "critic" else 1):
            keys = jax.random.split(jax.random.fold_in(key, t), AGENTS)
            drawn = large(SamplingInputs(theta, theta, theta, keys, honest, {}, critics))
            critics = drawn.private
        messages.append(np.asarray(drawn.sampled.estimate))
        returns.append(np.asarray(drawn.sampled.returns))
    return np.stack(messages), np.stack(returns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sparse_rewards.json"))
    given = parser.parse_args()
    results = {}
    for baseline in ("leave-one-out", "critic"):
        messages, returns = batches(baseline, given.seeds)
        kept, seen = {}, np.any(messages != 0, axis=(1, 2))  # seeds in which some agent sends anything
        for rule in RULES:
            key = jax.random.key(1)
            rows = np.stack([jb.aggregate(rule, key, jnp.asarray(x), byzantine=BYZANTINE) for x in messages])
            kept[rule] = np.linalg.norm(rows[seen], axis=1) / np.linalg.norm(messages[seen].mean(axis=1), axis=1)
        results[baseline] = {
            "seeds with a message": int(seen.sum()),
            "agents with a success": float(np.mean(np.sum(returns > -HORIZON, axis=1))),
            "agents that send zero": float(np.mean(np.sum(np.linalg.norm(messages, axis=2) == 0, axis=1))),
            "kept": {rule: [round(float(x), 6) for x in values] for rule, values in kept.items()},
            "mean kept": {rule: round(float(np.mean(values)), 4) for rule, values in kept.items()},
        }
        print(baseline, {name: value for name, value in results[baseline].items() if name != "kept"}, flush=True)
    write_json(given.out, {"environment": describe_environment(), "seeds": given.seeds, "results": results})


if __name__ == "__main__":
    main()
