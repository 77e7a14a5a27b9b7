"""Choose the step size of entries and references with the tuning budget of a suite.

All step sizes, tuning seeds and attacks are trained in one compiled program, which also serves the run of the suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import (
    NO_ATTACK,
    NOT_ENTRIES,
    BenchmarkEntry,
    Cell,
    cell_config,
    decay_of,
    options_of,
    reference_cell,
    step_size,
)
from jaxbyz.benchmark.records import TUNED, read_record, read_records, record_name, record_path, write_record
from jaxbyz.benchmark.results import FINAL_SHARE_OF_BUDGET
from jaxbyz.benchmark.sharing import Sharing, sharing_of, train_planned
from jaxbyz.benchmark.suite import Suite
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError
from jaxbyz.runs.loop import Experiment
from jaxbyz.runs.members import groups_of_attacks


class Tuned(NamedTuple):
    """The step sizes that were tried.

    Attributes:
        eta: `[G]`, the step sizes.
        returns: attack -> `[G]`, the mean return over the run, or over its last tenth if that is the measure of the
            suite, and over tuning seeds; NaN if a seed became non-finite.
        best: the step size whose worst attack has the highest return.
        screened: attack -> the same for the factor 1 under all tuning attacks, if the worst of them are chosen.
    """

    eta: list[float]
    returns: dict[str, list[float]]
    best: float
    screened: dict[str, float] = {}  # noqa: RUF012 (never changed)


def tune(suite: Suite, entries: Mapping[str, BenchmarkEntry], name: str, task: str) -> Tuned:
    """Tune an entry or a reference on a task, in the first federation of the task.

    Raises:
        UsageError: if a seed became non-finite with every step size.
    """
    attacks, screened = tuning_attacks(suite, name, task), dict[str, float]()
    if len(attacks) > (suite.tuning.worst or len(attacks)):
        found = _returns_of(suite, entries, name, task, attacks, (1.0,))
        screened = {attack: float(values[0]) for attack, values in found.items()}
        attacks = tuple(sorted(attacks, key=lambda attack: _or_lowest(screened[attack]))[: suite.tuning.worst])
    returns = _returns_of(suite, entries, name, task, attacks, suite.tuning.factors)
    worst = np.min([_or_lowest(values) for values in returns.values()], axis=0)
    if np.isneginf(worst).all():
        raise UsageError(f"task {task}, entry {name}: a seed became non-finite with every step size that was tried")
    eta = tuning_config(suite, entries, name, task, attacks[0]).eta
    tried = [float(f"{eta * factor:.6g}") for factor in suite.tuning.factors]
    best = tried[int(np.argmax(worst))]
    return Tuned(tried, {attack: values.tolist() for attack, values in returns.items()}, best, screened)


def _or_lowest(returns: Any) -> Any:
    """Return −∞ for returns that are NaN."""
    return np.nan_to_num(returns, nan=-np.inf)


def _returns_of(
    suite: Suite,
    entries: Mapping[str, BenchmarkEntry],
    name: str,
    task: str,
    attacks: tuple[str, ...],
    factors: tuple[float, ...],
) -> dict[str, np.ndarray]:
    """Return the mean returns of an entry or a reference on the tuning seeds: attack -> `[G]`, one per factor."""
    share = FINAL_SHARE_OF_BUDGET if suite.statistics.measure == "final" else 1.0
    returns: dict[str, np.ndarray] = {}
    for group in groups_of_attacks(attacks):
        config = tuning_config(suite, entries, name, task, group[0])
        setting = task, suite.first_federation(task)
        sharing = None if name in NOT_ENTRIES else sharing_of(suite, setting, group)
        returns |= dict(zip(group, average_returns(config, group, np.array(factors), sharing, share), strict=True))
    return {attack: returns[attack] for attack in attacks}


def tuning_attacks(suite: Suite, name: str, task: str) -> tuple[str, ...]:
    """Return the attacks under which an entry or a reference is tuned on a task."""
    return (NO_ATTACK,) if name in NOT_ENTRIES else suite.tuning_attacks(task)


def tuning_config(suite: Suite, entries: Mapping[str, BenchmarkEntry], name: str, task: str, attack: str) -> Config:
    """Return the configuration of tuning with the factor 1: the task's step size, with the decay of the entry."""
    federation = suite.first_federation(task)
    cell = Cell(task, federation, name, attack)
    if name in NOT_ENTRIES:
        cell = reference_cell(suite, name, task, federation)
    options = options_of(suite, entries, cell)
    decay = decay_of(suite, task, options)
    others = {key: value for key, value in options.items() if key not in ("eta", "eta_end")}
    seeds = {"seeds": suite.tuning.count, "seed": suite.tuning.first}
    config = cell_config(suite, cell, others, **seeds)
    return config if decay is None else cell_config(suite, cell, others, **seeds, **step_size(config.eta, decay))


def tune_if_missing(suite: Suite, entries: Mapping[str, BenchmarkEntry], name: str, task: str, folder: Path) -> float:
    """Tune unless the record exists, and return the best step size.

    Raises:
        UsageError: if the record was made with other options of the entry, or a seed became non-finite with every step
            size.
    """
    path = record_path(folder, record_name(task, name))
    config = tuning_config(suite, entries, name, task, tuning_attacks(suite, name, task)[0])
    if not path.exists():
        tuned = tune(suite, entries, name, task)
        write_record(path, suite, {"task": task, "entry": name, "config": to_dict(config), **tuned._asdict()})
    record = read_record(path, suite)
    if "config" in record.content:  # older records do not have it
        record.check_config(config)
    return float(record.content[TUNED])


def load_step_sizes(source: str | Path, suite: Suite) -> dict[tuple[str, str], float]:
    """Read the best step sizes of a folder or a .jsonl.gz file: (task, entry) -> η.

    Raises:
        UsageError: if a record was changed or belongs to another suite, or there is none of `tune`.
    """
    contents = [record.content for record in read_records(source, suite, TUNED).values()]
    if not contents:
        raise UsageError(f"{source}: no tuning results here; `jaxbyz benchmark tune {suite.name}` makes some")
    return {(content["task"], content["entry"]): float(content[TUNED]) for content in contents}


def average_returns(
    config: Config, attacks: tuple[str, ...], factors: np.ndarray, sharing: Sharing | None = None, share: float = 1.0
) -> np.ndarray:
    """Train under A attacks with the step size times each factor `[G]`.

    Args:
        config: the configuration with the factor 1.
        attacks: a group of `groups_of_attacks`.
        factors: `[G]`.
        sharing: what the program has in common with others.
        share: the last part of the trajectories that counts.

    Returns:
        `[A, G]`, the mean return over that part and the seeds; NaN where a seed became non-finite.
    """

    def average(run: Experiment) -> float:
        returns, batch, sampled = (run.metrics[name] for name in ("returns", "batch", "trajectories"))
        weight = np.clip(sampled - (1 - share) * sampled[:, -1:], 0, batch)
        return np.mean(np.sum(returns * weight, axis=1) / np.sum(weight, axis=1)) if run.finite else np.nan

    return np.array([[average(run) for run in runs] for runs in train_planned(config, attacks, factors, sharing)])
