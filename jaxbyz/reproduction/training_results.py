"""Train curves of the reproduction and keep their results in one table per setting; join rows with different seeds.

A row of the table SETTING.jsonl.gz is named TRAINING.sFIRST-LAST and holds the configuration, the machine, and the
return of every seed every 100 trajectories. Trainings whose row exists are not repeated, and `cat` joins the tables of
several machines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import resolve, to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import add_row, read_rows
from jaxbyz.report.statistics import smoothed
from jaxbyz.reproduction.figures import ENVIRONMENTS, SETTINGS, PaperCurve
from jaxbyz.runs.members import groups_of_attacks
from jaxbyz.runs.reporters import Reporter
from jaxbyz.runs.run import run
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.runs.together import train_together

ROW_FORMAT = 1


class TrainingResult(NamedTuple):
    """The result of a training, joined over all of its rows.

    Attributes:
        trajectories: `[G]`, trajectories per agent.
        returns: `[seeds, G]`, smoothed honest return.
        seeds: the seeds, in ascending order.
    """

    trajectories: np.ndarray
    returns: np.ndarray
    seeds: list[int]


def training_config(
    setting: str, environment: str, curve: PaperCurve, seeds: int, seed: int, trajectories: int
) -> Config:
    """Return the configuration of the training behind a curve."""
    options = {"env": ENVIRONMENTS[environment], "seeds": seeds, "seed": seed, "trajectories": trajectories}
    return resolve(SETTINGS[setting][environment], **curve.options(), **options)


def row_name(training: str, config: Config) -> str:
    """Return the name of a training's row."""
    return f"{training}.s{config.seed}-{config.seed + config.seeds - 1}"


def train_if_missing(table: Path, configs: Mapping[str, Config], reporter: Reporter | None = None) -> None:
    """Train configurations of `batches_of_trainings`, training -> configuration, and add the rows that do not exist.

    Raises:
        UsageError: if a row exists but was made with other options.
    """
    rows = {row["name"]: row for row in _read(table)}
    missing = {}
    for training, config in configs.items():
        if (row := rows.get(row_name(training, config))) is None:
            missing[training] = config
        else:
            _check_options(f"{table}: {row['name']}", row["config"], to_dict(config), "choose another folder")
    if missing:
        for training, (_, record) in train_and_record(missing, reporter).items():
            name = row_name(training, missing[training])
            add_row(table, {**record, "name": name, "training": training, "format": ROW_FORMAT})


def _check_options(what: str, made_with: dict[str, Any], expected: dict[str, Any], advice: str) -> None:
    """Refuse results that were made with other options; one that is newer than the results has its default value."""
    made_with = {**to_dict(Config()), **made_with}
    if changed := sorted(key for key in made_with | expected if made_with.get(key) != expected.get(key)):
        raise UsageError(f"{what}: made with other options ({', '.join(changed)}); {advice}")


def batches_of_trainings(configs: Mapping[str, Config], together: bool) -> list[dict[str, Config]]:
    """Divide trainings, name -> configuration, into batches that are trained at once.

    A batch is one training, or with `together` all that differ only in the attack and can share a program.
    """
    if not together:
        return [{name: config} for name, config in configs.items()]
    alike: dict[Config, dict[str, str]] = {}  # -> attack -> name
    for name, config in configs.items():
        alike.setdefault(replace(config, attack="none"), {})[config.attack] = name
    groups = [(names, group) for names in alike.values() for group in groups_of_attacks(list(names))]
    return [{names[attack]: configs[names[attack]] for attack in group} for names, group in groups]


def train_and_record(
    configs: Mapping[str, Config], reporter: Reporter | None = None
) -> dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Train a batch of `batches_of_trainings`, and return the metrics of each training and what its row holds.

    Several trainings are one program without checkpoints and without reports of progress.
    """
    start = time.monotonic()
    (first, *others) = configs.values()
    runs = train_together([first, *others]) if others else [run(first, None, reporter)]
    found = [experiment.metrics for experiment in runs]
    seconds = round((time.monotonic() - start) / len(configs), 1)
    records = {}
    for (name, config), metrics in zip(configs.items(), found, strict=True):
        x, y = smoothed(metrics)
        record = {
            "name": name,
            "config": to_dict(config),
            "environment": describe_environment(),
            "seconds": seconds,  # of several trainings at once, their share
            "finite": bool(np.all(metrics["finite"])),
            "trajectories": [int(value) for value in x],
            "return": [[round(float(value), 2) for value in row] for row in y],
        }
        records[name] = (metrics, record)
    return records


def _read(table: Path) -> list[dict[str, Any]]:
    rows = read_rows(table)
    for row in rows:
        if row.get("format") != ROW_FORMAT:
            found = f"format {row.get('format')}, this version reads {ROW_FORMAT}"
            raise UsageError(f"{table}: {row['name']}: results of another version ({found})")
    return rows


def finished(table: Path) -> set[str]:
    """Return the names of the rows of a table."""
    return {row["name"] for row in _read(table)}


def load_results(table: Path) -> dict[str, TrainingResult]:
    """Load a table and join the rows of the same training.

    A seed that is in several rows counts once. All seeds are cut to the length of the shortest one.

    Raises:
        UsageError: if rows of the same training differ in other options than seeds and trajectories.
    """
    configs: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    for row in sorted(_read(table), key=lambda row: row["name"]):
        training, config = row["training"], row["config"]
        ours = {key: config[key] for key in ("seed", "seeds", "trajectories")}
        first = configs.setdefault(training, {**to_dict(Config()), **config})
        _check_options(f"{table}: {row['name']}", config, {**first, **ours}, "other rows of this training differ")
        x, by_seed = np.array(row["trajectories"]), found.setdefault(training, {})
        for seed, returns in enumerate(row["return"], config["seed"]):
            by_seed.setdefault(seed, (x, np.array(returns, float)))
    results = {}
    for training, by_seed in found.items():
        seeds = sorted(by_seed)
        grids, rows = zip(*(by_seed[seed] for seed in seeds), strict=True)
        length = min(map(len, grids))
        returns = np.stack([row[:length] for row in rows])
        results[training] = TrainingResult(grids[0][:length], returns, seeds)
    return results
