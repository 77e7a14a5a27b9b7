"""Train the cells of a suite and certify the rules of its entries, each once."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.benchmark.entries import NOT_ENTRIES, BenchmarkEntry, Cell, cell_config, options_of, with_step_sizes
from jaxbyz.benchmark.records import CERTIFICATE, read_record, record_name, record_path, write_record
from jaxbyz.benchmark.results import write_result
from jaxbyz.benchmark.sharing import sharing_of, train_planned
from jaxbyz.benchmark.suite import Suite
from jaxbyz.benchmark.tuning import tune_if_missing
from jaxbyz.certify import certify
from jaxbyz.certify.rule_names import AGREEMENT
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError, first_line
from jaxbyz.runs.folder_lock import BusyError, lock_folder
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.members import groups_of_attacks
from jaxbyz.runs.reporters import Reporter
from jaxbyz.runs.run import ensure
from jaxbyz.runs.run_folder import make_folder

WORKING = ".working"  # folder of trainings that are not finished


class RuleToCertify(NamedTuple):
    """A rule of an entry in a federation, which stands for all of its size (`Suite.first_of_size`)."""

    federation: str
    rule: str

    @property
    def name(self) -> str:
        """The name of its record."""
        return record_name(CERTIFICATE, *self)


def rules_of(config: Config) -> Iterator[str]:
    """Yield the rule and the agreement of a configuration by the names that the certifier accepts."""
    yield config.rule
    if config.agreement != "none":
        yield AGREEMENT + config.agreement


def rules_to_certify(suite: Suite, entries: Mapping[str, BenchmarkEntry], cells: list[Cell]) -> list[RuleToCertify]:
    """Return the rules of the entries in these cells, each once per size of federation.

    Cells whose options are not allowed have none; `run_cells` says why.
    """
    found: dict[RuleToCertify, None] = {}
    for cell in cells:
        if cell.entry in entries:
            with contextlib.suppress(UsageError):
                config = cell_config(suite, cell, options_of(suite, entries, cell))
                federation = suite.first_of_size(cell.federation)
                found.update({RuleToCertify(federation, rule): None for rule in rules_of(config)})
    return list(found)


def run_cells(
    suite: Suite,
    entries: Mapping[str, BenchmarkEntry],
    cells: list[Cell],
    folder: str | Path,
    *,
    together: bool = False,
    checkpoint_every: int | None = None,
    reporter: Callable[[int], Reporter | None] = lambda trajectories: None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Train every cell whose record does not exist. A cell that fails does not stop the others.

    Cells that another process is working on are skipped, so several processes, on one machine or on many that share
    the folder, can work on the same suite together. An interrupted training continues from its checkpoint.

    Args:
        suite: the suite.
        entries: the entries of the cells.
        cells: what to train.
        folder: where the records are.
        together: train the attacks of an entry that can share a program together; they have no checkpoints.
        checkpoint_every: iterations between two checkpoints; by default only when the run is interrupted.
        reporter: returns the reporter of a training from its number of trajectories.
        log: receives one line per entry that cannot be run, before anything is trained, and one per program.

    Returns:
        The cells that failed: name -> reason.

    Raises:
        UsageError: if a record exists that belongs to another suite or was made with other options.
        Interrupted: if a signal stopped a training.
    """
    target = make_folder(folder)
    failed: dict[str, str] = {}

    def train(batch: list[Cell], configs: Mapping[Cell, Config], work: Path) -> None:
        names = " + ".join([batch[0].name, *(cell.attack for cell in batch[1:])])
        log(f"[{cells.index(batch[0]) + 1}/{len(cells)}] {names}")
        started, first = time.monotonic(), configs[batch[0]]
        attacks = tuple(cell.attack for cell in batch)
        sharing = sharing_of(suite, batch[0][:2], attacks) if together and batch[0].entry in entries else None
        in_one = len(batch) > 1 or (sharing is not None and sharing.attacks == attacks)  # as tuning does
        if in_one:
            found = [run.metrics for (run,) in train_planned(first, attacks, np.ones(1), sharing)]
        else:
            run = ensure(first, work / "run", reporter(first.trajectories), checkpoint_every=checkpoint_every)
            found = [run.metrics]
        seconds = (time.monotonic() - started) / len(batch)
        for cell, measured in zip(batch, found, strict=True):
            options = options_of(suite, entries, cell)
            write_result(target, suite, cell, options, configs[cell], measured, seconds, together=in_one)

    prepared: list[dict[Cell, Config]] = []
    for batch in batches_of(cells) if together else [[cell] for cell in cells]:
        try:
            prepared.append({cell: cell_config(suite, cell, options_of(suite, entries, cell)) for cell in batch})
        except UsageError as error:
            problem = str(error.__cause__ or error)  # without the name of the cell
            if problem not in failed.values():
                log(f"entry {batch[0].entry} cannot be run: {problem}")
            failed |= dict.fromkeys((cell.name for cell in batch), problem)
    for configs in prepared:
        missing = []
        for cell, config in configs.items():
            if (path := record_path(target, cell.name)).exists():
                read_record(path, suite).check_config(config)
            else:
                missing.append(cell)
        if missing:
            work = target / WORKING / next(iter(configs)).name  # the same for processes that miss other cells
            failed |= _write_once(work, [cell.name for cell in missing], partial(train, missing, configs))
    _remove_if_empty(target / WORKING)
    return failed


def tune_and_run_cells(
    suite: Suite,
    entries: Mapping[str, BenchmarkEntry],
    cells: list[Cell],
    folder: str | Path,
    tuned: str | Path,
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, str]:
    """Tune every entry on a task and train its cells there at once, so that both use programs that are in memory.

    An entry on a task is one piece of work: processes that share the folder take one after another.

    Args:
        suite: as in `run_cells`.
        entries: as in `run_cells`.
        cells: as in `run_cells`.
        folder: as in `run_cells`.
        tuned: the folder of what tuning tried.
        log: as in `run_cells`; it also receives every failure at once.
        **options: further arguments of `run_cells`.

    Returns:
        The cells that failed: name -> reason.
    """
    target, steps, failed = make_folder(folder), make_folder(tuned), dict[str, str]()

    def train(task: str, name: str, own: list[Cell], found: dict[str, str], work: Path) -> None:
        competing = entries
        if name not in NOT_ENTRIES:
            eta = tune_if_missing(suite, entries, name, task, steps)
            competing = with_step_sizes(suite, entries, {(task, name): eta})
        found.update(run_cells(suite, competing, own, target, log=log, **options))

    for task, name in dict.fromkeys((cell.task, cell.entry) for cell in cells):
        own = [cell for cell in cells if (cell.task, cell.entry) == (task, name)]
        work = target / WORKING / record_name(task, name)
        found = dict[str, str]()
        found |= _write_once(work, [cell.name for cell in own], partial(train, task, name, own, found))
        for cell, reason in found.items():
            log(f"{cell} failed: {reason}")
        failed |= found
    _remove_if_empty(target / WORKING)
    return failed


def batches_of(cells: list[Cell]) -> list[list[Cell]]:
    """Divide cells into batches that one program can train: the attacks of an entry in a setting that can share it."""
    batches = []
    for setting in dict.fromkeys(cell[:3] for cell in cells):
        attacks = [cell.attack for cell in cells if cell[:3] == setting]
        batches += [[Cell(*setting, attack) for attack in group] for group in groups_of_attacks(attacks)]
    return batches


def certify_rules(
    suite: Suite, rules: list[RuleToCertify], folder: str | Path, log: Callable[[str], None] = lambda line: None
) -> dict[str, str]:
    """Certify every rule whose record does not exist, and return those that failed: name -> reason."""
    target, failed = make_folder(folder), dict[str, str]()

    def search(rule: RuleToCertify, work: Path) -> None:
        log(rule.name)
        federation = suite.federations[rule.federation]
        K, f = federation.agents, federation.byzantine
        (found,) = certify([rule.rule], agents=K, byzantine=f, budget=suite.certificate)
        write_record(record_path(target, rule.name), suite, {**rule._asdict(), CERTIFICATE: found.as_dict()})

    for rule in rules:
        if (path := record_path(target, rule.name)).exists():
            read_record(path, suite)
        else:
            failed |= _write_once(target / WORKING / rule.name, [rule.name], partial(search, rule))
    _remove_if_empty(target / WORKING)
    return failed


def _write_once(work: Path, names: list[str], job: Callable[[Path], None]) -> dict[str, str]:
    """Run a job that writes records, unless all of them exist or another process is writing them.

    Args:
        work: a folder of the job inside `WORKING`, which is locked meanwhile, so that other processes skip the job at
            once, and removed when the job is done.
        names: of the records.
        job: writes them; it receives `work`.

    Returns:
        If the job failed, the reason for each of these names.
    """
    make_folder(work)
    try:
        with lock_folder(work):
            if not all(record_path(work.parents[1], name).exists() for name in names):
                job(work)
    except Interrupted:
        raise
    except BusyError:
        return {}
    except Exception as error:
        return dict.fromkeys(names, f"{type(error).__name__}: {first_line(error)}")
    shutil.rmtree(work, ignore_errors=True)
    return {}


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder unless something is in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
