"""A configured run from start to folder: what `jaxbyz train` does, as a function."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz import training
from jaxbyz.algorithms import Algorithm, Metrics
from jaxbyz.errors import UsageError
from jaxbyz.experiments import checkpoints, signals
from jaxbyz.experiments import run_folder as results
from jaxbyz.experiments.config import Config, build, resolve, traits_of
from jaxbyz.experiments.reporters import Progress, Reporter
from jaxbyz.registry import Registry
from jaxbyz.training import processes as distributed
from jaxbyz.training.devices import Shape, choose_shape, parse_shape

SEGMENT = 20  # iterations a compiled call
EVALUATION_STREAM = 2**32 - 1  # far from what a run of the same seed makes of its key: it is larger than any index


class Experiment(NamedTuple):
    """A finished experiment.

    metrics: name -> [seeds, iterations]
    policy:  last, sampled, best -> [seeds, K, D]; of a seed that went non-finite as they were at the end of the last
             segment before that, NaN where that was the first one; empty where it was for every seed
    finite:  whether every seed stayed finite throughout
    """

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
    draft = _algorithm(config)
    commons = jax.vmap(training.common_seed)(keys)
    if config.coin == "shared":
        coins = training.coins_for(draft, commons[0], config.trajectories)
    else:
        rows = [training.coins_for(draft, key, config.trajectories) for key in commons]
        longest = max(map(len, rows))
        coins = np.stack([np.asarray(training.algorithm_coins(draft, key, longest)) for key in commons])
    T = coins.shape[-1]
    output_at = np.array([training.sampled_iteration(key, T) for key in commons])
    return Plan(_algorithm(config, T), keys, coins, output_at)


def _algorithm(config: Config, iterations: int = 1) -> Algorithm:
    """The algorithm of a configuration; one that differs in nothing that matters to its program is not built anew."""
    seed = config.seed if config.start == "shared" else 0
    plain = replace(config, seed=seed, seeds=1, trajectories=1, coin="shared", output="last")
    return _build(plain, 1 if config.eta_end is None else iterations, Registry.revision)


@lru_cache(maxsize=16)
def _build(config: Config, iterations: int, revision: int) -> Algorithm:
    return build(config, iterations)


class Manner(NamedTuple):
    """How a run is carried out, which does not change its numbers beyond rounding.

    folder: where it is kept, if anywhere
    every:  iterations between two checkpoints (None: only when interrupted)
    shape:  devices along the axes of the mesh (None: what fits)
    chosen: the shape was not asked for: it is what fitted where the run began
    """

    folder: Path | None = None
    every: int | None = None
    shape: Shape | None = None
    chosen: bool = False

    def options(self) -> dict[str, Any]:
        """What a resumed run should know, in plain values."""
        mesh = None if self.shape is None else str(self.shape)
        known = (("checkpoint_every", self.every), ("chosen_mesh" if self.chosen else "mesh", mesh))
        return {name: value for name, value in known if value is not None}

    def placed(self, prepared: Plan) -> Manner:
        """With a shape, if the run is to be spread; an unfit one is refused in one line."""
        shape = choose_shape(self.shape, len(prepared.keys), prepared.algorithm.agents)
        if self.shape is None and shape != Shape() and jax.process_count() == 1:
            return self._replace(shape=shape, chosen=True)
        return self

    def replaced(self, before: dict[str, Any], say: Callable[[str], None]) -> Manner:
        """As placed when the run began, if that fits here."""
        if self.shape is not None or "chosen_mesh" not in before:
            return self
        shape = parse_shape(before["chosen_mesh"])
        if shape.seeds * shape.agents > len(jax.devices()):
            say(f"begun on mesh {shape}, which does not fit here: numbers will agree up to rounding")
            return self
        return self._replace(shape=shape, chosen=True)


def _manner(out: str | Path | None, checkpoint_every: Any, mesh: Any) -> Manner:
    if checkpoint_every is not None and (type(checkpoint_every) is not int or checkpoint_every < 1):
        raise UsageError(f"checkpoint_every={checkpoint_every}: must be a whole number of at least 1")
    if checkpoint_every is not None and out is None:
        raise UsageError("checkpoint_every needs a folder to keep checkpoints in: give out as well")
    return Manner(
        None if out is None else Path(out), checkpoint_every, None if mesh is None else parse_shape(str(mesh))
    )


def run(
    config: Config,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
) -> Experiment:
    """Train and, with `out`, write the run folder. A seed that goes non-finite does not stop the others.

    Once no seed is finite any more the run ends. Of each seed the last finite policies are kept.

    With `out`, SIGINT and SIGTERM end the run at the end of a segment with a checkpoint and `Interrupted`, and
    `resume(out)` continues it. After a kill it continues from the last checkpoint of `checkpoint_every` iterations.
    mesh, `seeds=4,agents=2`, spreads runs and agents over devices, of all processes where there are several.
    """
    manner = _manner(out, checkpoint_every, mesh)
    prepared = plan(config)  # whatever is wrong with the options is said before a folder is made
    manner = manner.placed(prepared)
    with contextlib.ExitStack() as stack:
        if manner.folder is not None:
            folder = manner.folder

            def claim() -> None:
                results.create_folder(folder)
                stack.enter_context(results.claimed(folder))
                results.create_folder(folder)  # now that nobody else can begin a run in it

            distributed.led(claim)
            _begin(folder, config, manner)
        return _train(config, prepared, manner, reporter)


def resume(
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Experiment:
    """Continue an unfinished run to the same bits as if it had never stopped. A finished one is read and handed back.

    checkpoint_every and mesh default to what the run was begun with (on another mesh its numbers agree up to rounding);
    `say` is told where it goes on and what was damaged.
    """
    return ensure(results.load_config(out), out, reporter, checkpoint_every=checkpoint_every, mesh=mesh, say=say)


def ensure(
    config: Config,
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Experiment:
    """Do what is left to do of this run in this folder: all of it, the rest of it, or nothing."""
    manner, prepared, folder = _manner(out, checkpoint_every, mesh), plan(config), Path(out)
    with contextlib.ExitStack() as stack:

        def claim() -> int:
            """Whether the folder holds a run (1), and a finished one (2)."""
            results.make_folder(folder)
            if results.finished(folder) and not results.writable(folder):
                return 2  # to be read, which needs no claim
            stack.enter_context(results.claimed(folder))
            return (folder / "config.json").exists() + results.finished(folder)

        stage = distributed.led(claim)
        if stage == 0:
            manner = manner.placed(prepared)
            _begin(folder, config, manner)
            return _train(config, prepared, manner, reporter)
        if results.load_config(folder) != config:
            raise UsageError(f"{folder}: holds a run of another configuration; nothing was changed")
        if stage == 2:
            data = results.load_run(folder)
            say(f"{folder} is finished; there is nothing to resume")
            return Experiment(config, data.metrics, data.policy, bool(np.all(data.metrics["finite"])))
        before = checkpoints.read_options(folder)
        manner = _manner(out, checkpoint_every or before.get("checkpoint_every"), mesh or before.get("mesh"))
        manner = manner.replaced(before, say)
        found = checkpoints.restore(folder, config, partial(_target, prepared, manner.shape), say)
        done = 0 if found is None else found.done
        distributed.led(lambda: checkpoints.discard_after(folder, done))
        say(f"resuming {folder} at iteration {done} of {prepared.coins.shape[-1]}")
        return _train(config, prepared, manner, reporter, found)


def _begin(folder: Path, config: Config, manner: Manner) -> None:
    """Write what a folder holds from the start; config.json last, it makes a folder a run."""

    def write() -> None:
        results.write_json(folder / "environment.json", results.describe_environment())
        if manner.options():
            checkpoints.write_options(folder, manner.options())
        results.write_config(folder, config)

    distributed.led(write)


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """A run that was asked to stop and left a checkpoint."""

    def __init__(self, folder: Path, done: int, number: int):
        super().__init__(
            f"stopped at iteration {done} by {signal.Signals(number).name}; `jaxbyz resume {folder}` goes on"
        )
        self.folder, self.done, self.signal = folder, done, number


def _target(prepared: Plan, shape: Shape | None, done: int) -> checkpoints.Checkpoint:
    """The shapes of a checkpoint after `done` iterations, and where its arrays belong."""
    algorithm, seeds = prepared.algorithm, len(prepared.keys)
    state = jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)))
    metrics = jax.eval_shape(algorithm.step, state, jax.ShapeDtypeStruct((), bool))[1]
    history = {
        name: jax.ShapeDtypeStruct((seeds, done, *leaf.shape), leaf.dtype) for name, leaf in metrics._asdict().items()
    }
    return checkpoints.Checkpoint(done, training.make_layout(algorithm, seeds, shape).shapes, history)


def _train(
    config: Config,
    prepared: Plan,
    manner: Manner,
    reporter: Reporter | None,
    start: checkpoints.Checkpoint | None = None,
) -> Experiment:
    """The loop over segments: metrics, progress, checkpoints, interruption, and the files of a finished run."""
    T, (folder, every, shape, _) = prepared.coins.shape[-1], manner
    parts = [] if start is None else [Metrics(**start.history)]
    done, runs = (0, None) if start is None else (start.done, start.runs)
    steps = sum(environment_steps(config, part) for part in parts)
    finite = np.all([finite_seeds(part) for part in parts] or np.ones((1, config.seeds), bool), axis=0)
    policy: dict[str, np.ndarray] = {}
    if runs is not None and folder is not None:
        policy = kept_policy(finite, runs, checkpoints.read_policy(folder, runs.state.parameters.shape))
    with contextlib.ExitStack() as stack:
        wish = signals.Wish() if folder is None else stack.enter_context(signals.noted())
        if reporter is not None:
            stack.enter_context(reporter)
        for segment in training.segments(*prepared, length=SEGMENT, every=every, runs=runs, done=done, shape=shape):
            parts.append(segment.metrics)
            steps += environment_steps(config, segment.metrics)
            finite = finite & finite_seeds(segment.metrics)
            policy = kept_policy(finite, segment.runs, policy)
            if reporter is not None:
                reporter.update(progress_of(parts, T, steps))
            if not finite.any():
                break
            if folder is None or segment.done == T:
                continue
            stopping = distributed.largest(wish.signal)
            if stopping or (every is not None and segment.done % every == 0):
                parts = [jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)]
                if not finite.all():
                    distributed.led(partial(checkpoints.write_policy, folder, policy))
                checkpoints.save(folder, config, checkpoints.Checkpoint(segment.done, segment.runs, parts[0]._asdict()))
            if stopping:
                raise Interrupted(folder, segment.done, stopping)
    metrics = results.join_metrics(parts)
    if folder is not None:
        distributed.led(lambda: _finish(folder, metrics, policy))
    return Experiment(config, metrics, policy, bool(finite.all()))


def _finish(folder: Path, metrics: dict[str, np.ndarray], policy: dict[str, np.ndarray]) -> None:
    """The files of a finished run; metrics.npz last, it says that the run is finished."""
    results.write_arrays(folder / "policy.npz", policy)
    results.write_arrays(folder / "metrics.npz", metrics)
    checkpoints.remove_all(folder)


def environment_steps(config: Config, metrics: Metrics) -> float:
    """Steps that all agents and seeds took in these iterations, from honest agents' mean lengths."""
    alone = traits_of(config).server_samples & (np.asarray(metrics.coin) == 0)
    return float(np.sum(metrics.length * metrics.batch * np.where(alone, 1, config.agents)))


def progress_of(parts: list[Metrics], iterations: int, steps: float) -> Progress:
    """Where a run stands after its latest segment."""
    latest = results.join_metrics(parts[-1:])
    latest["trajectories"] += sum(part.batch.sum(axis=1, keepdims=True) for part in parts[:-1])
    done = sum(part.returns.shape[1] for part in parts)
    honest_return = float(np.mean(latest["returns"][:, -1]))
    return Progress(done, iterations, int(latest["trajectories"][0, -1]), honest_return, steps, latest)


def finite_seeds(metrics: Metrics) -> np.ndarray:
    """[seeds] whether a seed was finite in all of these iterations."""
    return np.all(metrics.finite, axis=1)


def kept_policy(finite: np.ndarray, runs: training.Run, before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of seeds that are finite [seeds], what was kept before of the others; NaN if that is nothing."""
    if not finite.any():
        return before
    return {
        name: np.where(finite[:, None, None], now, before.get(name, np.float32(np.nan)))
        for name, now in collect_policy(runs).items()
    }


def collect_policy(runs: training.Run) -> dict[str, np.ndarray]:
    """The three outputs of every seed, on the host."""
    outputs = {"last": runs.state.parameters, "sampled": runs.outputs.sampled, "best": runs.outputs.best}
    return training.to_host(outputs)


def run_experiment(
    preset: str | None = None, out: str | Path | None = None, reporter: Reporter | None = None, **options: Any
) -> Experiment:
    """Run one experiment: `jaxbyz.run_experiment(byzantine=3, attack="avg-zero", trajectories=500)`."""
    return run(resolve(preset, **options), out, reporter)


def evaluate(
    config: Config, parameters: np.ndarray, episodes: int, seed: int = 0, greedy: bool = False
) -> dict[str, np.ndarray]:
    """Fresh episodes with each seed's parameters [seeds, D]: returns and lengths, [seeds, episodes] each."""
    algorithm = _algorithm(config)
    if parameters.shape[-1] != algorithm.policy.size:
        raise UsageError(
            f"parameters of size {parameters.shape[-1]} do not fit a policy of size {algorithm.policy.size}"
        )
    played = _player(algorithm, episodes, config.horizon, greedy)(parameters, evaluation_keys(seed, len(parameters)))
    return {name: np.asarray(values) for name, values in played.items()}


@lru_cache(maxsize=16)
def _player(algorithm: Algorithm, episodes: int, horizon: int, greedy: bool) -> Callable[..., dict[str, Any]]:
    """(parameters [seeds, D], keys [seeds]) -> returns and lengths [seeds, episodes]: one program for every call."""
    from jaxbyz.sampling.rollout import collect

    policy, environment = algorithm.policy, algorithm.environment
    if greedy:
        policy = policy._replace(sample=_greedy(policy.sample, environment.actions.discrete))

    def play(parameters: Any, keys: Any) -> dict[str, Any]:
        done = collect(environment, policy, parameters, keys, episodes, horizon)
        return {"returns": done.returns, "length": done.lengths}

    return jax.jit(play)


def evaluation_keys(seed: int, runs: int) -> Any:
    """Keys [runs] of fresh episodes, none of which training with this seed has used."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), EVALUATION_STREAM), runs)


def _greedy(sample: Any, discrete: bool) -> Any:
    """The likeliest action instead of a drawn one."""
    if discrete:
        return lambda log_probs, u: jnp.argmax(log_probs, axis=0).astype(jnp.int32)
    return lambda distribution, z: sample(distribution, jnp.zeros_like(z))
