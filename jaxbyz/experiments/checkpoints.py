"""Checkpoints of a run: Orbax writes the arrays, and a seal beside them says that they are whole and whose they are.

`DIR/checkpoints/40/` holds what a run needs to go on after iteration 40, with its metrics so far; `40.json` beside it,
written last and in one piece, holds the SHA-256 of every file. A checkpoint without a seal was never finished; one
whose files differ from its seal is damaged. Neither is used: the one before it is. `policy.npz` beside them holds the
last finite policies of seeds that went non-finite, where there are any.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.errors import UsageError, first_line
from jaxbyz.experiments import run_folder as results
from jaxbyz.experiments.config import Config, to_dict
from jaxbyz.training import processes as distributed
from jaxbyz.training.run import Run

FORMAT = 1
FOLDER = "checkpoints"
KEEP = 2  # the newest, and the one before it in case the newest is damaged
SEAL_BYTES = 2**20  # a seal is a list of a few dozen files


class Checkpoint(NamedTuple):
    """done iterations; runs [seeds, …]; history: the fields of `Metrics`, [seeds, done, …] each."""

    done: int
    runs: Run
    history: dict[str, Any]


def identity(config: Config) -> str:
    """A digest of everything that decides a run's numbers."""
    return hashlib.sha256(json.dumps(to_dict(config), sort_keys=True).encode()).hexdigest()


def save(folder: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, seal it, and remove those that are older than the one before it."""
    place = folder / FOLDER / str(checkpoint.done)
    try:
        _write(place, checkpoint)
        if distributed.leads():
            seal = {"format": FORMAT, "config": identity(config), "files": dict(_digests(place))}
            results.write_json(place.with_suffix(".json"), seal)
            for done in _steps(folder)[:-KEEP]:
                remove(folder, done)
    except Exception as error:  # Orbax and TensorStore report a full disk or a lost folder in many ways
        if jax.process_count() > 1 and isinstance(error, jax.errors.JaxRuntimeError):
            raise  # it is not the disk, another process is gone
        if distributed.leads():
            _remove_unfinished(folder)
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UsageError(
            f"{place}: the checkpoint could not be written ({reason[:300]}); earlier ones are as they were"
        ) from error


def restore(folder: Path, config: Config, target: Callable[[int], Checkpoint], say: Callable[[str], None]) -> Any:
    """The newest whole `Checkpoint` of a run folder, or None. `target(done)` says what shapes and shardings to expect.

    A damaged one is named through `say` and passed over. A checkpoint of another configuration or of a newer format is
    refused: it is somebody's work, though not this run's.
    """
    steps = _steps(folder)
    while steps:
        done = distributed.led(partial(_newest_whole, folder, config, steps, say))
        if done == 0:
            return None
        wanted = target(done)
        try:
            return _read(folder / FOLDER / str(done), wanted)
        except Exception as error:
            say(_damaged(done, f"unreadable, {type(error).__name__}"))
        steps = [step for step in steps if step < done]
    return None


def _newest_whole(folder: Path, config: Config, steps: list[int], say: Callable[[str], None]) -> int:
    """The last of these iterations whose checkpoint is as it was written; 0 if none is."""
    for done in reversed(steps):
        problem = _problem(folder, config, done)
        if problem is None:
            return done
        say(_damaged(done, problem))
    return 0


def _damaged(done: int, why: str) -> str:
    return f"the checkpoint of iteration {done} is damaged ({why}); trying the one before it"


def write_options(folder: Path, options: dict[str, Any]) -> None:
    """Keep how a run was asked to be run, so that it is resumed the same way."""
    (folder / FOLDER).mkdir(exist_ok=True)
    results.write_json(folder / FOLDER / "options.json", options)


def read_options(folder: Path) -> dict[str, Any]:
    """What `write_options` kept; nothing if there is nothing to read."""
    path = folder / FOLDER / "options.json"
    return results.read_json(path) if path.exists() else {}


def write_policy(folder: Path, policy: dict[str, np.ndarray]) -> None:
    """Keep the last finite outputs of seeds that went non-finite: the runs of a checkpoint do not hold them.

    They do not change any more, so that one file serves all checkpoints."""
    (folder / FOLDER).mkdir(exist_ok=True)
    results.write_arrays(folder / FOLDER / "policy.npz", policy)


def read_policy(folder: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """What `write_policy` kept, of this shape [seeds, K, D]; nothing where nothing of the kind can be read."""
    path = folder / FOLDER / "policy.npz"
    try:
        found = results.read_arrays(path) if path.exists() else {}
    except UsageError:
        return {}
    return {name: values for name, values in found.items() if (values.shape, values.dtype) == (shape, np.float32)}


def discard_after(folder: Path, done: int) -> None:
    """Remove what lies beyond iteration `done`: damaged or unfinished checkpoints that would be written again."""
    _remove_unfinished(folder)
    for step in _steps(folder):
        if step > done:
            remove(folder, step)


def _remove_unfinished(folder: Path) -> None:
    for unfinished in (folder / FOLDER).glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def remove(folder: Path, done: int) -> None:
    """Remove one checkpoint, its seal first, so that a half-removed one is not taken for a whole one."""
    place = folder / FOLDER / str(done)
    place.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def remove_all(folder: Path) -> None:
    """Remove every checkpoint of a run that needs none any more."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _steps(folder: Path) -> list[int]:
    """Iterations for which there is a checkpoint's folder or a seal, whole or not, ascending."""
    place = folder / FOLDER
    names = {path.name.removesuffix(".json") for path in place.iterdir()} if place.is_dir() else set()
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _problem(folder: Path, config: Config, done: int) -> str | None:
    """What is wrong with a checkpoint, or None."""
    place = folder / FOLDER / str(done)
    seal_path = place.with_suffix(".json")
    if not seal_path.exists():
        return "never finished"
    try:
        seal = results.read_json(seal_path, SEAL_BYTES)
    except UsageError:
        return "unreadable seal"
    version, files = seal.get("format"), seal.get("files")
    if isinstance(version, int) and version > FORMAT:
        raise UsageError(f"{place}: written by a newer jaxbyz (checkpoint format {version}, this one reads {FORMAT})")
    if version != FORMAT or not isinstance(files, dict):
        return "unreadable seal"
    if seal.get("config") != identity(config):
        raise UsageError(f"{place}: belongs to another configuration than config.json; nothing was changed")
    found = dict(_digests(place))
    if missing := sorted(set(files) - set(found)):
        return f"{missing[0]} is missing"
    changed = sorted(name for name in found if files.get(name) != found[name])
    return f"{changed[0]} is not what was written" if changed else None


def _digests(place: Path) -> Iterator[tuple[str, str]]:
    """(name within the checkpoint, SHA-256) of every plain file; links are not followed."""
    for path in sorted(place.rglob("*")):
        if path.is_symlink():
            yield path.relative_to(place).as_posix(), "link"
        elif path.is_file():
            with path.open("rb") as file:
                yield path.relative_to(place).as_posix(), hashlib.file_digest(file, "sha256").hexdigest()


def _write(place: Path, checkpoint: Checkpoint) -> None:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            place.absolute(),
            ocp.args.Composite(
                runs=ocp.args.StandardSave(_plain(checkpoint.runs)), history=ocp.args.StandardSave(checkpoint.history)
            ),
            force=True,
        )


def _read(place: Path, target: Checkpoint) -> Checkpoint:
    import orbax.checkpoint as ocp

    plain = jax.eval_shape(_plain, target.runs)
    plain = jax.tree.map(lambda new, old: _like(new, getattr(old, "sharding", None)), plain, target.runs)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        found = checkpointer.restore(
            place.absolute(),
            ocp.args.Composite(runs=ocp.args.StandardRestore(plain), history=ocp.args.StandardRestore(target.history)),
        )
    history = jax.tree.map(np.asarray, found.history)
    jax.tree.map(_check_shape, (found.runs, history), (plain, target.history))
    return Checkpoint(target.done, _keyed(found.runs, target.runs), history)


def _check_shape(leaf: Any, wanted: Any) -> None:
    if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
        raise ValueError(f"{leaf.dtype}{leaf.shape} instead of {wanted.dtype}{wanted.shape}")


def _like(shape: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(tree: Any) -> Any:
    """Keys as the numbers they are made of."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def _keyed(tree: Any, like: Any) -> Any:
    """The inverse of `_plain`."""
    return jax.tree.map(lambda leaf, old: jax.random.wrap_key_data(leaf) if _is_key(old) else leaf, tree, like)
