"""Start a run from a learnt policy: the option `start=from:PATH`, where PATH is a run folder or an exported .npz file.

All seeds and agents start from the same parameters: those of the first seed and agent of a run folder, by its option
`output`. `jaxbyz export` selects others. A run remembers the digest of the parameters, `from:PATH#DIGEST`, so that it
is not continued from others than it was started with.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from jaxbyz.configuration.config import START_FROM, Config
from jaxbyz.configuration.resolving import from_dict
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, read_json
from jaxbyz.policies.options import NETWORK_OPTIONS

TASK_OPTIONS = ("env", "env_param", "policy", *NETWORK_OPTIONS)  # that follow the learnt policy unless they are given


class Schema(msgspec.Struct):
    """What is read of the schema of an exported policy (`jaxbyz.trained.export.describe`)."""

    format: Literal["jaxbyz policy"]
    environment: str
    env_param: str
    spec: str
    options: dict[str, Any]


def with_task_of_start(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run; if it starts from a learnt policy, task and network are by default those of it."""
    start = options.get("start")
    if not (isinstance(start, str) and start.startswith(START_FROM)) or start == START_FROM:
        return options
    path = _path(start)
    if path.is_dir():
        config = _config(path)
        return {**{name: getattr(config, name) for name in TASK_OPTIONS}, **options}
    schema = _schema(path, read_arrays(path))
    known = {name: value for name, value in schema.options.items() if name in NETWORK_OPTIONS}
    return {"env": schema.environment, "env_param": schema.env_param, "policy": schema.spec, **known, **options}


def with_digest(config: Config) -> Config:
    """Return the configuration with the digest of the parameters that it starts from, if it does."""
    if not config.start.startswith(START_FROM) or "#" in config.start:
        return config
    return replace(config, start=f"{config.start}#{_digest(_read(_path(config.start)))}")


def start_parameters(start: str, size: int) -> np.ndarray:
    """Return the parameters `[D]` that `from:PATH` names.

    Raises:
        UsageError: if they cannot be read, are not `size` numbers, or have changed since the run was started.
    """
    theta, (_, _, digest) = _read(_path(start)), start.partition("#")
    if theta.size != size:
        hint = "; it may be an ensemble, which cannot be a start" if theta.size % size == 0 else ""
        raise UsageError(f"start={start}: has {theta.size} parameters, but the policy of this run has {size}{hint}")
    if not np.isfinite(theta).all():
        raise UsageError(f"start={start}: the policy has parameters that are not finite")
    if digest and _digest(theta) != digest:
        raise UsageError(f"start={start}: the policy has changed since the run was started")
    return theta


def _path(start: str) -> Path:
    return Path(start.removeprefix(START_FROM).partition("#")[0])


def _read(path: Path) -> np.ndarray:
    if path.is_dir():
        stored = read_arrays(path / "policy.npz")
        theta = stored.get(_config(path).output)
        if theta is None or theta.ndim != 3 or theta.dtype != np.float32 or 0 in theta.shape:
            raise UsageError(f"{path / 'policy.npz'}: holds no policies [seeds, agents, D]")
        return theta[0, 0]
    arrays = read_arrays(path)
    _schema(path, arrays)
    return np.concatenate([np.ravel(values) for name, values in arrays.items() if name != "schema"]).astype(np.float32)


def _config(folder: Path) -> Config:
    """Return the configuration of a finished run."""
    for name in ("config.json", "metrics.npz"):
        if not (folder / name).exists():
            raise UsageError(f"{START_FROM}{folder}: holds no finished run ({name} is missing)")
    return from_dict(read_json(folder / "config.json"), names=False)


def _schema(path: Path, arrays: dict[str, np.ndarray]) -> Schema:
    """Return the schema of an exported policy."""
    try:
        return msgspec.json.decode(str(arrays["schema"]), type=Schema)
    except (KeyError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: is neither a run folder nor a policy that `jaxbyz export` has written") from error


def _digest(theta: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(theta, "<f4").tobytes()).hexdigest()[:16]
