"""A sweep: one run for every combination of options that a TOML file lists.

Members that differ in the step size, attacks, or the seed of a run without random batch sizes are trained side by side
in one compiled program (`jaxbyz.runs.members`).

out = "runs/attacks"          # folder of the members' run folders
checkpoint_every = 200
at_once = 8                   # members that may be trained side by side
[fixed]                       # options of every member, and `preset`
seeds = 10
byzantine = 3
[grid]                        # every combination is a member
attack = ["avg-zero", "large-noise"]
aggregator = ["rfa", "krum"]
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jaxbyz.configuration.config import FIELDS
from jaxbyz.configuration.ineffective import without_effect
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError, first_line
from jaxbyz.files import read_toml, reason, write_text
from jaxbyz.runs.folder_lock import BusyError
from jaxbyz.runs.loop import Experiment, Interrupted, train
from jaxbyz.runs.members import Member, batches_of, make_batch
from jaxbyz.runs.plan import Plan, make_plan
from jaxbyz.runs.progress import WorkLeft
from jaxbyz.runs.reporters import Progress, Reporter
from jaxbyz.runs.run import ensure, prepare
from jaxbyz.runs.run_folder import is_finished, make_folder
from jaxbyz.runs.settings import RunSettings, make_settings
from jaxbyz.trained.start_from import with_digest

# (trajectories per agent, what describes the rest of the sweep) -> reporter
MakeReporter = Callable[[int, Callable[[Progress], str]], Reporter | None]

MAX_MEMBERS = 10_000
MAX_NAME_LENGTH = 150
AT_ONCE = 8  # members side by side, so that several processes can still share a sweep
MAX_REPORTED = 20  # lines about options before the first member starts


class SweepFile(msgspec.Struct, forbid_unknown_fields=True):
    """The tables and values of a sweep file."""

    out: str | None = None
    checkpoint_every: int | None = None
    at_once: int | None = None
    fixed: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}


class Sweep(NamedTuple):
    """The members that a sweep file describes.

    Attributes:
        members: the options of every member, by name, in the order of the grid.
        out: the folder of the sweep, or None if the file does not name one.
        checkpoint_every: iterations between two checkpoints, or None.
        at_once: the largest number of members that are trained side by side, or None for `AT_ONCE`.
    """

    members: dict[str, dict[str, Any]]
    out: str | None
    checkpoint_every: int | None
    at_once: int | None = None


class MemberResult(NamedTuple):
    """How a member of a sweep ended.

    Attributes:
        name: the name of the member and of its folder.
        status: `finished` (now or earlier), `non-finite` (honest parameters of a seed), `failed`, or `elsewhere`
            (another process is working on it).
        note: why it failed.
        experiment: its results, if it was trained.
    """

    name: str
    status: str
    note: str = ""
    experiment: Experiment | None = None


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep file.

    Raises:
        UsageError: if the file cannot be read or is not a sweep.
    """
    misplaced = [name for name in read_toml(Path(path)) if name in FIELDS or name == "preset"]
    if misplaced:
        raise UsageError(
            f"{path}: {misplaced[0]} is an option of the runs: write it below [fixed], or as a list below [grid]"
        )
    file = read_toml(Path(path), SweepFile)
    fixed, grid = (
        {name.replace("-", "_"): value for name, value in table.items()} for table in (file.fixed, file.grid)
    )
    for name in (*fixed, *grid):
        if name not in FIELDS and name != "preset":
            resolve(**{name: None})  # raises, and names the nearest option
        if name in fixed and name in grid:
            raise UsageError(f"{path}: {name} is in [fixed] and in [grid]; name it in one of them")
        if not grid.get(name, True):
            raise UsageError(f"{path}: grid.{name} must be a list of at least one value")
    try:
        members = dict(_members(path, fixed, grid))
    except UsageError:
        raise
    except ValueError as error:  # a number with thousands of digits cannot be part of a name
        raise UsageError(f"{path}: not usable as a sweep ({first_line(error)})") from error
    return Sweep(members, file.out, file.checkpoint_every, file.at_once)


def _members(path: str | Path, fixed: dict[str, Any], grid: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the options of every combination."""
    combinations = math.prod(len(values) for values in grid.values())
    if combinations > MAX_MEMBERS:
        raise UsageError(f"{path}: {combinations} members exceed the limit of {MAX_MEMBERS}")
    names = set()
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values, strict=True))
        name = member_name(choice)
        if name in names:
            raise UsageError(f"{path}: two members would have the name {name!r}; the grid lists a value twice")
        names.add(name)
        yield name, {**fixed, **choice}


def member_name(choice: dict[str, Any]) -> str:
    """Return a folder name that lists the member's options: `attack=avg-zero,hidden=16x16`."""

    def shown(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, list) else str(value)

    text = ",".join(f"{name}={shown(value)}" for name, value in choice.items()) or "run"
    safe = re.sub(r"[^\w.+=,:-]", "_", text, flags=re.ASCII)
    if safe == text and len(safe) <= MAX_NAME_LENGTH:
        return safe
    return f"{safe[:MAX_NAME_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    checkpoint_every: int | None = None,
    at_once: int | None = None,
    reporter: MakeReporter = lambda trajectories, left: None,
    log: Callable[[str], None] = lambda line: None,
    quiet: bool = False,
) -> list[MemberResult]:
    """Run every member that is not finished. A member that fails does not stop the others.

    Members that another process is working on are skipped, so several processes, on one machine or on many that share
    the folder, can run the same sweep together.

    Args:
        sweep: what to run.
        out: the folder of the members' run folders.
        checkpoint_every: iterations between two checkpoints; by default what the sweep file says.
        at_once: the largest number of members that are trained side by side; by default what the sweep file says.
        reporter: returns the reporter of a batch from its number of trajectories and a function that describes what is
            left of the whole sweep.
        log: receives one line per batch, and before that one line for every member whose options are wrong and for
            every option that has no effect.
        quiet: whether `log` receives warnings only.

    Raises:
        UsageError: if `checkpoint_every` or `at_once` is not allowed, or the options of every member are wrong.
        Interrupted: if a signal stopped a member.
    """
    every = sweep.checkpoint_every if checkpoint_every is None else checkpoint_every
    at_once = next(n for n in (at_once, sweep.at_once, AT_ONCE) if n is not None)
    if type(at_once) is not int or at_once < 1:
        raise UsageError(f"at_once={at_once}: must be a whole number of at least 1")
    settings = make_settings(out, every, None)  # refuses a wrong value before any member starts
    _report_options(sweep, log)
    folder = make_folder(out)
    plans, results = _plans(sweep)
    # Each batch with the size of the largest one that its program serves. Those that could not be planned come first.
    batches = [([name], 1) for name in sweep.members if name not in plans and name not in results]
    batches += batches_of(plans, at_once)
    work = {name: plan.config.seeds * plan.config.trajectories for name, plan in plans.items()}
    left = WorkLeft({name: amount for name, amount in work.items() if not is_finished(folder / name)})
    for number, (names, largest) in enumerate(batches, start=1):
        left.begin(names)
        if not quiet:
            others = f", side by side with {len(names) - 1} more" if len(names) > 1 else ""
            log(f"[{number}/{len(batches)}] {names[0]}{others}")

        def alone(name: str, left: WorkLeft = left) -> MemberResult:
            options, given = sweep.members[name], {"checkpoint_every": every, "log": log, "quiet": quiet}
            return _run_member(name, options, folder / name, lambda total: reporter(total, left), given)

        if len(names) == 1:
            results[names[0]] = alone(names[0])
            continue
        first = plans[names[0]].config
        batch, watch = {name: plans[name] for name in names}, reporter(first.trajectories, left)
        results |= _train_batch(batch, settings, largest * first.seeds, watch, log, quiet)
        results |= {name: alone(name) for name in names if name not in results}
    return [results[name] for name in sweep.members]


def _plans(sweep: Sweep) -> tuple[dict[str, Plan], dict[str, MemberResult]]:
    """Return the plans of members, and the results of those whose options are wrong.

    A member is in neither if planning it fails in another way; running it says how.
    """
    plans, wrong = {}, {}
    for name, options in sweep.members.items():
        try:
            plans[name] = make_plan(with_digest(resolve(**options)))
        except UsageError as error:
            wrong[name] = MemberResult(name, "failed", str(error))
        except Exception:
            continue
    return plans, wrong


def _train_batch(
    plans: dict[str, Plan],
    settings: RunSettings,
    rows: int,
    reporter: Reporter | None,
    log: Callable[[str], None],
    quiet: bool,
) -> dict[str, MemberResult]:
    """Start or continue several members side by side.

    Returns:
        The results of members, without those that have to be tried alone because one of them failed.
    """
    results: dict[str, MemberResult] = {}
    waiting: dict[int, dict[str, Member]] = {}  # iterations so far -> members
    with contextlib.ExitStack() as stack:
        for name, plan in plans.items():
            try:
                own = settings._replace(folder=settings.folder / name)  # type: ignore[operator]
                member, _ = prepare(plan, own, stack, log, quiet)
            except BusyError:
                results[name] = MemberResult(name, "elsewhere")
            except (UsageError, OSError):
                continue
            else:
                if isinstance(member, Member):
                    waiting.setdefault(member.done, {})[name] = member
                else:
                    results[name] = _ended(name, member)
        for members in waiting.values():
            seeds = sum(member.config.seeds for member in members.values())
            filled = rows if rows < 2 * seeds else None  # a program of this size exists, or serves other batches
            try:
                found = train(make_batch(list(members.values()), filled), settings, reporter)
            except Interrupted:
                raise
            except Exception as error:
                names, line = ", ".join(members), f"{type(error).__name__}: {first_line(error)[:200]}"
                log(f"{names}: not trained side by side ({line}); trying one after the other")
                continue
            results |= {name: _ended(name, one) for name, one in zip(members, found, strict=True)}
    return results


def _ended(name: str, experiment: Experiment) -> MemberResult:
    return MemberResult(name, "finished" if experiment.finite else "non-finite", experiment=experiment)


def _report_options(sweep: Sweep, log: Callable[[str], None]) -> None:
    """Report members whose options are wrong, and options that have no effect.

    Raises:
        UsageError: if the options of every member are wrong.
    """
    wrong: dict[str, str] = {}
    silent: Counter[str] = Counter()
    for name, options in sweep.members.items():
        try:
            config = resolve(**options)
        except UsageError as error:
            wrong[name] = str(error)
            continue
        silent.update(without_effect(config, {key: value for key, value in options.items() if key != "preset"}))
    if len(wrong) == len(sweep.members):
        name, reason = next(iter(wrong.items()))
        others = f", and {len(wrong) - 1} other members have wrong options too" if len(wrong) > 1 else ""
        raise UsageError(f"{name}: {reason}{others}; nothing was started")
    lines = [f"{name} will fail: {reason}" for name, reason in wrong.items()]
    lines += [f"{line} (in {count} of {len(sweep.members)} members)" for line, count in silent.items()]
    for line in lines[:MAX_REPORTED]:
        log(line)
    if len(lines) > MAX_REPORTED:
        log(f"… and {len(lines) - MAX_REPORTED} other messages about options")


def _run_member(
    name: str,
    options: dict[str, Any],
    folder: Path,
    reporter: Callable[[int], Reporter | None],
    settings: dict[str, Any],
) -> MemberResult:
    """Start or continue one member; every error but an interruption becomes a result. `settings` are for `ensure`."""
    try:
        config = resolve(**options)
        experiment = ensure(config, folder, reporter(config.trajectories), **settings)
    except Interrupted:
        raise
    except BusyError:
        return MemberResult(name, "elsewhere")
    except UsageError as error:
        return MemberResult(name, "failed", str(error))
    except OSError as error:
        return MemberResult(name, "failed", f"{error.filename or folder}: {reason(error)}")
    except Exception as error:
        with contextlib.suppress(UsageError):  # the folder may be missing or full
            write_text(folder / "error.txt", traceback.format_exc())
        return MemberResult(name, "failed", f"{type(error).__name__}: {first_line(error)} (see {folder}/error.txt)")
    if (folder / "error.txt").exists():
        (folder / "error.txt").unlink()
    return _ended(name, experiment)
