"""The folder of a run: config.json, metrics.npz, policy.npz, state.npz, environment.json, run.json.

A folder with config.json holds a run. metrics.npz is written last: with it the run is finished, without it the run can
be resumed. Whoever reads a folder gets what `load_config` and `load_run` have checked, or one line about the first file
that is not as a run writes it.
"""

from __future__ import annotations

import os
import platform
import shlex
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxbyz
from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import OUTPUTS, Config
from jaxbyz.configuration.resolving import from_dict, to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, read_json, reason, write_arrays, write_json
from jaxbyz.registry import import_options
from jaxbyz.runs import run_record
from jaxbyz.runs.partial_results import PROGRESS, read_partial
from jaxbyz.trained.methods import PolicyMethods

RUN_FORMAT = 2
STATE = "state.npz"  # of a finished run, from which a longer one continues
EVALUATIONS = "evaluations.npz"
METRICS = Metrics._fields
RUN_FILES = ("config.json", "environment.json", "metrics.npz", "policy.npz", STATE)
PER_AGENT = ("shares", "byzantine")  # metrics with one value per agent
NAMED_RUNS = 3  # in a message about a folder of runs
MAX_COUNT = 2**53  # whole numbers up to here are exact as floats
PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax", "chex", "numpy")


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
        record: name, tags, time of the start and duration, as in run.json.
        evaluations: `iteration`, `[n]`, and `returns`, `[n, seeds]`, if the policy was evaluated during training.
        finished: whether the run has finished.
    """

    folder: Path
    config: Config
    metrics: dict[str, np.ndarray]
    policy: dict[str, np.ndarray]
    environment: dict[str, Any]
    record: Mapping[str, Any] = MappingProxyType({})
    evaluations: Mapping[str, np.ndarray] = MappingProxyType({})
    finished: bool = True


class RunData(RunFiles, PolicyMethods):
    """A run that was loaded from its folder: its contents, and what can be done with the learnt policy."""

    def __repr__(self) -> str:
        c, state = self.config, "finished" if self.finished else "unfinished"
        who = f"{c.agents} agents, {c.byzantine} Byzantine ({c.attack})"
        return f"<{state} run in {self.folder}: {c.algorithm} on {c.env}, {who}, {c.seeds} seeds>"


def has_run(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return _exists(folder / "config.json")


def _exists(path: Path) -> bool:
    """Return whether there is something of this name, if only a broken link.

    Raises:
        UsageError: if the folder cannot be entered, or the name is too long.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({reason(error)})") from error
    return True


def is_finished(folder: Path) -> bool:
    """Return whether the folder holds a finished run."""
    return has_run(folder) and _exists(folder / "metrics.npz")


def is_writable(folder: Path) -> bool:
    """Return whether this process may create files in the folder."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def make_folder(path: str | Path) -> Path:
    """Create a folder unless it exists."""
    folder = Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"out={path}: is a file; a folder is needed")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out={path}: cannot be created ({reason(error)})") from error
    return folder


def refuse_run(path: str | Path) -> None:
    """Raise a UsageError if the folder already holds a run, or a file that a run would write."""
    folder = Path(path)
    if is_finished(folder):
        raise UsageError(f"out={path}: the folder already holds a run; choose another or remove it")
    if has_run(folder):
        raise UsageError(f"out={path}: the folder holds an unfinished run; `jaxbyz resume {path}` continues it")
    if found := [name for name in RUN_FILES if _exists(folder / name)]:
        raise UsageError(f"out={path}: the folder holds {found[0]} of something else; choose another folder")


def write_start(folder: Path, config: Config) -> None:
    """Write the files of a run that starts; config.json first, because it makes the folder a run."""
    write_config(folder, config)
    write_environment(folder)


def write_config(folder: Path, config: Config) -> None:
    """Write config.json."""
    write_json(folder / "config.json", {"format": RUN_FORMAT, **to_dict(config)})


def write_environment(folder: Path) -> None:
    """Write environment.json unless it is there: a run that was killed as it started may lack it."""
    if not _exists(folder / "environment.json"):
        write_json(folder / "environment.json", describe_environment())


def write_results(folder: Path, metrics: dict[str, np.ndarray], policy: dict[str, np.ndarray]) -> None:
    """Write the files of a run that has finished; metrics.npz last, because it marks the run as finished."""
    write_arrays(folder / "policy.npz", policy)
    write_arrays(folder / "metrics.npz", metrics)


def describe_environment() -> dict[str, Any]:
    """Return versions and devices for environment.json."""
    versions = {"jaxbyz": jaxbyz.__version__}  # of this code, which need not be installed
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


def load_config(path: str | Path, *, names: bool = True, to_continue: bool = False) -> Config:
    """Read the configuration of a run folder, finished or not.

    Args:
        path: the run folder.
        names: passed to `config.check`.
        to_continue: refuse a run of an earlier version as well, whose results can be read but whose state cannot.
    """
    folder = Path(path)
    if not _exists(folder):
        raise UsageError(f"{path}: no such folder")
    if folder.is_file():
        raise UsageError(f"{path}: is a file; name the folder of a run")
    if not has_run(folder):
        raise UsageError(_missing_run(folder))
    values = read_json(folder / "config.json")
    version = values.get("format", RUN_FORMAT)
    if not isinstance(version, int):
        raise UsageError(f"{folder / 'config.json'}: format={version!r}: must be a whole number")
    if version > RUN_FORMAT or (to_continue and version < RUN_FORMAT):
        age = "a newer" if version > RUN_FORMAT else "an older"
        raise UsageError(f"{path}: written by {age} jaxbyz (format {version}, this one reads {RUN_FORMAT})")
    try:
        return from_dict(values, names=names)
    except UsageError as error:
        imported = shlex.join(import_options(run_record.read(folder).get("imported", ())))
        hint = f"; the run was started with {imported}" if imported else ""
        raise UsageError(f"{folder / 'config.json'}: {error}{hint}") from error


def _missing_run(folder: Path) -> str:
    """Return the message about a folder that holds no run: it names runs below it, if there are any."""
    below = sorted(file.parent for pattern in ("*", "*/*") for file in folder.glob(f"{pattern}/config.json"))
    if not below:
        return f"{folder}: no run here (config.json missing); `jaxbyz train --out {folder}` makes one"
    others = "" if len(below) <= NAMED_RUNS else f", … ({len(below)} in all)"
    return f"{folder}: is a folder of runs; name one of them: {', '.join(map(str, below[:NAMED_RUNS]))}{others}"


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def load_run(path: str | Path, *, unfinished: bool = True, log: Callable[[str], None] = _warn) -> RunData:
    """Read a run from its folder.

    The rules and attacks of the run need not be registered in this process, unless they are to be used again.

    Args:
        path: the run folder.
        unfinished: also accept a run that is not finished; its metrics and policies are those that it last wrote.
        log: receives a line if the run is not finished; by default it is a warning.

    Raises:
        UsageError: if there is no such run, or a file is damaged or not one of a run.
    """
    folder = Path(path)
    config = load_config(folder, names=False)
    finished = is_finished(folder)
    partial = read_partial(folder, config) if unfinished and not finished else None
    if finished:
        metrics, policy = read_arrays(folder / "metrics.npz"), _read_if_there(read_arrays, folder / "policy.npz")
    elif partial is not None:
        metrics, policy = partial
        log(f"{path} is not finished: what follows is its state after iteration {partial[0]['batch'].shape[1]}")
    else:
        wrote_nothing = " and has written no results yet" if unfinished else " (metrics.npz missing)"
        raise UsageError(f"{path}: the run is not finished{wrote_nothing}; `jaxbyz resume {path}` continues it")
    _check_policy(folder / ("policy.npz" if finished else PROGRESS), policy, config)
    _check_metrics(folder / ("metrics.npz" if finished else PROGRESS), metrics, config)
    environment = _read_if_there(read_json, folder / "environment.json")
    evaluations = _read_if_there(read_arrays, folder / EVALUATIONS)
    return RunData(folder, config, metrics, policy, environment, run_record.read(folder), evaluations, finished)


def _read_if_there(read: Callable[[Path], Any], path: Path) -> Any:
    """Return the contents of a file that a run need not have, or an empty table."""
    return read(path) if _exists(path) else {}


def _check_metrics(path: Path, metrics: dict[str, np.ndarray], config: Config) -> None:
    """Refuse metrics that a run does not write: a name, a shape, or numbers that cannot be."""
    if missing := [name for name in (*METRICS, "trajectories") if name not in metrics]:
        raise UsageError(f"{path}: {missing[0]} is missing")
    returns = metrics["returns"]
    iterations = returns.shape[1] if returns.ndim == 2 else 0
    for name, values in sorted(metrics.items(), key=lambda item: item[0] != "returns"):
        per_agent = (config.agents,) if name in PER_AGENT else ()
        expected = (config.seeds, iterations, *per_agent)
        # A metric of another version may have any further axes.
        fits = values.shape == expected if name in (*METRICS, "trajectories") else values.shape[:2] == expected[:2]
        if values.dtype.kind not in "biuf" or not fits or 0 in expected:
            shape = f"[seeds={config.seeds}, iterations{f', agents={config.agents}' if per_agent else ''}]"
            raise UsageError(f"{path}: {name} is {values.dtype}{list(values.shape)}; it must be numbers {shape}")
    for name, least, most in (("batch", 1, MAX_COUNT), ("finite", 0, 1), ("coin", 0, 1)):
        if not ((metrics[name] >= least) & (metrics[name] <= most)).all():
            raise UsageError(f"{path}: {name} has values that are not from {least} to {most}")
    if not (metrics["trajectories"] == np.cumsum(metrics["batch"], axis=1)).all():
        raise UsageError(f"{path}: trajectories are not the sums of batch")


def _check_policy(path: Path, policy: dict[str, np.ndarray], config: Config) -> None:
    """Refuse policies that are not numbers `[seeds, K or 1, D]`. A run that was never finite has none at all.

    Whether D is the size of the policy is checked by those that use it (`evaluation.check_parameters`), because a
    policy can only be built if its components are registered.
    """
    for name in OUTPUTS if policy else ():
        values = policy.get(name)
        if values is None:
            raise UsageError(f"{path}: {name} is missing")
        fits = values.ndim == 3 and values.shape[0] == config.seeds and values.shape[1] in (1, config.agents)
        fits = fits and values.shape == policy["last"].shape and values.size > 0
        if values.dtype.kind != "f" or not fits:
            raise UsageError(
                f"{path}: {name} is {values.dtype}{list(values.shape)}; it must be numbers [seeds, agents, D]"
            )
