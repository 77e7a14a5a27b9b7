"""A run's folder: config.json, metrics.npz, policy.npz, environment.json; written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.config import Config, from_dict, to_dict
from jaxbyz.registry import UsageError

FORMAT = 1
# Names in metrics.npz where they differ from `Metrics`; `trajectories` is made cumulative.
RENAMED = {"returns": "return", "worst": "worst_agent"}
PACKAGES = ("jaxbyz", "jax", "jaxlib", "flax", "optax", "gymnax", "chex", "numpy")


class RunData(NamedTuple):
    """What a run folder holds.

    metrics: name -> [seeds, iterations] (shares, byzantine: [seeds, iterations, K])
    policy:  last, sampled, best -> [seeds, K, D] ([seeds, 1, D] with a server)
    """

    folder: Path
    config: Config
    metrics: dict[str, np.ndarray]
    policy: dict[str, np.ndarray]
    environment: dict[str, Any]


def create_folder(path: str | Path) -> Path:
    """Make a folder for a run, refusing one that already holds a run."""
    folder = Path(path)
    if (folder / "config.json").exists():
        raise UsageError(f"out={path}: the folder already holds a run; choose another or remove it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out={path}: is a file; a folder is needed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out={path}: cannot be created ({error.strerror})") from error
    return folder


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary file, so that a reader never sees half of it."""
    _atomically(path, lambda file: file.write((json.dumps(value, indent=2) + "\n").encode()))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write compressed arrays through a temporary file."""
    _atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def _atomically(path: Path, write: Any) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def join_metrics(parts: list[Metrics]) -> dict[str, np.ndarray]:
    """Segments [seeds, n] one after another, under the names the files use."""
    joined = {}
    for name in Metrics._fields:
        whole = np.concatenate([np.asarray(getattr(part, name)) for part in parts], axis=1)
        joined[RENAMED.get(name, name)] = whole
    joined["trajectories"] = np.cumsum(joined["trajectories"], axis=1)
    return joined


def describe_environment() -> dict[str, Any]:
    """Versions and device, for environment.json."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = jax.devices()
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "device": devices[0].device_kind,
        "platform": devices[0].platform,
        "devices": len(devices),
        "versions": versions,
    }


def write_config(folder: Path, config: Config) -> None:
    """config.json: enough to run it again."""
    write_json(folder / "config.json", {"format": FORMAT, **to_dict(config)})


def load_run(path: str | Path) -> RunData:
    """Read a run folder. Nothing in the files is executed: JSON and plain arrays only."""
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: no such folder")
    missing = [name for name in ("config.json", "metrics.npz") if not (folder / name).exists()]
    if missing:
        raise UsageError(
            f"{path}: no finished run here ({', '.join(missing)} missing); run `jaxbyz train --out {path}`"
        )
    values = _read_json(folder / "config.json")
    if values.get("format", FORMAT) > FORMAT:
        raise UsageError(f"{path}: written by a newer jaxbyz (format {values['format']}, this one reads {FORMAT})")
    described = folder / "environment.json"
    return RunData(
        folder,
        from_dict(values),
        _read_arrays(folder / "metrics.npz"),
        _read_arrays(folder / "policy.npz") if (folder / "policy.npz").exists() else {},
        _read_json(described) if described.exists() else {},
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: one JSON object is expected")
    return value


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except Exception as error:  # zip, header and value errors alike: the file is damaged or not ours
        raise UsageError(f"{path}: damaged or not a file of arrays ({type(error).__name__})") from error
