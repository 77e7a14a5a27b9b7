"""Choose the step size of entries and references with the tuning budget of a suite.

All step sizes, tuning seeds and attacks are trained in one compiled program, which also serves the run of the suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import ALONE, MEAN, NO_ATTACK, ONE_AGENT, Cell, Entry, cell_config, options_of
from jaxbyz.benchmark.results import RESULT_FORMAT, read_hashed, write_hashed
from jaxbyz.benchmark.suite import Suite
from jaxbyz.benchmark.together import Sharing, groups_of_attacks, sharing_of, train_planned
from jaxbyz.errors import UsageError
from jaxbyz.experiments.config import Config


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
    factors, eta = np.array(suite.tuning.factors), np.zeros(0)
    returns: dict[str, np.ndarray] = {}
    for group in groups_of_attacks(attacks):
        cell = Cell(task, ONE_AGENT if name == ALONE else federation, name, group[0])
        options = options_of(suite, entries, cell)
        options = {key: value for key, value in options.items() if key not in ("eta", "eta_end")}
        config = cell_config(suite, cell, options, **seeds)
        eta = config.eta * factors
        sharing = None if name in (ALONE, MEAN) else sharing_of(suite, group)
        returns |= dict(zip(group, average_returns(config, group, factors, sharing), strict=True))
    returns = {attack: returns[attack] for attack in attacks}
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


def average_returns(
    config: Config, attacks: tuple[str, ...], factors: np.ndarray, sharing: Sharing | None = None
) -> np.ndarray:
    """Train under A attacks with the step size times each factor `[G]`.

    Returns:
        `[A, G]`, the mean return over the run and the seeds; NaN where a seed became non-finite.
    """
    metrics = train_planned(config, attacks, factors, sharing)
    averages = np.sum(metrics.returns * metrics.batch, axis=3) / np.sum(metrics.batch, axis=3)
    return np.where(np.all(metrics.finite == 1, axis=(2, 3)), np.mean(averages, axis=2), np.nan)
