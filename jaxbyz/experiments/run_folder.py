"""A run's folder: config.json, metrics.npz, policy.npz, environment.json; written whole or not at all.

metrics.npz is written last: a folder that has it is finished, one that has only config.json can be resumed. Until then
it may have a `.lock`.
Files are read as if a stranger had made them: JSON and plain arrays of bounded size, nothing that runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.errors import UsageError, first_line
from jaxbyz.experiments.config import OUTPUTS, Config, from_dict, to_dict

FORMAT = 1
LOCK = ".lock"  # locked by whoever works in a run folder
BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # what locking says of a file that is locked
JSON_BYTES = 2**20  # config.json and its like are a few kilobytes
ARRAY_BYTES = 4 * 2**30  # all arrays of one file, unpacked
# Names in metrics.npz where they differ from `Metrics`; `trajectories` is made cumulative.
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


class BusyError(UsageError):
    """Another process has claimed the folder."""


def create_folder(path: str | Path) -> Path:
    """Make a folder for a run, refusing one that already holds a run."""
    folder = Path(path)
    if unfinished(folder):
        raise UsageError(f"out={path}: the folder holds an unfinished run; `jaxbyz resume {path}` continues it")
    if (folder / "config.json").exists():
        raise UsageError(f"out={path}: the folder already holds a run; choose another or remove it")
    return make_folder(folder)


def make_folder(path: str | Path) -> Path:
    """Make a folder if there is none."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out={path}: is a file; a folder is needed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out={path}: cannot be created ({error.strerror})") from error
    return folder


def unfinished(folder: Path) -> bool:
    """Whether the folder holds a run that was begun and not finished."""
    return (folder / "config.json").exists() and not (folder / "metrics.npz").exists()


def finished(folder: Path) -> bool:
    """Whether the folder holds a run that was finished."""
    return (folder / "config.json").exists() and (folder / "metrics.npz").exists()


def writable(folder: Path) -> bool:
    """Whether this process may make files there."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep others from working in the folder; the claim ends with the process, however that ends.

    The lock is on a file, `.lock`: network file systems do not lock folders. It goes when the run is finished, and
    whoever then still has the old file finds out in `_lock`.
    """
    handle = _lock(folder)
    try:
        yield
    finally:
        if finished(folder):
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()
        os.close(handle)


def _lock(folder: Path) -> int:
    """The open lock file, locked; again if somebody removed it between opening and locking."""
    while True:
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(handle, folder / LOCK):
                return handle
        except OSError as error:
            os.close(handle)
            if error.errno in BUSY:
                raise BusyError(f"{folder}: another process is working in this folder") from error
            raise UsageError(f"{folder}: files cannot be locked there ({error.strerror}); choose another") from error
        os.close(handle)


def _is_file(handle: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a picture or a page to `path`, which a user chose: its folder is made, what goes wrong is one line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(f"out={path}: cannot be written ({error.strerror})") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary file, so that a reader never sees half of it."""
    _atomically(path, lambda file: file.write((json.dumps(value, indent=2) + "\n").encode()))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write compressed arrays through a temporary file."""
    _atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def _atomically(path: Path, write: Any) -> None:
    """Write a temporary file and move it into place: a full disk or a kill leaves what was there before."""
    try:
        _replace(path, write)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); nothing was overwritten") from error


def _replace(path: Path, write: Any) -> None:
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
        joined[name] = np.concatenate([np.asarray(getattr(part, name)) for part in parts], axis=1)
    joined["trajectories"] = np.cumsum(joined["batch"], axis=1)
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
    """Read a run folder. Nothing in the files is executed: JSON and plain arrays only.

    Its rules and attacks need not be registered here, unless they are to be run again.
    """
    folder = Path(path)
    config = load_config(folder, names=False)
    if unfinished(folder):
        raise UsageError(f"{path}: the run is not finished (metrics.npz missing); `jaxbyz resume {path}` continues it")
    metrics = read_arrays(folder / "metrics.npz")
    policy = read_arrays(folder / "policy.npz") if (folder / "policy.npz").exists() else {}
    _check_metrics(folder / "metrics.npz", metrics, config)
    _check_policy(folder / "policy.npz", policy, config)
    described = folder / "environment.json"
    return RunData(folder, config, metrics, policy, read_json(described) if described.exists() else {})


def _check_metrics(path: Path, metrics: dict[str, np.ndarray], config: Config) -> None:
    """[seeds, iterations, …] numbers, at least those that say how a run went."""
    if missing := sorted({"returns", "trajectories", "finite"} - set(metrics)):
        raise UsageError(f"{path}: {missing[0]} is missing")
    wanted = (config.seeds, *metrics["returns"].shape[1:2])
    for name, values in sorted(metrics.items(), key=lambda item: item[0] != "returns"):
        if values.dtype.kind not in "biuf" or values.ndim < 2 or values.shape[:2] != wanted or 0 in wanted:
            raise UsageError(
                f"{path}: {name} is {values.dtype}{list(values.shape)}, numbers [seeds, iterations] are due"
            )


def _check_policy(path: Path, policy: dict[str, np.ndarray], config: Config) -> None:
    """[seeds, K or 1, D] numbers under the three outputs' names; none at all for a run that never was finite."""
    for name in OUTPUTS if policy else ():
        values = policy.get(name)
        if values is None:
            raise UsageError(f"{path}: {name} is missing")
        fits = values.ndim == 3 and values.shape[0] == config.seeds and values.shape[1] in (1, config.agents)
        if values.dtype.kind != "f" or not fits:
            raise UsageError(
                f"{path}: {name} is {values.dtype}{list(values.shape)}, numbers [seeds, agents, D] are due"
            )


def load_config(path: str | Path, *, names: bool = True) -> Config:
    """The configuration of a run folder, finished or not; `names` as in `config.check`."""
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: no such folder")
    if not (folder / "config.json").exists():
        raise UsageError(f"{path}: no run here (config.json missing); `jaxbyz train --out {path}` makes one")
    values = read_json(folder / "config.json")
    version = values.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise UsageError(f"{path}: written by a newer jaxbyz (format {version}, this one reads {FORMAT})")
    return from_dict(values, names=names)


def read_json(path: Path, limit: int = JSON_BYTES) -> dict[str, Any]:
    """One JSON object from a file of at most `limit` bytes."""
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
        if len(text) > limit:
            raise UsageError(f"{path}: larger than the {limit} bytes that such a file may have")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path}: not readable as JSON ({first_line(error)})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: one JSON object is expected")
    return value


def read_arrays(path: Path, limit: int = ARRAY_BYTES) -> dict[str, np.ndarray]:
    """The arrays of an .npz file of at most `limit` bytes unpacked; object arrays, which are pickles, are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > limit:
            raise UsageError(f"{path}: {size} bytes unpacked are more than the {limit} that such a file may have")
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        if strange := [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]:
            raise ValueError(f"{strange[0]} is no array")
        return arrays
    except UsageError:
        raise
    except Exception as error:  # zip, header, memory and value errors alike: the file is damaged or not ours
        raise UsageError(f"{path}: damaged or not a file of arrays ({type(error).__name__})") from error
