"""Train curves of the reproduction and keep the result of each in a small file; join files with different seeds.

The file of a training is NAME.sFIRST-LAST.json in a folder named after the setting. It holds the configuration, the
machine, and the return of every seed every 100 trajectories. Files that exist are not trained again, and files from
several machines can be collected in one folder.
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
from jaxbyz.files import read_json, write_json
from jaxbyz.report.statistics import smoothed
from jaxbyz.reproduction.figures import ENVIRONMENTS, SETTINGS, PaperCurve
from jaxbyz.runs.reporters import Reporter
from jaxbyz.runs.run import run
from jaxbyz.runs.run_folder import describe_environment
from jaxbyz.runs.together import groups_of_attacks, train_under_attacks

FILE_FORMAT = 1


class TrainingResult(NamedTuple):
    """The result of a training, joined over all of its files.

    Attributes:
        trajectories: `[G]`, trajectories per agent.
        returns: `[seeds, G]`, smoothed honest return.
        seeds: the seeds, in ascending order.
        finite: whether all seeds stayed finite.
    """

    trajectories: np.ndarray
    returns: np.ndarray
    seeds: list[int]
    finite: bool


def training_config(
    setting: str, environment: str, curve: PaperCurve, seeds: int, seed: int, trajectories: int
) -> Config:
    """Return the configuration of the training behind a curve."""
    options = {"env": ENVIRONMENTS[environment], "seeds": seeds, "seed": seed, "trajectories": trajectories}
    return resolve(SETTINGS[setting][environment], **curve.options(), **options)


def result_file(folder: Path, name: str, config: Config) -> Path:
    """Return the path of a training's file."""
    return folder / f"{name}.s{config.seed}-{config.seed + config.seeds - 1}.json"


def train_if_missing(folder: Path, configs: Mapping[str, Config], reporter: Reporter | None = None) -> None:
    """Train configurations of `batches_of_trainings`, name -> configuration, and write the files that do not exist.

    Raises:
        UsageError: if a file exists but was made with other options.
    """
    missing = {name: config for name, config in configs.items() if not _is_finished(folder, name, config)}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (_, record) in train_and_record(missing, reporter).items():
            write_json(result_file(folder, name, missing[name]), {"format": FILE_FORMAT, **record})


def _is_finished(folder: Path, name: str, config: Config) -> bool:
    """Return whether the file of a training exists; refuse one that was made with other options."""
    path = result_file(folder, name, config)
    if not path.exists():
        return False
    before = {**to_dict(Config()), **_read(path)["config"]}
    if before != to_dict(config):
        changed = [key for key, value in to_dict(config).items() if before.get(key) != value]
        raise UsageError(f"{path}: made with other options ({', '.join(changed)}); choose another folder")
    return True


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
    """Train a batch of `batches_of_trainings`, and return the metrics of each training and what a file keeps of it.

    Several trainings are one program without checkpoints and without reports of progress.
    """
    start = time.monotonic()
    (first, *others) = configs.values()
    if others:
        found = train_under_attacks(first, [config.attack for config in configs.values()])
    else:
        found = [run(first, None, reporter).metrics]
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


def _read(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if data.get("format") != FILE_FORMAT:
        raise UsageError(
            f"{path}: results of another version (format {data.get('format')}, this version reads {FILE_FORMAT})"
        )
    return data


def load_results(folder: Path) -> dict[str, TrainingResult]:
    """Load all files of a folder and join those of the same training.

    A seed that is in several files counts once. All seeds are cut to the length of the shortest one.

    Raises:
        UsageError: if files of the same training differ in other options than seeds and trajectories.
    """
    configs: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[int, tuple[np.ndarray, np.ndarray, bool]]] = {}
    for path in sorted(folder.glob("*.json")):
        data = _read(path)
        config = {**to_dict(Config()), **data["config"]}  # options that are newer than the file have their defaults
        config = {key: value for key, value in config.items() if key not in ("seed", "seeds", "trajectories")}
        first = configs.setdefault(data["name"], config)
        if differing := sorted(key for key in config.keys() | first.keys() if config.get(key) != first.get(key)):
            raise UsageError(
                f"{path}: made with other options ({', '.join(differing)}) than other files of this training"
            )
        x = np.array(data["trajectories"])
        for offset, row in enumerate(data["return"]):
            by_seed = found.setdefault(data["name"], {})
            by_seed.setdefault(data["config"]["seed"] + offset, (x, np.array(row, float), data["finite"]))
    results = {}
    for name, by_seed in found.items():
        seeds = sorted(by_seed)
        grids, rows, finite = zip(*(by_seed[seed] for seed in seeds), strict=True)
        length = min(map(len, grids))
        results[name] = TrainingResult(grids[0][:length], np.stack([row[:length] for row in rows]), seeds, all(finite))
    return results
