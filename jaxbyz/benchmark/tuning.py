"""Choose the step size of entries and references with the tuning budget of a suite.

All step sizes and tuning seeds are trained in one compiled program: a factor on the optimizer's updates is part of its
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxbyz import training
from jaxbyz.algorithms import Algorithm, Metrics, State
from jaxbyz.benchmark.entries import ALONE, MEAN, NO_ATTACK, ONE_AGENT, Cell, Entry, cell_config, options_of
from jaxbyz.benchmark.results import RESULT_FORMAT, read_hashed, write_hashed
from jaxbyz.benchmark.suite import Suite
from jaxbyz.errors import UsageError
from jaxbyz.experiments.building import build, optimizer_of
from jaxbyz.experiments.config import Config
from jaxbyz.experiments.plan import make_plan
from jaxbyz.protocol.placement import Places


class Tuned(NamedTuple):
    """The step sizes that were tried.

    Attributes:
        eta: `[G]`, the step sizes.
        returns: attack -> `[G]`, the mean return over the run and over tuning seeds; NaN if a seed became non-finite.
        best: the step size whose worst attack has the highest return.
    """

    eta: list[float]
    returns: dict[str, list[float]]
    best: float


def tune(suite: Suite, entries: Mapping[str, Entry], name: str, task: str) -> Tuned:
    """Tune an entry or a reference on a task, in the first federation of the task."""
    federation = next(f for t, f in suite.settings if t == task)
    attacks = (NO_ATTACK,) if name in (ALONE, MEAN) else suite.tuning.attacks
    seeds = {"seeds": suite.tuning.seeds, "seed": suite.tuning.first_seed}
    returns, eta = {}, np.zeros(0)
    for attack in attacks:
        cell = Cell(task, ONE_AGENT if name == ALONE else federation, name, attack)
        options = options_of(suite, entries, cell)
        options = {key: value for key, value in options.items() if key not in ("eta", "eta_end")}
        config = cell_config(suite, cell, options, **seeds)
        eta = config.eta * np.array(suite.tuning.factors)
        returns[attack] = average_returns(config, np.array(suite.tuning.factors))
    worst = np.min([np.nan_to_num(values, nan=-np.inf) for values in returns.values()], axis=0)
    tried = [float(f"{value:.6g}") for value in eta]
    return Tuned(tried, {attack: values.tolist() for attack, values in returns.items()}, tried[int(np.argmax(worst))])


def tuning_path(folder: Path, task: str, name: str) -> Path:
    """Return the path of the file that keeps what was tried."""
    return folder / f"{task}.{name}.json"


def tune_if_missing(suite: Suite, entries: Mapping[str, Entry], name: str, task: str, folder: Path) -> float:
    """Tune unless the file exists, and return the best step size."""
    path = tuning_path(folder, task, name)
    if not path.exists():
        tuned = tune(suite, entries, name, task)
        named = {"name": suite.name, "hash": suite.hash}
        write_hashed(path, {"format": RESULT_FORMAT, "suite": named, "task": task, "entry": name, **tuned._asdict()})
    return float(read_hashed(path, suite)["best"])


def load_step_sizes(folder: str | Path, suite: Suite) -> dict[tuple[str, str], float]:
    """Read the best step sizes of a folder: (task, entry) -> η.

    Raises:
        UsageError: if a file was changed or belongs to another suite, or there is none.
    """
    contents = [read_hashed(path, suite) for path in sorted(Path(folder).glob("*.json"))]
    if not contents:
        raise UsageError(f"{folder}: no tuning results here; `jaxbyz benchmark tune {suite.name}` makes some")
    return {(content["task"], content["entry"]): float(content["best"]) for content in contents}


def average_returns(config: Config, factors: np.ndarray) -> np.ndarray:
    """Train with the step size times each factor `[G]`; return the mean return over the run and the seeds, `[G]`.

    A factor with a seed that became non-finite has NaN.
    """
    plan = make_plan(config)
    metrics = train_with_factors(config, plan.iterations)(factors, plan.keys, plan.coins)
    averages = np.sum(metrics.returns * metrics.batch, axis=2) / np.sum(metrics.batch, axis=2)
    return np.where(np.all(metrics.finite == 1, axis=(1, 2)), np.mean(averages, axis=1), np.nan)


def train_with_factors(config: Config, iterations: int) -> Callable[[np.ndarray, PRNGKeyArray, np.ndarray], Metrics]:
    """Return the function `(factors [G], keys [seeds], coins) -> Metrics [G, seeds, T]` as one compiled program.

    The step size is that of the configuration times the factor. Coins are `[T]` or `[seeds, T]`; their values may
    differ between calls, so one program serves every p.
    """
    algorithm = build(config, iterations, with_factor(optimizer_of(config, iterations)))

    def one(factor: Array, key: PRNGKeyArray, coins: Array) -> Metrics:
        return training.train(start_with_factor(algorithm, factor), key, iterations, coins).metrics

    programs = {ndim: jax.jit(jax.vmap(one, in_axes=(0, 0, 0 if ndim == 2 else None))) for ndim in (1, 2)}

    def train(factors: np.ndarray, keys: PRNGKeyArray, coins: np.ndarray) -> Metrics:
        G, seeds = len(factors), len(keys)
        coins = np.tile(coins, (G, 1)) if coins.ndim == 2 else coins
        repeated = jnp.repeat(jnp.asarray(factors, jnp.float32), seeds), jnp.tile(keys, G), jnp.asarray(coins)
        metrics = programs[coins.ndim](*repeated)
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(G, seeds, *leaf.shape[1:]), metrics)

    return train


def with_factor(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer with a factor on its updates, which is kept in its state and is one at first.

    The updates of all optimizers here are proportional to the step size, so this is a factor on the step size.
    """

    def init(parameters: Array) -> tuple[optax.OptState, Array]:
        return optimizer.init(parameters), jnp.float32(1)

    def update(
        updates: Array, state: tuple[optax.OptState, Array], parameters: Array | None = None
    ) -> tuple[Array, tuple[optax.OptState, Array]]:
        inner, factor = state
        updates, inner = optimizer.update(updates, inner, parameters)
        return factor * updates, (inner, factor)

    return optax.GradientTransformation(init, update)


def start_with_factor(algorithm: Algorithm, factor: Array) -> Algorithm:
    """Return an algorithm built with `with_factor` that starts with this factor `[]`."""

    def init(key: PRNGKeyArray, *places: Places) -> State:
        state = algorithm.init(key, *places)
        inner, ones = state.optimizer
        return state._replace(optimizer=(inner, factor * ones))

    return algorithm._replace(init=init)
