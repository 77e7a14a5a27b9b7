"""Checkpoints of a run: Orbax writes the arrays, and a seal proves that they are complete.

`DIR/checkpoints/40/` holds the state and metrics of a run after iteration 40. The seal `40.json` is written last and
holds the SHA-256 digest of every file. A checkpoint without a seal was never finished, and one whose files differ from
its seal is damaged; neither is used. `policy.npz` holds the last finite policies of seeds that became non-finite.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.algorithms import Algorithm
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError, first_line
from jaxbyz.files import (
    open_regular,
    read_arrays,
    read_json,
    reason,
    refuse_links,
    remove_leftovers,
    write_arrays,
    write_json,
)
from jaxbyz.training.devices import Shape
from jaxbyz.training.layout import make_layout
from jaxbyz.training.processes import is_first_process, on_first_process
from jaxbyz.training.run import Run

CHECKPOINT_FORMAT = 1
FOLDER = "checkpoints"
OPTION_TYPES = {"checkpoint_every": int, "mesh": str, "chosen_mesh": str}  # of `options.json`
NO_SPACE = re.compile("RESOURCE_EXHAUSTED|No space left", re.IGNORECASE)  # how TensorStore reports a full disk
KEEP = 2  # the newest, and the one before it in case the newest is damaged


class Checkpoint(NamedTuple):
    """What a run needs to continue.

    Attributes:
        done: the number of iterations so far.
        runs: the states of all seeds, `[seeds, …]`.
        history: the fields of `Metrics`, `[seeds, done, …]` each.
    """

    done: int
    runs: Run
    history: dict[str, Any]


def config_digest(config: Config) -> str:
    """Return a digest of everything that determines the numbers of a run up to a checkpoint.

    With a constant step size, that is not the length of the run; a checkpoint then serves a longer run as well.
    """
    values = to_dict(config)
    if config.eta_end is None:
        del values["trajectories"]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def expected_checkpoint(algorithm: Algorithm, seeds: int, shape: Shape | None, done: int) -> Checkpoint:
    """Return the shapes and shardings of a checkpoint after `done` iterations on a mesh of this shape."""
    state = jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)))
    metrics = jax.eval_shape(algorithm.step, state, jax.ShapeDtypeStruct((), bool))[1]
    history = {
        name: jax.ShapeDtypeStruct((seeds, done, *leaf.shape), leaf.dtype) for name, leaf in metrics._asdict().items()
    }
    return Checkpoint(done, make_layout(algorithm, seeds, shape).shapes, history)


def save(folder: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Write and seal a checkpoint, and remove all but the newest `KEEP`."""
    path = refuse_links(folder, FOLDER, str(checkpoint.done))
    try:
        _write(path, checkpoint)
        if is_first_process():
            seal = {"format": CHECKPOINT_FORMAT, "config": config_digest(config), "files": dict(_digests(path))}
            write_json(path.with_suffix(".json"), seal)
            for done in _steps(folder)[:-KEEP]:
                remove(folder, done)
    except Exception as error:  # Orbax and TensorStore report a full disk or a lost folder in many ways
        if jax.process_count() > 1 and isinstance(error, jax.errors.JaxRuntimeError):
            raise  # the disk is fine, but another process was lost
        if is_first_process():
            _remove_unfinished(folder)
        text = first_line(error)
        why = getattr(error, "strerror", None) or ("No space left on device" if NO_SPACE.search(text) else text)
        raise UsageError(
            f"{path}: the checkpoint could not be written ({why[:300]}); earlier checkpoints are unchanged"
        ) from error


def restore(
    folder: Path, config: Config, expected_at: Callable[[int], Checkpoint], log: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a run folder, or None.

    Args:
        folder: the run folder.
        config: its configuration.
        expected_at: returns the shapes and shardings to expect after a number of iterations.
        log: receives one line for every damaged checkpoint.

    Raises:
        UsageError: if a checkpoint belongs to another configuration or has a newer format.
    """
    steps = _steps(folder)
    while steps:
        done = on_first_process(partial(_newest_undamaged, folder, config, steps, log))
        if done == 0:
            return None
        expected = expected_at(done)
        try:
            return _read(folder / FOLDER / str(done), expected)
        except Exception as error:
            log(_damaged(done, f"unreadable, {type(error).__name__}"))
        steps = [step for step in steps if step < done]
    return None


def _newest_undamaged(folder: Path, config: Config, steps: list[int], log: Callable[[str], None]) -> int:
    """Return the last of these iterations whose checkpoint is undamaged, or 0."""
    for done in reversed(steps):
        problem = _problem(folder, config, done)
        if problem is None:
            return done
        log(_damaged(done, problem))
    return 0


def _damaged(done: int, why: str) -> str:
    return f"the checkpoint of iteration {done} is damaged ({why}); trying the one before it"


def write_options(folder: Path, options: dict[str, Any]) -> None:
    """Store the settings of a run that `resume` should use again."""
    _make_folder(folder)
    write_json(folder / FOLDER / "options.json", options)


def read_options(folder: Path) -> dict[str, Any]:
    """Return what `write_options` stored, or an empty table."""
    path = refuse_links(folder, FOLDER) / "options.json"
    options = read_json(path) if path.exists() else {}
    for name, value in options.items():
        kind = OPTION_TYPES.get(name)
        if kind is None or type(value) is not kind:
            raise UsageError(f"{path}: {str(name)[:40]}={str(value)[:60]} is not an option of a run")
    return options


def write_policy(folder: Path, policy: dict[str, np.ndarray]) -> None:
    """Store the last finite policies of seeds that became non-finite, which the runs of a checkpoint do not contain.

    They no longer change, so one file serves all checkpoints.
    """
    _make_folder(folder)
    write_arrays(folder / FOLDER / "policy.npz", policy)


def read_policy(folder: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the stored policies that have this shape `[seeds, K, D]`; an unreadable file counts as empty."""
    path = folder / FOLDER / "policy.npz"
    try:
        stored = read_arrays(path) if path.exists() else {}
    except UsageError:
        return {}
    return {name: values for name, values in stored.items() if (values.shape, values.dtype) == (shape, np.float32)}


def discard_after(folder: Path, done: int) -> None:
    """Remove the checkpoints after iteration `done`, which are damaged or unfinished."""
    _remove_unfinished(folder)
    for step in _steps(folder):
        if step > done:
            remove(folder, step)


def _make_folder(folder: Path) -> None:
    """Create the folder of checkpoints unless it exists."""
    try:
        refuse_links(folder, FOLDER).mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder / FOLDER}: cannot be created ({reason(error)})") from error


def _remove_unfinished(folder: Path) -> None:
    parent = refuse_links(folder, FOLDER)
    remove_leftovers(parent)
    for unfinished in parent.glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def remove(folder: Path, done: int) -> None:
    """Remove one checkpoint, its seal first, so that an interrupted removal leaves no valid seal."""
    path = refuse_links(folder, FOLDER) / str(done)
    path.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def remove_all(folder: Path) -> None:
    """Remove all checkpoints of a finished run."""
    shutil.rmtree(refuse_links(folder, FOLDER), ignore_errors=True)


def _steps(folder: Path) -> list[int]:
    """Return the iterations that have a checkpoint folder or a seal, in ascending order."""
    parent = refuse_links(folder, FOLDER)
    names = {path.name.removesuffix(".json") for path in parent.iterdir()} if parent.is_dir() else set()
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 16)


def has_any(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint, damaged or not."""
    return bool(_steps(folder))


def _problem(folder: Path, config: Config, done: int) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    path = folder / FOLDER / str(done)
    seal_path = path.with_suffix(".json")
    if not seal_path.exists():
        return "never finished"
    try:
        seal = read_json(seal_path)
    except UsageError:
        return "unreadable seal"
    version, files = seal.get("format"), seal.get("files")
    if isinstance(version, int) and version > CHECKPOINT_FORMAT:
        raise UsageError(
            f"{path}: written by a newer jaxbyz (checkpoint format {version}, this one reads {CHECKPOINT_FORMAT})"
        )
    if version != CHECKPOINT_FORMAT or not isinstance(files, dict):
        return "unreadable seal"
    if seal.get("config") != config_digest(config):
        raise UsageError(f"{path}: belongs to another configuration than config.json; nothing was changed")
    present = dict(_digests(path))
    if missing := sorted(set(files) - set(present)):
        return f"{missing[0]} is missing"
    changed = sorted(name for name in present if files.get(name) != present[name])
    return f"{changed[0]} differs from what was written" if changed else None


def _digests(checkpoint: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the SHA-256 digest of every file; symbolic links are not followed."""
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        if path.is_symlink():
            yield name, "link"
        elif path.is_file():
            with open_regular(path) as file:
                yield name, hashlib.file_digest(file, "sha256").hexdigest()
        elif not path.is_dir():
            yield name, "not a file"


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Keep the tracebacks of Orbax's threads off the terminal: `save` reports the same failure in one line.

    After a failure they stay quiet, because some of them end later than the block.
    """
    logger, in_threads, in_callbacks = logging.getLogger("absl"), threading.excepthook, sys.unraisablehook
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    threading.excepthook = lambda args: None if _of_orbax(args.exc_traceback) else in_threads(args)
    sys.unraisablehook = lambda args: None if "Event loop is closed" in str(args.exc_value) else in_callbacks(args)
    yield
    logger.setLevel(level)
    threading.excepthook, sys.unraisablehook = in_threads, in_callbacks


def _of_orbax(trace: types.TracebackType | None) -> bool:
    """Return whether an exception passed through a module of Orbax."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("orbax."):
            return True
        trace = trace.tb_next
    return False


def _write(path: Path, checkpoint: Checkpoint) -> None:
    import orbax.checkpoint as ocp

    with _quiet_threads(), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            path.absolute(),
            ocp.args.Composite(
                runs=ocp.args.StandardSave(without_keys(checkpoint.runs)),
                history=ocp.args.StandardSave(checkpoint.history),
            ),
            force=True,
        )


def _read(path: Path, expected: Checkpoint) -> Checkpoint:
    import orbax.checkpoint as ocp

    plain = jax.eval_shape(without_keys, expected.runs)
    plain = jax.tree.map(
        lambda data, leaf: jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=getattr(leaf, "sharding", None)),
        plain,
        expected.runs,
    )
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(
            path.absolute(),
            ocp.args.Composite(
                runs=ocp.args.StandardRestore(plain), history=ocp.args.StandardRestore(expected.history)
            ),
        )
    history = jax.tree.map(np.asarray, restored.history)
    jax.tree.map(_check_shape, (restored.runs, history), (plain, expected.history))
    return Checkpoint(expected.done, with_keys(restored.runs, expected.runs), history)


def _check_shape(leaf: Any, expected: Any) -> None:
    if (leaf.shape, leaf.dtype) != (expected.shape, expected.dtype):
        raise ValueError(f"{leaf.dtype}{leaf.shape} instead of {expected.dtype}{expected.shape}")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_keys(tree: Any) -> Any:
    """Replace random keys with their data, because Orbax stores plain arrays only."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def with_keys(tree: Any, like: Any) -> Any:
    """Inverse of `without_keys`."""
    return jax.tree.map(lambda leaf, old: jax.random.wrap_key_data(leaf) if _is_key(old) else leaf, tree, like)
