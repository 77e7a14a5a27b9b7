"""The folder of a run: config.json, metrics.npz, policy.npz, environment.json.

A folder with config.json holds a run. metrics.npz is written last: with it the run is finished, without it the run can
be resumed.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.experiments.config import OUTPUTS, Config, from_dict, to_dict
from jaxbyz.experiments.policy_methods import PolicyMethods
from jaxbyz.files import read_arrays, read_json, write_arrays, write_json

RUN_FORMAT = 1
PACKAGES = ("jaxbyz", "jax", "jaxlib", "flax", "optax", "gymnax", "chex", "numpy")


class RunFiles(NamedTuple):
    """The contents of a run folder.

    Attributes:
        folder: where it is.
        config: the configuration of the run.
        metrics: the fields of `Metrics` and the cumulative `trajectories`, `[seeds, iterations]` each (`shares` and
            `byzantine`: `[seeds, iterations, K]`).
        policy: `last`, `sampled` and `best`, `[seeds, K, D]` each (`[seeds, 1, D]` with a server). A seed that became
            non-finite has the policies of the end of the last segment before that, or NaN; if all seeds did so in the
            first segment, this is empty.
        environment: versions and devices that the run used.
    """

    folder: Path
    config: Config
    metrics: dict[str, np.ndarray]
    policy: dict[str, np.ndarray]
    environment: dict[str, Any]


class RunData(RunFiles, PolicyMethods):
    """A run that was loaded from its folder: its contents, and what can be done with the learnt policy."""


def has_run(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return (folder / "config.json").exists()


def is_finished(folder: Path) -> bool:
    """Return whether the folder holds a finished run."""
    return has_run(folder) and (folder / "metrics.npz").exists()


def is_writable(folder: Path) -> bool:
    """Return whether this process may create files in the folder."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def make_folder(path: str | Path) -> Path:
    """Create a folder unless it exists."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out={path}: is a file; a folder is needed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out={path}: cannot be created ({error.strerror})") from error
    return folder


def refuse_run(path: str | Path) -> None:
    """Raise a UsageError if the folder already holds a run."""
    if is_finished(Path(path)):
        raise UsageError(f"out={path}: the folder already holds a run; choose another or remove it")
    if has_run(Path(path)):
        raise UsageError(f"out={path}: the folder holds an unfinished run; `jaxbyz resume {path}` continues it")


def write_start(folder: Path, config: Config) -> None:
    """Write the files of a run that starts; config.json last, because it makes the folder a run."""
    write_json(folder / "environment.json", describe_environment())
    write_json(folder / "config.json", {"format": RUN_FORMAT, **to_dict(config)})


def write_results(folder: Path, metrics: dict[str, np.ndarray], policy: dict[str, np.ndarray]) -> None:
    """Write the files of a run that has finished; metrics.npz last, because it marks the run as finished."""
    write_arrays(folder / "policy.npz", policy)
    write_arrays(folder / "metrics.npz", metrics)


def describe_environment() -> dict[str, Any]:
    """Return versions and devices for environment.json."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = jax.devices()
    return {
        "format": RUN_FORMAT,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "device": devices[0].device_kind,
        "platform": devices[0].platform,
        "devices": len(devices),
        "versions": versions,
    }


def load_config(path: str | Path, *, names: bool = True) -> Config:
    """Read the configuration of a run folder, finished or not. `names` is passed to `config.check`."""
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: no such folder")
    if not has_run(folder):
        raise UsageError(f"{path}: no run here (config.json missing); `jaxbyz train --out {path}` makes one")
    values = read_json(folder / "config.json")
    version = values.get("format", RUN_FORMAT)
    if not isinstance(version, int):
        raise UsageError(f"{folder / 'config.json'}: format={version!r}: must be a whole number")
    if version > RUN_FORMAT:
        raise UsageError(f"{path}: written by a newer jaxbyz (format {version}, this one reads {RUN_FORMAT})")
    return from_dict(values, names=names)


def load_run(path: str | Path) -> RunData:
    """Read a finished run from its folder.

    The rules and attacks of the run need not be registered in this process, unless they are to be used again.

    Raises:
        UsageError: if there is no finished run, or a file is damaged or not one of a run.
    """
    folder = Path(path)
    config = load_config(folder, names=False)
    if not is_finished(folder):
        raise UsageError(f"{path}: the run is not finished (metrics.npz missing); `jaxbyz resume {path}` continues it")
    metrics = read_arrays(folder / "metrics.npz")
    policy = read_arrays(folder / "policy.npz") if (folder / "policy.npz").exists() else {}
    _check_metrics(folder / "metrics.npz", metrics, config)
    _check_policy(folder / "policy.npz", policy, config)
    environment = folder / "environment.json"
    return RunData(folder, config, metrics, policy, read_json(environment) if environment.exists() else {})


def _check_metrics(path: Path, metrics: dict[str, np.ndarray], config: Config) -> None:
    """Refuse metrics that are not numbers `[seeds, iterations, …]`, or that lack the essential ones."""
    if missing := sorted({"returns", "trajectories", "finite"} - set(metrics)):
        raise UsageError(f"{path}: {missing[0]} is missing")
    expected = (config.seeds, *metrics["returns"].shape[1:2])
    for name, values in sorted(metrics.items(), key=lambda item: item[0] != "returns"):
        if values.dtype.kind not in "biuf" or values.ndim < 2 or values.shape[:2] != expected or 0 in expected:
            raise UsageError(
                f"{path}: {name} is {values.dtype}{list(values.shape)}; it must be numbers [seeds, iterations]"
            )


def _check_policy(path: Path, policy: dict[str, np.ndarray], config: Config) -> None:
    """Refuse policies that are not numbers `[seeds, K or 1, D]`. A run that was never finite has none at all."""
    for name in OUTPUTS if policy else ():
        values = policy.get(name)
        if values is None:
            raise UsageError(f"{path}: {name} is missing")
        fits = values.ndim == 3 and values.shape[0] == config.seeds and values.shape[1] in (1, config.agents)
        if values.dtype.kind != "f" or not fits:
            raise UsageError(
                f"{path}: {name} is {values.dtype}{list(values.shape)}; it must be numbers [seeds, agents, D]"
            )
