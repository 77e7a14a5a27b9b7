"""Result files of the benchmark: one small JSON file per cell, read back with every part checked, and merged.

A file names its suite with the hash, the cell, the configuration, the versions and the machine, the seeds, and a hash
of all of this. It holds the learning curve of every seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import Cell
from jaxbyz.benchmark.suite import Suite, content_hash
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import json_text, read_json, write_text
from jaxbyz.report.statistics import window_averages
from jaxbyz.runs.run_folder import describe_environment, make_folder

RESULT_FORMAT = 1
POINTS = 40  # of a learning curve
FINAL_SHARE_OF_BUDGET = 0.1  # the last tenth of the budget defines the final return
CERTIFICATE = "certificate"  # first part of the names of files with certificates
KEYS = {
    "format": int, "suite": dict, "cell": dict, "options": dict, "config": dict, "environment": dict, "seeds": list,
    "seconds": float, "finite": list, "average": list, "final": list, "trajectories": list, "return": list,
    "bytes_sent": float, "hash": str,
}  # fmt: skip
CERTIFICATE_KEYS = {"federation": str, "rule": str, "certificate": dict}


class Result(NamedTuple):
    """The result of a cell.

    Attributes:
        cell: which training.
        options: of the entry.
        config: the whole configuration, as JSON values.
        environment: versions and machine.
        seconds: wall time of the training, compilation included; the share of it if cells were trained together.
        together: whether the cell was trained in one program with others.
        finite: `[seeds]`, whether a seed stayed finite.
        average: `[seeds]`, mean honest return over the whole budget; NaN if not finite.
        final: `[seeds]`, mean honest return over the last tenth of the budget; NaN if not finite.
        trajectories: `[G]`, trajectories per agent.
        returns: `[seeds, G]`, mean honest return since the previous point; NaN where a seed has sampled nothing.
        bytes_sent: by all agents, per seed.
        hash: of the contents of the file.
    """

    cell: Cell
    options: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    seconds: float
    together: bool
    finite: np.ndarray
    average: np.ndarray
    final: np.ndarray
    trajectories: np.ndarray
    returns: np.ndarray
    bytes_sent: float
    hash: str


def result_path(folder: Path, cell: Cell) -> Path:
    """Return the path of the file of a cell."""
    return folder / f"{cell.name}.json"


def measurements(config: Config, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what a file keeps of the metrics of a training, as `Experiment.metrics` has them.

    Coins differ between seeds, so seeds sample different numbers of trajectories. Only the budget counts. A seed of
    FedPG-BR may end below it (`jaxbyz.training.most_iterations`); then everything that it sampled counts.
    """
    budget = config.trajectories
    finite = np.all(metrics["finite"].astype(bool), axis=1)
    edges = np.unique(np.linspace(0, budget, POINTS + 1).round())
    curves = window_averages(metrics, edges[:-1], edges[1:])
    ends = np.minimum(metrics["trajectories"][:, -1:], float(budget))
    starts = ends * np.array([0.0, 1 - FINAL_SHARE_OF_BUDGET])
    average, final = np.where(finite, window_averages(metrics, starts, np.repeat(ends, 2, axis=1)).T, np.nan)

    def rounded(values: np.ndarray) -> list[float]:
        return [float(f"{value:.6g}") for value in values]

    return {
        "seeds": list(range(config.seed, config.seed + config.seeds)),
        "finite": finite.tolist(),
        "average": rounded(average),
        "final": rounded(final),
        "trajectories": [int(x) for x in edges[1:]],
        "return": [rounded(row) for row in curves],
        "bytes_sent": float(np.sum(metrics["bytes_sent"]) / config.seeds),
    }


def write_result(
    folder: Path,
    suite: Suite,
    cell: Cell,
    options: Mapping[str, Any],
    config: Config,
    metrics: dict[str, np.ndarray],
    seconds: float,
    *,
    together: bool = False,
) -> None:
    """Write the file of a cell.

    Args:
        folder: where the files are.
        suite: the suite.
        cell: which training.
        options: of the entry.
        config: the whole configuration.
        metrics: as `Experiment.metrics` has them.
        seconds: wall time of the training, or its share of it.
        together: whether the cell was trained in one program with others, which rounds differently.
    """
    content = {
        "format": RESULT_FORMAT,
        "suite": suite.label,
        "cell": cell._asdict(),
        "options": dict(options),
        "config": to_dict(config),
        "environment": describe_environment(),
        "seconds": round(seconds, 1),
        "together": together,
        **measurements(config, metrics),
    }
    write_hashed(result_path(folder, cell), content)


def write_hashed(path: Path, content: dict[str, Any]) -> None:
    """Write JSON values with their hash on one line."""
    written = json.loads(json_text(content))  # NaN, for example, is null in the file
    write_text(path, json_text({**written, "hash": hash_of(written)}) + "\n")


def hash_of(content: Mapping[str, Any]) -> str:
    """Return the hash of the contents of a file, without the hash that the file names."""
    return content_hash({key: value for key, value in content.items() if key != "hash"})


def read_hashed(path: Path, suite: Suite | None) -> dict[str, Any]:
    """Read a file of the benchmark; refuse another format, another suite, and contents that do not fit the hash."""
    content = read_json(path)
    if content.get("format") != RESULT_FORMAT:
        raise UsageError(
            f"{path}: results of another version (format {content.get('format')}, this one reads {RESULT_FORMAT})"
        )
    if content.get("hash") != hash_of(content):
        raise UsageError(f"{path}: the contents do not fit the hash; the file was changed after it was written")
    named = content.get("suite")
    if suite is not None and named != suite.label:
        other = f"{named.get('name')} ({named.get('hash')})" if isinstance(named, dict) else named
        raise UsageError(f"{path}: made with suite {other}, not with {suite.name} ({suite.hash})")
    return content


def check_kinds(path: Path, content: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Refuse contents of a file that lack a key or have a value of another type; whole numbers may stand for floats."""
    for key, kind in kinds.items():
        if not isinstance(content.get(key), (float, int) if kind is float else kind):
            raise UsageError(f"{path}: {key} is missing or not of type {kind.__name__}")


def changed_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the options in which two configurations, as JSON values, differ.

    Options that are newer than a file had their defaults then.
    """
    defaults = to_dict(Config())
    return [key for key in defaults if first.get(key, defaults[key]) != second.get(key, defaults[key])]


def check_config(path: Path, config: Config, before: Mapping[str, Any]) -> None:
    """Refuse a file of another configuration."""
    if changed := changed_options(to_dict(config), before):
        raise UsageError(f"{path}: made with other options ({', '.join(changed)}); choose another folder")


def read_result(path: Path, suite: Suite | None = None) -> Result:
    """Read the file of a cell.

    Raises:
        UsageError: if the file is damaged, was changed, or belongs to another suite.
    """
    content = read_hashed(path, suite)
    check_kinds(path, content, KEYS)
    check_kinds(path, content["cell"], dict.fromkeys(Cell._fields, str))
    seeds, points = len(content["seeds"]), len(content["trajectories"])
    shapes = {
        "finite": (seeds,), "average": (seeds,), "final": (seeds,), "trajectories": (points,), "return": (seeds, points)
    }  # fmt: skip
    try:
        cell = Cell(**content["cell"])
        arrays = {name: np.array(content[name], float) for name in shapes}  # null becomes NaN
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: not a result of the benchmark ({error})") from error
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise UsageError(f"{path}: {name} has shape {arrays[name].shape}; it must be {shape}")
    return Result(
        cell,
        content["options"],
        content["config"],
        content["environment"],
        float(content["seconds"]),
        content.get("together") is True,  # older files do not say it
        arrays["finite"] == 1,
        arrays["average"],
        arrays["final"],
        arrays["trajectories"],
        arrays["return"],
        float(content["bytes_sent"]),
        content["hash"],
    )


def result_files(folder: Path) -> list[Path]:
    """Return the files of all cells in a folder, in alphabetical order."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith(f"{CERTIFICATE}."))


def load_results(folder: str | Path, suite: Suite) -> dict[Cell, Result]:
    """Read all results of a folder.

    Raises:
        UsageError: if a file is damaged or belongs to another suite, or there is none.
    """
    found = [read_result(path, suite) for path in result_files(Path(folder))]
    if not found:
        raise UsageError(f"{folder}: no results here; `jaxbyz benchmark run {suite.name} --out {folder}` makes some")
    return {result.cell: result for result in found}


def load_certificates(folder: str | Path, suite: Suite) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the certificates of a folder: (federation, rule) -> fields of `Certificate`.

    Raises:
        UsageError: if a file was changed, belongs to another suite, or is not a certificate.
    """
    found = {}
    for path in sorted(Path(folder).glob(f"{CERTIFICATE}.*.json")):
        content = read_hashed(path, suite)
        check_kinds(path, content, CERTIFICATE_KEYS)
        check_kinds(path, content["certificate"], {"verdict": str, "reason": str})
        found[content["federation"], content["rule"]] = content["certificate"]
    return found


def merge(folders: Sequence[str | Path], out: str | Path, suite: Suite, log: Callable[[str], None]) -> int:
    """Copy the results of several machines into one folder and return how many files it got.

    Of several results of the same cell the first is kept, because other machines round differently.

    Raises:
        UsageError: if a file is damaged or belongs to another suite, or two results of a cell have different
            configurations; nothing was written then.
    """
    chosen: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in [*([out] if Path(out).is_dir() else []), *folders]:
        if not Path(folder).is_dir():
            raise UsageError(f"{folder}: no such folder")
        for path in sorted(Path(folder).glob("*.json")):
            content = read_hashed(path, suite)
            if path.name not in chosen:
                chosen[path.name] = path, content
                continue
            first, kept = chosen[path.name]
            if changed := changed_options(_config_in(path, content), _config_in(first, kept)):
                raise UsageError(f"{path}: has another configuration than {first} ({', '.join(changed)})")
            if content["hash"] != kept["hash"]:
                log(f"{path.name}: kept that of {first.parent}")
    target, written = make_folder(out), 0
    for name, (path, content) in chosen.items():
        if path.parent != target:
            write_text(target / name, json_text(content) + "\n")
            written += 1
    return written


def _config_in(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in the contents of a file; certificates have none."""
    config = content.get("config", {})
    if not isinstance(config, dict):
        raise UsageError(f"{path}: config is not of type dict")
    return config
