"""A configured run from start to folder: what `jaxbyz train` does, as a function."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz import checkpoints, results, signals, training
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


class Keeping(NamedTuple):
    """Where a run is kept, and every how many iterations it leaves a checkpoint (None: only when interrupted)."""

    folder: Path
    every: int | None = None


def run(
    config: Config,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
) -> Experiment:
    """Train and, with `out`, write the run folder. Stops once honest parameters are non-finite, keeping what it had.

    With `out`, SIGINT and SIGTERM end the run at the end of a segment with a checkpoint and `Interrupted`, and
    `resume(out)` continues it. After a kill it continues from the last checkpoint of `checkpoint_every` iterations.
    """
    if checkpoint_every is not None and checkpoint_every < 1:
        raise UsageError(f"checkpoint_every={checkpoint_every}: must be at least 1")
    if out is None:
        if checkpoint_every is not None:
            raise UsageError("checkpoint_every needs a folder to keep checkpoints in: give out as well")
        return _train(config, plan(config), None, reporter)
    prepared = plan(config)  # whatever is wrong with the options is said before a folder is made
    folder = results.create_folder(out)
    with results.claimed(folder):
        results.create_folder(out)  # now that nobody else can begin a run in it
        return _begin(config, prepared, Keeping(folder, checkpoint_every), reporter)


def resume(
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Experiment:
    """Continue an unfinished run to the same bits as if it had never stopped. A finished one is read and handed back.

    checkpoint_every defaults to what the run was begun with; `say` is told where it goes on and what was damaged.
    """
    folder = Path(out)
    config = results.load_config(folder)
    prepared = plan(config)
    with results.claimed(folder):
        return _continue(config, prepared, Keeping(folder, checkpoint_every), reporter, say)


def ensure(
    config: Config,
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Experiment:
    """Do what is left to do of this run in this folder: all of it, the rest of it, or nothing."""
    prepared = plan(config)
    folder = results.make_folder(out)
    with results.claimed(folder):
        if not (folder / "config.json").exists():
            return _begin(config, prepared, Keeping(folder, checkpoint_every), reporter)
        if results.load_config(folder) != config:
            raise UsageError(f"{folder}: holds a run of another configuration; nothing was changed")
        return _continue(config, prepared, Keeping(folder, checkpoint_every), reporter, say)


def _begin(config: Config, prepared: Plan, keeping: Keeping, reporter: Reporter | None) -> Experiment:
    """Train from the start in a folder that is claimed and holds no run."""
    results.write_json(keeping.folder / "environment.json", results.describe_environment())
    if keeping.every is not None:
        checkpoints.write_options(keeping.folder, {"checkpoint_every": keeping.every})
    results.write_config(keeping.folder, config)
    return _train(config, prepared, keeping, reporter)


def _continue(
    config: Config, prepared: Plan, keeping: Keeping, reporter: Reporter | None, say: Callable[[str], None]
) -> Experiment:
    """Train on from the newest whole checkpoint in a folder that is claimed and holds a run."""
    folder = keeping.folder
    if not results.unfinished(folder):
        say(f"{folder} is finished; there is nothing to resume")
        data = results.load_run(folder)
        return Experiment(config, data.metrics, data.policy, bool(np.all(data.metrics["finite"][:, -1])))
    if keeping.every is None:
        keeping = keeping._replace(every=checkpoints.read_options(folder).get("checkpoint_every"))
    found = checkpoints.restore(folder, config, partial(_target, config, prepared), say)
    done = 0 if found is None else found.done
    checkpoints.discard_after(folder, done)
    say(f"resuming {folder} at iteration {done} of {prepared.coins.shape[-1]}")
    return _train(config, prepared, keeping, reporter, found)


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """A run that was asked to stop and left a checkpoint."""

    def __init__(self, folder: Path, done: int, number: int):
        super().__init__(
            f"stopped at iteration {done} by {signal.Signals(number).name}; `jaxbyz resume {folder}` goes on"
        )
        self.folder, self.done, self.signal = folder, done, number


def _target(config: Config, prepared: Plan, done: int) -> checkpoints.Checkpoint:
    """The shapes of a checkpoint after `done` iterations."""
    algorithm = prepared.algorithm
    runs = jax.eval_shape(jax.vmap(partial(training.start, algorithm)), prepared.keys)
    metrics = jax.eval_shape(lambda run: algorithm.step(run.state, jnp.bool_(True))[1], _first(runs))
    shapes = {
        name: jax.ShapeDtypeStruct((config.seeds, done, *leaf.shape), leaf.dtype)
        for name, leaf in metrics._asdict().items()
    }
    return checkpoints.Checkpoint(done, runs, shapes)


def _first(tree: Any) -> Any:
    """Shapes without their leading axis."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def _train(
    config: Config,
    prepared: Plan,
    keeping: Keeping | None,
    reporter: Reporter | None,
    start: checkpoints.Checkpoint | None = None,
) -> Experiment:
    """The loop over segments: metrics, progress, checkpoints, interruption, and the files of a finished run."""
    T = prepared.coins.shape[-1]
    parts = [] if start is None else [Metrics(**start.history)]
    policy = {} if start is None else collect_policy(start.runs)
    done, runs = (0, None) if start is None else (start.done, start.runs)
    every = None if keeping is None else keeping.every
    steps, finite = sum(environment_steps(config, part) for part in parts), True
    with contextlib.ExitStack() as stack:
        wish = stack.enter_context(signals.noted()) if keeping is not None else signals.Wish()
        if reporter is not None:
            stack.enter_context(reporter)
        for segment in training.segments(*prepared, length=SEGMENT, every=every, runs=runs, done=done):
            parts.append(segment.metrics)
            finite = bool(np.all(segment.metrics.finite))
            if finite:
                policy = collect_policy(segment.runs)
            steps += environment_steps(config, segment.metrics)
            if reporter is not None:
                reporter.update(progress_of(parts, T, steps))
            if not finite:
                break
            stopping = wish.signal
            if keeping is not None and segment.done < T and (stopping or (every and segment.done % every == 0)):
                history = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
                parts = [history]
                checkpoints.save(
                    keeping.folder, config, checkpoints.Checkpoint(segment.done, segment.runs, history._asdict())
                )
                if stopping:
                    raise Interrupted(keeping.folder, segment.done, stopping)
    metrics = results.join_metrics(parts)
    if keeping is not None:
        results.write_arrays(keeping.folder / "policy.npz", policy)
        results.write_arrays(keeping.folder / "metrics.npz", metrics)
        checkpoints.remove_all(keeping.folder)
    return Experiment(config, metrics, policy, finite)


def environment_steps(config: Config, metrics: Metrics) -> float:
    """Steps that all agents and seeds took in these iterations, from honest agents' mean lengths."""
    return float(np.sum(metrics.length * metrics.trajectories)) * config.agents


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
    if discrete:
        return lambda log_probs, u: jnp.argmax(log_probs, axis=0).astype(jnp.int32)
    return lambda distribution, z: sample(distribution, jnp.zeros_like(z))
