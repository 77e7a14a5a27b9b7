"""Change the length of a run: let it sample more trajectories than it was started with, or end it earlier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.check import check
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.runs import checkpoints, run_folder
from jaxbyz.runs.folder_lock import lock_folder
from jaxbyz.runs.partial_results import PROGRESS
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.reporters import Reporter
from jaxbyz.runs.run import Experiment, resume
from jaxbyz.runs.run_folder import RunData
from jaxbyz.runs.state_file import DamagedError, read_state
from jaxbyz.training.processes import on_first_process


def extend(
    out: str | Path, trajectories: int, reporter: Reporter | None = None, log: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> Experiment:  # fmt: skip
    """Let a run, finished or not, sample `trajectories` per agent in total.

    With the same devices and versions, the result is bitwise that of a run which was asked for as many at once. A step
    size that decays does so over the trajectories that the run was started with, as with `decay_over`: it stays at
    `eta_end` in a longer run, and does not reach it in a shorter one.

    Args:
        out: the run folder.
        trajectories: the new total. If it is less than the run was started with, the run must not have finished.
        reporter: is told about the progress.
        log: receives messages about where the run continues.
        **settings: those of `resume`.

    Raises:
        UsageError: if the run has sampled more already, or no seed stayed finite.
    """
    folder = Path(out)
    config = check_extension(folder, run_folder.load_config(folder, to_continue=True), trajectories)
    on_first_process(lambda: _prepare(folder, config, log))
    return resume(folder, reporter, log=log, **settings)


def check_extension(folder: Path, config: Config, trajectories: int) -> Config:
    """Return the configuration of the run in a folder with another number of trajectories, or refuse."""
    done = checkpoints.newest(folder)
    sampled = config.trajectories if run_folder.is_finished(folder) else 0
    if not sampled and done:
        sampled = make_plan(config).trajectories_after(done)
    if trajectories < sampled:
        raise UsageError(f"trajectories={trajectories}: the run has {sampled} already; give at least as many")
    return check(config.with_length(trajectories))


def _prepare(folder: Path, config: Config, log: Callable[[str], None]) -> None:
    """Make the folder one of an unfinished run with the new length; killed at any point, it can be resumed."""
    with lock_folder(folder):
        if run_folder.is_finished(folder) and run_folder.load_config(folder) != config:
            data = run_folder.load_run(folder, unfinished=False)
            if not data.metrics["finite"].all(axis=1).any():
                raise UsageError(f"{folder}: no seed stayed finite; there is nothing to extend")
            try:
                runs = read_state(folder / run_folder.STATE, checkpoints.owner(config))
                write_end(folder, config, data, runs)
            except DamagedError as error:
                log(f"{folder}: the final state cannot be used ({error}); training again from the start")
            # Without metrics.npz the run is unfinished. The next results replace progress.npz.
            (folder / "metrics.npz").rename(folder / PROGRESS)
            try:
                run_folder.write_config(folder, config)
            except UsageError:  # for example a full disk: the run is finished, as before
                (folder / PROGRESS).rename(folder / "metrics.npz")
                raise
        else:
            run_folder.write_config(folder, config)


def write_end(folder: Path, config: Config, data: RunData, runs: dict[str, np.ndarray]) -> None:
    """Write the checkpoint of the last iteration of a finished run, whose state is given as arrays."""
    history = {name: data.metrics[name] for name in Metrics._fields}
    lost = {} if data.metrics["finite"].all() else data.policy
    checkpoints.write(folder, config, data.metrics["returns"].shape[1], runs, history, lost)
