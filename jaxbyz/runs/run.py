"""Run an experiment from its options to its results: what `jaxbyz train` and `jaxbyz resume` do, as functions."""

from __future__ import annotations

import contextlib
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz import training
from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.building import describe_algorithm
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.ineffective import without_effect
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.runs import checkpoints, run_folder, run_record
from jaxbyz.runs.checkpoints import Checkpoint
from jaxbyz.runs.folder_lock import lock_folder
from jaxbyz.runs.history import History
from jaxbyz.runs.partial_results import PartialResults
from jaxbyz.runs.plan import Plan, make_plan
from jaxbyz.runs.progress import make_progress, someone_watches
from jaxbyz.runs.reporters import Reporter
from jaxbyz.runs.settings import RunSettings, make_settings, stored_settings
from jaxbyz.runs.signals import StopRequest, catch_stop_request
from jaxbyz.runs.state_file import to_arrays, write_state
from jaxbyz.trained.methods import PolicyMethods
from jaxbyz.trained.start_from import with_digest, with_task_of_start
from jaxbyz.training.processes import is_first_process, max_over_processes, on_first_process

SEGMENT = 20  # iterations per compiled call
NO_RUN, UNFINISHED, FINISHED = range(3)  # what a folder holds


def _ignore(line: str) -> None:
    """Drop a message."""


class Results(NamedTuple):
    """What an experiment has produced.

    Attributes:
        config: its configuration.
        metrics: as in `RunData`.
        policy: as in `RunData`.
        finite: whether every seed stayed finite throughout.
    """

    config: Config
    metrics: dict[str, np.ndarray]
    policy: dict[str, np.ndarray]
    finite: bool


class Experiment(Results, PolicyMethods):
    """A finished experiment: its results, and what can be done with the learnt policy."""


class Interrupted(Exception):  # noqa: N818 (it is not an error)
    """A signal stopped the run, which left a checkpoint.

    Attributes:
        folder: the run folder.
        done: the number of iterations so far.
        signal: the number of the signal.
    """

    def __init__(self, folder: Path, done: int, number: int):
        super().__init__(
            f"stopped at iteration {done} by {signal.Signals(number).name}; `jaxbyz resume {folder}` continues it"
        )
        self.folder, self.done, self.signal = folder, done, number


def run_experiment(
    preset: str | None = None, out: str | Path | None = None, reporter: Reporter | None = None, **options: Any
) -> Experiment:
    """Run one experiment: `jaxbyz.run_experiment(byzantine=3, attack="avg-zero", trajectories=500)`.

    Options that have no effect are reported as warnings.

    Args:
        preset: the preset to start from; by default the one of the environment.
        out: the folder for the results; None writes nothing.
        reporter: is told about the progress; by default it is printed in a terminal and in a notebook.
        **options: fields of `Config`.
    """
    config = resolve(preset, **with_task_of_start(options))
    if reporter is None and someone_watches():
        reporter = make_progress(config.trajectories, quiet=False)
    for line in without_effect(config, options):
        warnings.warn(line, stacklevel=2)
    return run(config, out, reporter)


def run(
    config: Config,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> Experiment:
    """Run the experiment of a configuration.

    A seed that becomes non-finite does not stop the others; the run ends early once no seed is finite. With `out`,
    SIGINT and SIGTERM stop the run at the end of a segment of 20 iterations with a checkpoint.

    Args:
        config: a checked configuration, from `resolve`.
        out: the folder for the results; None writes nothing.
        reporter: is told about the progress.
        checkpoint_every: also write a checkpoint every this many iterations.
        mesh: devices for seeds and agents, `"seeds=4,agents=2"`, of all processes if there are several.
        name: a name for run.json; by default that of the folder.
        tags: tags for run.json.

    Raises:
        UsageError: if an option is wrong or the folder holds a run; nothing was written then.
        Interrupted: if a signal stopped the run; `resume(out)` continues it.
    """
    run_record.check_labels(name, tags)
    config, settings = with_digest(config), make_settings(out, checkpoint_every, mesh)
    plan = make_plan(config)
    settings = settings.with_shape(plan)
    if settings.folder is None:
        return _train(config, plan, settings, reporter)
    with contextlib.ExitStack() as stack:
        on_first_process(partial(_claim, settings.folder, stack, fresh=True))
        return _start(config, plan, settings, reporter, name, tags)


def resume(
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    log: Callable[[str], None] = _ignore,
    quiet: bool = False,
) -> Experiment:
    """Continue an unfinished run; a finished run is only read.

    On the same devices, with the same mesh and versions, the result is bitwise that of an uninterrupted run.

    Args:
        out: the run folder.
        reporter: is told about the progress.
        checkpoint_every: by default what the run was started with.
        mesh: by default what the run was started with; on another mesh the numbers agree up to rounding.
        log: receives messages about where the run continues and about damaged checkpoints.
        quiet: whether `log` receives warnings only.
    """
    settings: dict[str, Any] = {"checkpoint_every": checkpoint_every, "mesh": mesh, "log": log, "quiet": quiet}
    return ensure(run_folder.load_config(out), out, reporter, **settings)


def ensure(
    config: Config,
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    log: Callable[[str], None] = _ignore,
    quiet: bool = False,
) -> Experiment:
    """Ensure that the folder holds a finished run of this configuration: start it, continue it, or only read it.

    The arguments are those of `run` and `resume`.
    """
    config = with_digest(config)
    settings, plan, folder = make_settings(out, checkpoint_every, mesh), make_plan(config), Path(out)
    say = _ignore if quiet else log
    with contextlib.ExitStack() as stack:
        stage = on_first_process(partial(_claim, folder, stack))
        if stage == NO_RUN:
            return _start(config, plan, settings.with_shape(plan), reporter)
        if run_folder.load_config(folder, to_continue=stage == UNFINISHED) != config:
            raise UsageError(f"{folder}: holds a run of another configuration; nothing was changed")
        if stage == FINISHED:
            data = run_folder.load_run(folder)
            if run_folder.is_writable(folder):  # a kill may have left the checkpoints of a finished run
                on_first_process(lambda: checkpoints.remove_all(folder))
            say(f"{folder} is finished; there is nothing to resume")
            return Experiment(config, data.metrics, data.policy, bool(np.all(data.metrics["finite"])))
        settings = settings.with_stored(stored_settings(folder), log)
        start = checkpoints.restore(folder, config, plan.algorithm, settings.shape, log)
        done = 0 if start is None else start.done
        on_first_process(lambda: checkpoints.discard_after(folder, done))
        on_first_process(lambda: run_folder.write_environment(folder))
        say(f"resuming {folder} at iteration {done} of {plan.iterations}")
        return _train(config, plan, settings, reporter, start)


def _claim(folder: Path, stack: contextlib.ExitStack, fresh: bool = False) -> int:
    """Create a run folder unless it exists, lock it until the stack is closed, and return what it holds.

    Raises:
        UsageError: if it is in use, holds files of something else, or, if `fresh`, a run.
    """
    if fresh:
        run_folder.refuse_run(folder)
    run_folder.make_folder(folder)
    if not fresh and run_folder.is_finished(folder) and not run_folder.is_writable(folder):
        return FINISHED  # reading needs no lock
    stack.enter_context(lock_folder(folder))
    if not fresh and run_folder.has_run(folder):
        return FINISHED if run_folder.is_finished(folder) else UNFINISHED
    run_folder.refuse_run(folder)  # another process may have started one before the lock
    if checkpoints.has_any(folder):
        raise UsageError(f"out={folder}: the folder holds checkpoints of something else; choose another folder")
    stored_settings(folder)  # what a start that was killed has left is ours; anything else is refused
    return NO_RUN


def _start(
    config: Config, plan: Plan, settings: RunSettings, reporter: Reporter | None,
    name: str | None = None, tags: Sequence[str] = (),
) -> Experiment:  # fmt: skip
    """Write what a run folder holds from the start, and train."""
    folder = settings.folder
    assert folder is not None

    def write() -> None:
        settings.store()
        run_folder.write_start(folder, config)
        run_record.write_start(folder, name, tags)

    on_first_process(write)
    return _train(config, plan, settings, reporter)


def _train(
    config: Config, plan: Plan, settings: RunSettings, reporter: Reporter | None, start: Checkpoint | None = None
) -> Experiment:
    """Train all segments from a checkpoint on, report, write checkpoints, and write the results."""
    history, folder, every, T = History(config), settings.folder, settings.checkpoint_every, plan.iterations
    started, partial_results = time.monotonic(), PartialResults(folder if is_first_process() else None)
    runs: training.Run | None = None
    done = 0
    if start is not None:
        done, runs, past, history.policy = start
        history.add(Metrics(**past), start.runs)  # type: ignore[arg-type]
    description = describe_algorithm(config, T)
    segments = training.segments(
        *plan, length=SEGMENT, every=every, runs=runs, done=done, shape=settings.shape, description=description
    )
    with contextlib.ExitStack() as stack:
        stop_request = StopRequest() if folder is None else stack.enter_context(catch_stop_request())
        if reporter is not None:
            stack.enter_context(reporter)
        for segment in segments:
            runs = segment.runs
            history.add(segment.metrics, runs)
            if reporter is not None:
                reporter.update(history.progress(T))
            if not history.finite.any():
                break
            if folder is None or segment.done == T:
                continue
            stop_signal = max_over_processes(stop_request.signal)
            if stop_signal or (every and segment.done % every == 0):
                lost = {} if history.finite.all() else history.policy
                checkpoint = Checkpoint(segment.done, runs, history.merge()._asdict(), lost)
                checkpoints.save(folder, config, checkpoint)
            partial_results.update(history, now=bool(stop_signal))
            if stop_signal:
                on_first_process(partial(run_record.add_seconds, folder, time.monotonic() - started, False))
                raise Interrupted(folder, segment.done, stop_signal)
    metrics, policy = history.metrics(), history.policy
    if folder is not None:
        state = to_arrays(runs)

        def finish() -> None:
            write_state(folder / run_folder.STATE, state, checkpoints.owner(config))
            run_folder.write_results(folder, metrics, policy)
            partial_results.remove()
            run_record.add_seconds(folder, time.monotonic() - started, True)
            checkpoints.remove_all(folder)

        on_first_process(finish)
    return Experiment(config, metrics, policy, bool(history.finite.all()))
