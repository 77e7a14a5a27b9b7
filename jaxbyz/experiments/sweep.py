"""A sweep: a TOML file that names a grid over options, each member a run folder, taken up where it was left.

out = "runs/liars"            # or --out
checkpoint_every = 200        # or --checkpoint-every
[fixed]                       # options of every member; `preset` too
seeds = 10
byzantine = 3
[grid]                        # every combination is a member
attack = ["avg-zero", "large-noise"]
aggregator = ["rfa", "krum"]
"""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxbyz.errors import UsageError, first_line
from jaxbyz.experiments import run as experiment
from jaxbyz.experiments import run_folder as results
from jaxbyz.experiments.config import FIELDS, resolve
from jaxbyz.experiments.reporters import Reporter

FILE_BYTES = 2**20
MOST = 10_000  # members
NAME_LENGTH = 150
TABLES = {"out": str, "checkpoint_every": int, "fixed": dict, "grid": dict}


class Sweep(NamedTuple):
    """members: name -> options, in the order of the grid; out and checkpoint_every as the file says, or None."""

    members: dict[str, dict[str, Any]]
    out: str | None
    checkpoint_every: int | None


class Outcome(NamedTuple):
    """How a member ended.

    status: finished (now, or before), non-finite (honest parameters), failed (`note` says why), elsewhere (another
            process is at it)
    """

    name: str
    status: str
    note: str = ""
    done: experiment.Experiment | None = None


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep file; whatever is wrong with it is one line."""
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES + 1)
        if len(text) > FILE_BYTES:
            raise UsageError(f"{path}: larger than the {FILE_BYTES} bytes that a sweep file may have")
        values = tomllib.loads(text.decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as TOML ({first_line(error)})") from error
    for name, value in values.items():
        kind = TABLES.get(name)
        if kind is None:
            raise UsageError(f"{path}: {name!r} is unknown; known: out, checkpoint_every, [fixed], [grid]")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(f"{path}: {name} is not {'a table' if kind is dict else kind.__name__}")
    fixed, grid = values.get("fixed", {}), values.get("grid", {})
    _check_options(path, fixed, grid)
    return Sweep(dict(_members(path, fixed, grid)), values.get("out"), values.get("checkpoint_every"))


def _check_options(path: str | Path, fixed: dict[str, Any], grid: dict[str, Any]) -> None:
    for name in (*fixed, *grid):
        if name not in FIELDS and name != "preset":
            resolve(**{name: None})  # raises, and names the nearest option
    if both := sorted(set(fixed) & set(grid)):
        raise UsageError(f"{path}: {both[0]} is in [fixed] and in [grid]; keep one")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{path}: grid.{name} must be a list of values with at least one")


def _members(path: str | Path, fixed: dict[str, Any], grid: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    combinations = 1
    for values in grid.values():
        combinations *= len(values)
    if combinations > MOST:
        raise UsageError(f"{path}: {combinations} members are more than the {MOST} a sweep may have")
    taken = set()
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values, strict=True))
        name = member_name(choice)
        if name in taken:
            raise UsageError(f"{path}: two members would be called {name!r}; a value of the grid is there twice")
        taken.add(name)
        yield name, {**fixed, **choice}


def member_name(choice: dict[str, Any]) -> str:
    """A folder's name that says which member it is: `attack=avg-zero,hidden=16x16`."""

    def shown(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, list) else str(value)

    text = ",".join(f"{name}={shown(value)}" for name, value in choice.items()) or "run"
    safe = re.sub(r"[^\w.+=,:-]", "_", text, flags=re.ASCII)
    if safe == text and len(safe) <= NAME_LENGTH:
        return safe
    return f"{safe[:NAME_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    checkpoint_every: int | None = None,
    reporter: Callable[[int], Reporter | None] = lambda trajectories: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Run every member that is not finished; one that fails does not keep the others from running, and those whose
    options make no sense are told of before any is.

    Members that another process is at are left to it, so a sweep may be started several times over, on one machine or
    on many that share the folder. A signal ends the sweep as it ends a run, with `experiment.Interrupted`.
    """
    for name, options in sweep.members.items():
        try:
            resolve(**options)
        except UsageError as error:
            say(f"{name} will fail: {error}")
    outcomes = []
    for number, (name, options) in enumerate(sweep.members.items(), start=1):
        say(f"[{number}/{len(sweep.members)}] {name}")
        outcomes.append(_run_member(name, options, results.make_folder(out) / name, checkpoint_every, reporter, say))
    return outcomes


def _run_member(
    name: str,
    options: dict[str, Any],
    folder: Path,
    checkpoint_every: int | None,
    reporter: Callable[[int], Reporter | None],
    say: Callable[[str], None],
) -> Outcome:
    try:
        config = resolve(**options)
        done = experiment.ensure(
            config, folder, reporter(config.trajectories), checkpoint_every=checkpoint_every, say=say
        )
    except experiment.Interrupted:
        raise
    except results.BusyError:
        return Outcome(name, "elsewhere")
    except UsageError as error:
        return Outcome(name, "failed", str(error))
    except Exception as error:
        if folder.is_dir():
            (folder / "error.txt").write_text(traceback.format_exc())
        line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return Outcome(name, "failed", f"{type(error).__name__}: {line} (see {folder / 'error.txt'})")
    (folder / "error.txt").unlink(missing_ok=True)
    return Outcome(name, "finished" if done.finite else "non-finite", done=done)
