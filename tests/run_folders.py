"""Run folders made without training, and ways to damage them."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import resolve
from jaxbyz.runs.run_folder import PER_AGENT, write_results, write_start

TINY: dict[str, Any] = dict(agents=3, N=2, B=1, horizon=6, hidden=(3,), trajectories=12, seeds=2)
PARAMETERS = 4 * 3 + 3 + 3 * 2 + 2  # of a CartPole policy with one hidden layer of 3


def made_metrics(config: Config, iterations: int = 6) -> dict[str, np.ndarray]:
    """Return metrics of the right names, shapes and types, with made-up values."""
    generator = np.random.default_rng(0)
    shape = (config.seeds, iterations)
    metrics = {
        name: generator.uniform(1, 9, (*shape, config.agents) if name in PER_AGENT else shape).astype(np.float32)
        for name in Metrics._fields
    }
    metrics["shares"] /= metrics["shares"].sum(axis=2, keepdims=True)
    metrics["byzantine"] = np.zeros((*shape, config.agents), bool)
    metrics["finite"] = metrics["coin"] = np.ones(shape, np.int32)
    metrics["batch"] = np.full(shape, config.N, np.int32)
    return {**metrics, "trajectories": np.cumsum(metrics["batch"], axis=1)}


def make_run(folder: Path, **options: Any) -> Path:
    """Write the folder of a finished run that was never trained."""
    config = resolve(**{**TINY, **options})
    folder.mkdir(parents=True)
    write_start(folder, config)
    theta = np.zeros((config.seeds, config.agents, PARAMETERS), np.float32)
    write_results(folder, made_metrics(config), dict.fromkeys(("last", "sampled", "best"), theta))
    return folder


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_arrays(path: Path, **values: Any) -> None:
    """Replace arrays of a file; None removes one."""
    with np.load(path) as data:
        arrays = {**{name: data[name] for name in data.files}, **values}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: value for name, value in arrays.items() if value is not None})
    path.write_bytes(buffer.getvalue())


def _replace_with(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink(missing_ok=True)
    make(path)


NAMES = ("config.json", "environment.json", "metrics.npz", "policy.npz")


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file of a run folder in a random way; return what was done."""
    name = chance.choice(NAMES)
    path = folder / name
    kind = chance.choice(
        ("bits", "cut", "grown", "empty", "gone", "pipe", "folder", "link", "values", "values", "values")
    )
    if kind == "bits":
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice((1, 10, 1000))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(data))
    elif kind == "cut":
        os.truncate(path, chance.randrange(path.stat().st_size))
    elif kind == "grown":
        path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice((1, 1000))))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "gone":
        path.unlink()
    elif kind == "pipe":
        _replace_with(path, os.mkfifo)
    elif kind == "folder":
        _replace_with(path, Path.mkdir)
    elif kind == "link":
        _replace_with(path, lambda path: path.symlink_to(chance.choice(("/dev/zero", "/nowhere", ".", name))))
    elif name.endswith(".json"):
        kind = _damage_json(path, chance)
    else:
        kind = _damage_arrays(path, chance)
    return f"{name}: {kind}"


STRANGE_VALUES = (
    None, True, -1, 0, 10**18, 10**400, 1.5, float("nan"), float("inf"), "", "x" * 5000, "\ud800", "$\\frac{$",
    "\x1b[2J", "none", [], [[]], {}, {"a": 1}, [10**9, 10**9], "../..", "mean:", "+",
)  # fmt: skip


def _damage_json(path: Path, chance: random.Random) -> str:
    values = json.loads(path.read_text())
    key, value = chance.choice((*values, "new")), chance.choice(STRANGE_VALUES)
    change_json(path, **{key: value})
    return f"{key}={str(value)[:20]!a}"


def _damage_arrays(path: Path, chance: random.Random) -> str:
    with np.load(path) as data:
        key = chance.choice(data.files)
        old = data[key]
    strange = {
        "missing": None,
        "nan": np.full(old.shape, np.nan),
        "huge": np.full(old.shape, 1e300),
        "negative": -np.ones(old.shape),
        "text": np.full(old.shape, "x"),
        "complex": np.full(old.shape, 1j),
        "fewer": old[:, :1],
        "no seeds": old[:0],
        "flat": old.ravel(),
        "scalar": np.float32(1),
        "more axes": old[..., None],
        "integers": np.full(old.shape, 2**62),
    }
    what = chance.choice(list(strange))
    change_arrays(path, **{key: strange[what]})
    return f"{key} {what}"


def copy_of(folder: Path, target: Path) -> Path:
    """Return a fresh copy of a run folder."""
    return Path(shutil.copytree(folder, target, symlinks=True))
