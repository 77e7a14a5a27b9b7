"""One training of the reproduction and its small file; files of the same training with other seeds are joined.

A part's file is NAME.sFIRST-LAST.json in a folder of the setting: configuration, machine, and the return of every seed
every 100 trajectories. A finished file is never trained again, and files made on several machines add up.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.experiments import run as experiment
from jaxbyz.experiments.config import Config, resolve, to_dict
from jaxbyz.experiments.reporters import Reporter
from jaxbyz.experiments.run_folder import describe_environment, read_json, write_json
from jaxbyz.report.tables import smoothed
from jaxbyz.reproduction.figures import ENVIRONMENTS, SETTINGS, Curve

FORMAT = 1


class Part(NamedTuple):
    """A finished training: trajectories [G], return [seeds, G], the seeds, and whether all stayed finite."""

    x: np.ndarray
    y: np.ndarray
    seeds: list[int]
    finite: bool


def configuration(setting: str, environment: str, curve: Curve, seeds: int, seed: int, trajectories: int) -> Config:
    """The configuration behind a curve."""
    return resolve(
        SETTINGS[setting][environment],
        **{
            **curve.options(),
            "env": ENVIRONMENTS[environment],
            "seeds": seeds,
            "seed": seed,
            "trajectories": trajectories,
        },
    )


def part_file(folder: Path, name: str, config: Config) -> Path:
    """Where the part's file is."""
    return folder / f"{name}.s{config.seed}-{config.seed + config.seeds - 1}.json"


def run_part(folder: Path, name: str, config: Config, reporter: Reporter | None = None) -> bool:
    """Train a part unless its file is there; says whether it had to be trained."""
    path = part_file(folder, name, config)
    if path.exists():
        kept = _read(path)
        if kept["config"] != to_dict(config):
            changed = [key for key, value in to_dict(config).items() if kept["config"].get(key) != value]
            raise UsageError(f"{path}: made with other options ({', '.join(changed)}); choose another folder")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    _, record = recorded(name, config, reporter)
    write_json(path, {"format": FORMAT, **record})
    return True


def recorded(name: str, config: Config, reporter: Reporter | None = None) -> tuple[experiment.Experiment, dict]:
    """Train, and put into plain values what a small file keeps of it."""
    begin = time.monotonic()
    done = experiment.run(config, None, reporter)
    x, y = smoothed(done.metrics)
    return done, {
        "name": name,
        "config": to_dict(config),
        "environment": describe_environment(),
        "seconds": round(time.monotonic() - begin, 1),
        "finite": done.finite,
        "trajectories": [int(value) for value in x],
        "return": [[round(float(value), 2) for value in row] for row in y],
    }


def _read(path: Path) -> dict:
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise UsageError(f"{path}: results of another version (format {data.get('format')}, this one reads {FORMAT})")
    return data


def load_parts(folder: Path) -> dict[str, Part]:
    """All finished parts of a folder; the same seed twice counts once, and the shortest run decides the length."""
    found: dict[str, dict[int, tuple[np.ndarray, np.ndarray, bool]]] = {}
    for path in sorted(folder.glob("*.json")):
        data = _read(path)
        x = np.array(data["trajectories"])
        for offset, row in enumerate(data["return"]):
            seeds = found.setdefault(data["name"], {})
            seeds.setdefault(data["config"]["seed"] + offset, (x, np.array(row), data["finite"]))
    parts = {}
    for name, seeds in found.items():
        length = min(len(x) for x, _, _ in seeds.values())
        numbers = sorted(seeds)
        rows = [seeds[number] for number in numbers]
        parts[name] = Part(
            rows[0][0][:length], np.stack([y[:length] for _, y, _ in rows]), numbers, all(ok for _, _, ok in rows)
        )
    return parts
