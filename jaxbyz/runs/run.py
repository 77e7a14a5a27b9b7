"""Run an experiment from its options to its results: what `jaxbyz train` and `jaxbyz resume` do, as functions."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.configuration.ineffective import without_effect
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.runs import checkpoints, run_folder, run_record
from jaxbyz.runs.folder_lock import lock_folder
from jaxbyz.runs.loop import Experiment, train
from jaxbyz.runs.members import Batch, Member
from jaxbyz.runs.plan import Plan, make_plan
from jaxbyz.runs.progress import make_progress, someone_watches
from jaxbyz.runs.reporters import Reporter
from jaxbyz.runs.settings import RunSettings, make_settings, stored_settings
from jaxbyz.trained.start_from import with_digest, with_task_of_start
from jaxbyz.training.processes import on_first_process

NO_RUN, UNFINISHED, FINISHED = range(3)  # what a folder holds


def _ignore(line: str) -> None:
    """Drop a message."""


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
    stop_at: float | None = None,
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
        stop_at: end the run once the honest return of the last 100 trajectories per agent, averaged over seeds,
            reaches this.
        name: a name for run.json; by default that of the folder.
        tags: tags for run.json.

    Raises:
        UsageError: if an option is wrong or the folder holds a run; nothing was written then.
        Interrupted: if a signal stopped the run; `resume(out)` continues it.
    """
    run_record.check_labels(name, tags)
    config, settings = with_digest(config), make_settings(out, checkpoint_every, mesh, stop_at)
    plan = make_plan(config)
    settings = settings.with_shape(plan)
    if settings.folder is None:
        return train(Batch([Member(plan)]), settings, reporter)[0]
    with contextlib.ExitStack() as stack:
        on_first_process(partial(_claim, settings.folder, stack, fresh=True))
        write_start(plan, settings, name, tags)
        return train(Batch([Member(plan, settings.folder)]), settings, reporter)[0]


def resume(
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    stop_at: float | None = None,
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
        stop_at: as for `run`; by default what the run was started with.
        log: receives messages about where the run continues and about damaged checkpoints.
        quiet: whether `log` receives warnings only.
    """
    settings: dict[str, Any] = {"checkpoint_every": checkpoint_every, "mesh": mesh, "stop_at": stop_at}
    return ensure(run_folder.load_config(out), out, reporter, log=log, quiet=quiet, **settings)


def ensure(
    config: Config,
    out: str | Path,
    reporter: Reporter | None = None,
    *,
    checkpoint_every: int | None = None,
    mesh: str | None = None,
    stop_at: float | None = None,
    log: Callable[[str], None] = _ignore,
    quiet: bool = False,
) -> Experiment:
    """Ensure that the folder holds a finished run of this configuration: start it, continue it, or only read it.

    The arguments are those of `run` and `resume`.
    """
    settings = make_settings(out, checkpoint_every, mesh, stop_at)
    with contextlib.ExitStack() as stack:
        member, settings = prepare(make_plan(with_digest(config)), settings, stack, log, quiet)
        return train(Batch([member]), settings, reporter)[0] if isinstance(member, Member) else member


def prepare(
    plan: Plan,
    settings: RunSettings,
    stack: contextlib.ExitStack,
    log: Callable[[str], None] = _ignore,
    quiet: bool = False,
) -> tuple[Member | Experiment, RunSettings]:
    """Lock the folder of a run until the stack is closed, and start or restore the run, or read its results.

    Args:
        plan: the plan of the run.
        settings: how it is carried out, with its folder.
        stack: holds the lock.
        log: as for `resume`.
        quiet: as for `resume`.

    Returns:
        The run as it is now, or the results of a finished one, and the settings with those that are stored.

    Raises:
        UsageError: if the folder holds something else or is in use.
    """
    config, folder, say = plan.config, settings.folder, _ignore if quiet else log
    assert folder is not None
    stage = on_first_process(partial(_claim, folder, stack))
    if stage == NO_RUN:
        settings = settings.with_shape(plan)
        write_start(plan, settings)
        return Member(plan, folder), settings
    if run_folder.load_config(folder, to_continue=stage == UNFINISHED) != config:
        raise UsageError(f"{folder}: holds a run of another configuration; nothing was changed")
    if stage == FINISHED:
        data = run_folder.load_run(folder, unfinished=False)
        if run_folder.is_writable(folder):  # a kill may have left the checkpoints of a finished run
            on_first_process(lambda: checkpoints.remove_all(folder))
        say(f"{folder} is finished; there is nothing to resume")
        return Experiment(config, data.metrics, data.policy, bool(np.all(data.metrics["finite"]))), settings
    settings = settings.with_stored(stored_settings(folder), log)
    start = checkpoints.restore(folder, config, plan.family.template, settings.shape, log)
    done = 0 if start is None else start.done
    on_first_process(lambda: checkpoints.discard_after(folder, done))
    on_first_process(lambda: run_folder.write_environment(folder))
    say(f"resuming {folder} at iteration {done} of {plan.iterations}")
    return Member(plan, folder, start), settings


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


def write_start(plan: Plan, settings: RunSettings, name: str | None = None, tags: Sequence[str] = ()) -> None:
    """Write what a run folder holds from the start."""
    folder = settings.folder
    assert folder is not None

    def write() -> None:
        settings.store()
        run_folder.write_start(folder, plan.config)
        run_record.write_start(folder, name, tags)

    on_first_process(write)
