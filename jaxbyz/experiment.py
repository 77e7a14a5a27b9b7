"""A configured run from start to folder: what `jaxbyz train` does, as a function."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz import results, training
from jaxbyz.algorithms import Metrics
from jaxbyz.config import Config, build
from jaxbyz.registry import UsageError
from jaxbyz.reporters import Progress, Reporter

SEGMENT = 20  # iterations a compiled call


class Experiment(NamedTuple):
    """A finished experiment: metrics by name [seeds, iterations], policies [seeds, K, D], whether it stayed finite."""

    config: Config
    metrics: dict[str, np.ndarray]
    policy: dict[str, np.ndarray]
    finite: bool


class Plan(NamedTuple):
    """What is decided before the first iteration: algorithm, keys [seeds], coins [T] or [seeds, T], T̂ [seeds]."""

    algorithm: Any
    keys: Any
    coins: np.ndarray
    output_at: np.ndarray


def plan(config: Config) -> Plan:
    """Keys, coins and output iterations of every seed.

    Shared coins come from the first seed's key; own coins from each seed's, all as long as the longest sequence.
    """
    keys = jax.vmap(jax.random.key)(np.arange(config.seed, config.seed + config.seeds, dtype=np.uint32))
    draft = build(config, 1)
    commons = jax.vmap(training.common_seed)(keys)
    if config.coin == "shared":
        coins = training.coins_for(draft, commons[0], config.trajectories)
    else:
        rows = [training.coins_for(draft, key, config.trajectories) for key in commons]
        longest = max(map(len, rows))
        coins = np.stack([np.asarray(training.algorithm_coins(draft, key, longest)) for key in commons])
    T = coins.shape[-1]
    output_at = np.array([training.sampled_iteration(key, T) for key in commons])
    algorithm = build(config, T) if config.eta_end is not None else draft
    return Plan(algorithm, keys, coins, output_at)


def run(config: Config, out: str | Path | None = None, reporter: Reporter | None = None) -> Experiment:
    """Train and, with `out`, write the run folder. Stops once honest parameters are non-finite, keeping what it had."""
    prepared = plan(config)
    folder = None
    if out is not None:
        folder = results.create_folder(out)
        results.write_config(folder, config)
        results.write_json(folder / "environment.json", results.describe_environment())
    parts, steps, policy, finite = [], 0.0, {}, True
    with contextlib.nullcontext() if reporter is None else reporter:
        for segment in training.segments(*prepared, length=SEGMENT):
            parts.append(segment.metrics)
            sampled = np.asarray(segment.metrics.trajectories)
            steps += float(np.sum(segment.metrics.length * sampled)) * config.agents
            finite = bool(np.all(segment.metrics.finite))
            if finite:
                policy = collect_policy(segment.runs)
            if reporter is not None:
                reporter.update(progress_of(parts, prepared.coins.shape[-1], steps))
            if not finite:
                break
    metrics = results.join_metrics(parts)
    if folder is not None:
        results.write_arrays(folder / "metrics.npz", metrics)
        results.write_arrays(folder / "policy.npz", policy)
    return Experiment(config, metrics, policy, finite)


def progress_of(parts: list[Metrics], iterations: int, steps: float) -> Progress:
    """Where a run stands after its latest segment."""
    latest = results.join_metrics(parts[-1:])
    latest["trajectories"] += sum(part.trajectories.sum(axis=1, keepdims=True) for part in parts[:-1])
    done = sum(part.returns.shape[1] for part in parts)
    honest_return = float(np.mean(latest["return"][:, -1]))
    return Progress(done, iterations, int(latest["trajectories"][0, -1]), honest_return, steps, latest)


def collect_policy(runs: training.Run) -> dict[str, np.ndarray]:
    """The three outputs of every seed, on the host."""
    return {
        "last": np.asarray(runs.state.parameters),
        "sampled": np.asarray(runs.outputs.sampled),
        "best": np.asarray(runs.outputs.best),
    }


def train(
    preset: str | None = None, out: str | Path | None = None, reporter: Reporter | None = None, **options: Any
) -> Experiment:
    """One call: `jaxbyz.experiment.train(byzantine=3, attack="avg-zero", trajectories=500)`."""
    from jaxbyz.config import resolve

    return run(resolve(preset, **options), out, reporter)


def evaluate(
    config: Config, parameters: np.ndarray, episodes: int, seed: int = 0, greedy: bool = False
) -> dict[str, np.ndarray]:
    """Fresh episodes with each seed's parameters [seeds, D]: returns and lengths, [seeds, episodes] each."""
    from jaxbyz.environments import make_environment
    from jaxbyz.rollout import collect

    algorithm = build(config, 1)
    policy = algorithm.policy
    if parameters.shape[-1] != policy.size:
        raise UsageError(f"parameters of size {parameters.shape[-1]} do not fit a policy of size {policy.size}")
    if greedy:
        policy = policy._replace(sample=_greedy(policy.sample, make_environment(config.env).actions.discrete))
    keys = jax.random.split(jax.random.key(seed), parameters.shape[0])
    episodes_run = jax.jit(lambda p, k: collect(algorithm.environment, policy, p, k, episodes, config.horizon))(
        parameters, keys
    )
    return {"return": np.asarray(episodes_run.returns), "length": np.asarray(episodes_run.lengths)}


def _greedy(sample: Any, discrete: bool) -> Any:
    """The likeliest action instead of a drawn one."""
    import jax.numpy as jnp

    if discrete:
        return lambda log_probs, u: jnp.argmax(log_probs, axis=0).astype(jnp.int32)
    return lambda distribution, z: sample(distribution, jnp.zeros_like(z))
