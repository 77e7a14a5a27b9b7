"""Train the members of a batch: the loop over segments, with reports, checkpoints and results."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbyz import training
from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import Config
from jaxbyz.environments import EnvironmentFailure
from jaxbyz.runs import checkpoints, run_folder, run_record
from jaxbyz.runs.checkpoints import Checkpoint
from jaxbyz.runs.history import History
from jaxbyz.runs.members import Batch, Member
from jaxbyz.runs.partial_results import PartialResults
from jaxbyz.runs.reporters import Progress, Reporter
from jaxbyz.runs.settings import RunSettings
from jaxbyz.runs.signals import StopRequest, catch_stop_request
from jaxbyz.runs.state_file import from_arrays, to_arrays, write_state
from jaxbyz.trained.methods import PolicyMethods
from jaxbyz.training.processes import is_first_process, max_over_processes, on_first_process

SEGMENT = 20  # iterations per compiled call
STOP_WINDOW = 100  # trajectories per agent


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
            f"stopped at iteration {done} by {signal.Signals(number).name}; `jaxbyz resume {folder}` continues it, and "
            "`evaluate`, `export` and `report` use what it has learnt so far"
        )
        self.folder, self.done, self.signal = folder, done, number


class Track:
    """A member while it is trained: its history, its files, and its results once it has ended.

    Attributes:
        member: the member.
        history: what it has measured so far.
        ended: its results, or None while it is trained.
    """

    def __init__(self, member: Member, settings: RunSettings):
        self.member, self.stop_at = member, settings.stop_at
        self.history = History(member.config)
        self.partial_results = PartialResults(member.folder if is_first_process() else None)
        self.started = time.monotonic()
        self.ended: Experiment | None = None
        if member.start is not None:
            _, runs, past, policy = member.start
            self.history.policy = policy
            self.history.add(Metrics(**past), policies_of(runs))  # type: ignore[arg-type]

    @property
    def goes_on(self) -> bool:
        """Whether a seed is finite, and the return has not reached `stop_at` yet."""
        reached = self.stop_at is not None and self.history.mean_return(STOP_WINDOW) >= self.stop_at
        return bool(self.history.finite.any()) and not reached

    def save(self, runs: dict[str, np.ndarray]) -> None:
        """Write a checkpoint; `runs` are the arrays of its state."""
        assert self.member.folder is not None
        history = self.history
        lost = {} if history.finite.all() else history.policy
        checkpoint = Checkpoint(history.iterations, runs, history.merge()._asdict(), lost)
        checkpoints.save(self.member.folder, self.member.config, checkpoint)

    def finish(self, runs: Mapping[str, np.ndarray]) -> None:
        """Write the results; `runs` are the arrays of its state."""
        config, folder = self._config_at_end(), self.member.folder
        metrics, policy = self.history.metrics(), self.history.policy
        self.ended = Experiment(config, metrics, policy, bool(self.history.finite.all()))
        if folder is None:
            return

        def write() -> None:
            if config != self.member.config:
                run_folder.write_config(folder, config)
            write_state(folder / run_folder.STATE, runs, checkpoints.owner(config))
            run_folder.write_results(folder, metrics, policy)
            self.partial_results.remove()
            run_record.add_seconds(folder, time.monotonic() - self.started, True)
            checkpoints.remove_all(folder)

        on_first_process(write)

    def _config_at_end(self) -> Config:
        """Return the configuration of a run that was asked for what this one has sampled."""
        config, plan, done = self.member.config, self.member.plan, self.history.iterations
        if done == plan.iterations or not self.history.finite.any():
            return config
        return config.with_length(plan.trajectories_after(done))


def policies_of(runs: training.Run) -> dict[str, np.ndarray]:
    """Return the policies of runs as `RunData` has them."""
    outputs = {"last": runs.state.parameters, "sampled": runs.outputs.sampled, "best": runs.outputs.best}
    return training.to_host(outputs)


def train(batch: Batch, settings: RunSettings, reporter: Reporter | None = None) -> list[Experiment]:
    """Train all members from where they continue, report, write checkpoints, and write the results.

    Args:
        batch: the members, all at the same iteration.
        settings: how they are trained; every member has a folder of its own.
        reporter: is told about the progress of all of them.

    Raises:
        Interrupted: if a signal stopped them; each has a checkpoint.
        EnvironmentFailure: if an environment outside of the compiled programs failed; each has a checkpoint, unless
            that happened in the first segment.
    """
    plan, every, done = batch.first, settings.checkpoint_every, batch.members[0].done
    T, in_folders = plan.iterations, batch.members[0].folder is not None
    tracks, runs = [Track(member, settings) for member in batch.members], _runs_at(batch, settings)
    segments = training.segments(
        plan.family.template, batch.keys, batch.coins, batch.output_at, length=SEGMENT, every=every, runs=runs,
        done=done, shape=settings.shape, description=plan.family.description, vary=plan.family.vary,
        numbers=batch.numbers,
    )  # fmt: skip

    def each_on(runs: training.Run | None, tell: Any) -> None:
        """Call `tell(track, arrays)` for every member that is still trained."""
        arrays = to_arrays(runs)
        for number, track in enumerate(tracks):
            if track.ended is None:
                tell(track, batch.arrays_of(number, arrays))

    def until_failure() -> Iterator[training.TrainedSegment]:
        """Train the segments; if an environment outside of the programs fails, write a checkpoint of the last one."""
        try:
            yield from segments if done < T else ()
        except EnvironmentFailure as failure:
            if runs is None or not in_folders:
                raise
            each_on(runs, lambda track, arrays: track.save(arrays))
            reached, folder = tracks[0].history.iterations, tracks[0].member.folder
            raise EnvironmentFailure(
                f"{failure}; `jaxbyz resume {folder}` continues from iteration {reached}"
            ) from failure

    with contextlib.ExitStack() as stack:
        stop_request = stack.enter_context(catch_stop_request()) if in_folders else StopRequest()
        if reporter is not None:
            stack.enter_context(reporter)
        for segment in until_failure():
            runs, policies = segment.runs, policies_of(segment.runs)
            for track, rows in zip(tracks, batch.slices, strict=True):
                if track.ended is None:
                    own = Metrics._make([values[rows] for values in segment.metrics])
                    track.history.add(own, {name: values[rows] for name, values in policies.items()})
            if reporter is not None:
                reporter.update(progress_of([track.history for track in tracks if track.ended is None], T))
            if not all(track.goes_on for track in tracks if track.ended is None):
                each_on(runs, lambda track, arrays: None if track.goes_on else track.finish(arrays))
            if all(track.ended for track in tracks):
                break
            if not in_folders or segment.done == T:
                continue
            stop_signal = max_over_processes(stop_request.signal)
            if stop_signal or (every and segment.done % every == 0):
                each_on(runs, lambda track, arrays: track.save(arrays))
            for track in tracks:
                if track.ended is None:
                    track.partial_results.update(track.history, now=bool(stop_signal))
            if stop_signal:
                _raise_interrupted([track for track in tracks if track.ended is None], segment.done, stop_signal)
    if not all(track.ended for track in tracks):
        each_on(runs, lambda track, arrays: track.finish(arrays))
    return [track.ended for track in tracks if track.ended is not None]


def _runs_at(batch: Batch, settings: RunSettings) -> training.Run | None:
    """Return the runs where the members continue, or None if they begin."""
    first = batch.members[0].start
    if first is None or (len(batch.members) == 1 and batch.rows is None):
        return None if first is None else first.runs  # type: ignore[return-value]
    family, rows = batch.first.family, batch.row_at
    layout = training.make_layout(family.template, len(rows), settings.shape, family.vary)
    programs, index = training.programs(layout, SEGMENT, batch.coins.ndim == 2, family.description), layout.seed_at
    numbers = {name: values[index] for name, values in batch.numbers.items()}
    fresh = programs.trim(programs.start(np.asarray(jax.random.key_data(batch.keys))[index], numbers))
    return from_arrays(batch.restored(to_arrays(fresh)), layout.shapes)


def progress_of(histories: list[History], iterations: int) -> Progress:
    """Return what reporters are told about several runs that are trained side by side."""
    each = [history.progress(iterations) for history in histories]
    if len(each) == 1:
        return each[0]
    return each[0]._replace(
        honest_return=float(np.mean([one.honest_return for one in each])),
        steps=sum(one.steps for one in each),
        metrics={name: np.concatenate([one.metrics[name] for one in each]) for name in each[0].metrics},
        policy={},
    )


def _raise_interrupted(tracks: list[Track], done: int, number: int) -> None:
    """Note the time in every folder, and raise `Interrupted`."""
    for track in tracks:
        assert track.member.folder is not None
        seconds = time.monotonic() - track.started
        on_first_process(partial(run_record.add_seconds, track.member.folder, seconds, False))
    raise Interrupted(tracks[0].member.folder, done, number)  # type: ignore[arg-type]
