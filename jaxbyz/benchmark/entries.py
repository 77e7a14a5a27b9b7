"""Entries of the benchmark: configurations that compete, and the cells in which they are run.

An entry file names each entry with its options, and options that differ between tasks:

[decbyzpg-krum]
summary = "DecByzPG with Krum"
algorithm = "decbyzpg"
aggregator = "krum"
[decbyzpg-krum.tasks.cartpole]
eta = 5e-3
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jaxbyz.benchmark.records import record_name
from jaxbyz.benchmark.suite import (
    ALONE,
    ENTRY_FILES,
    MEAN,
    OPTIONAL_TABLE,
    POOLED,
    RUN_OPTIONS,
    TEXT,
    Suite,
    Table,
    load_suite,
    suite_names,
)
from jaxbyz.configuration.config import TYPES, Config
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError, check_choice, unknown
from jaxbyz.files import read_toml
from jaxbyz.registry import convert

NOT_ENTRIES = (ALONE, MEAN, POOLED)  # the names of references
ONE_AGENT = "one-agent"  # stands for the federation in the cell of `alone`
NO_ATTACK = "none"


class BenchmarkEntry(NamedTuple):
    """A configuration that competes.

    Attributes:
        name: its name on the leaderboard.
        summary: one line.
        options: its options on every task.
        by_task: further options, by the name of a task.
    """

    name: str
    summary: str
    options: dict[str, Any]
    by_task: dict[str, dict[str, Any]]

    def options_on(self, task: str) -> dict[str, Any]:
        """Return all options of the entry on a task."""
        return {**self.options, **self.by_task.get(task, {})}


class Cell(NamedTuple):
    """One training of the benchmark: all seeds of an entry on a task, in a federation, under an attack."""

    task: str
    federation: str
    entry: str
    attack: str

    @property
    def name(self) -> str:
        """The name of its record."""
        return record_name(*self)


def load_entries(path: str | Path | None = None, file: str = ENTRY_FILES[0]) -> dict[str, BenchmarkEntry]:
    """Read an entry file; without a path, one of the package.

    Raises:
        UsageError: if the file cannot be read, or an entry sets an option that does not exist or that suites set.
    """
    if path is not None:
        return parse_entries(read_toml(Path(path)), str(path))
    text = (resources.files("jaxbyz.benchmark") / file).read_text("utf-8")
    return parse_entries(tomllib.loads(text), file)


def parse_entries(values: Mapping[str, Any], path: str) -> dict[str, BenchmarkEntry]:
    """Return the entries that a table describes; `path` is named in errors."""
    entries = {}
    for name, table in Table(values, path).tables().items():
        if name in NOT_ENTRIES:
            raise UsageError(f"{path}: {name!r} is a reference of every suite; choose another name")
        found = table.read({"summary": TEXT, "tasks": OPTIONAL_TABLE}, complete=False)
        by_task = {task: options.options() for task, options in found["tasks"].tables().items()}
        others = {key: value for key, value in table.values.items() if key not in found}
        entries[name] = BenchmarkEntry(name, found["summary"], table._replace(values=others).options(), by_task)
    if not entries:
        raise UsageError(f"{path}: names no entry")
    return entries


def with_step_sizes(
    suite: Suite, entries: Mapping[str, BenchmarkEntry], best: Mapping[tuple[str, str], float]
) -> dict[str, BenchmarkEntry]:
    """Return the entries with tuned step sizes: (task, entry) -> η. A decay keeps its ratio η_end/η.

    An entry whose own step size is not allowed is left as it is, so that its run says so.
    """
    tuned = dict(entries)
    for (task, name), eta in best.items():
        if name in entries and task in suite.tasks:
            entry = tuned[name]
            with contextlib.suppress(UsageError):
                options = step_size(eta, decay_of(suite, task, entry.options_on(task)))
                tuned[name] = entry._replace(
                    by_task={**entry.by_task, task: {**entry.by_task.get(task, {}), **options}}
                )
    return tuned


def decay_of(suite: Suite, task: str, options: Mapping[str, Any]) -> float | None:
    """Return η_end/η of an entry with these options on a task; None if its step size is constant.

    Raises:
        UsageError: if one of them is not a number, or η is not positive.
    """
    described = suite.tasks[task]
    values = {"eta": Config.eta, "eta_end": Config.eta_end, **described.defaults, **described.fixed, **options}
    eta, end = (convert(name, TYPES[name], values[name]) for name in ("eta", "eta_end"))
    if not eta > 0:
        raise UsageError(f"eta={eta}: must be positive")
    return None if end is None else float(end / eta)


def step_size(eta: float, decay: float | None) -> dict[str, float]:
    """Return the options for a step size η that decays to this share of it, or is constant."""
    return {"eta": eta} if decay is None else {"eta": eta, "eta_end": decay * eta}


def check_tasks(suite: Suite, entries: Mapping[str, BenchmarkEntry]) -> None:
    """Refuse options for a task that neither this suite nor one of the package has, such as a misspelt one."""
    known = {task: None for other in (suite, *map(load_suite, suite_names())) for task in other.tasks}
    for entry in entries.values():
        for task in entry.by_task:
            if task not in known:
                raise UsageError(f"entry {entry.name}: {unknown('task', task, list(known))}")


def select(kind: str, names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the named ones of what is known, or all; refuse unknown names."""
    for name in names or ():
        check_choice(kind, name, known)
    return [name for name in known if not names or name in names]


def reference_cell(suite: Suite, name: str, task: str, federation: str) -> Cell:
    """Return the cell of a reference in a setting. Settings share those that do not depend on all of the federation."""
    places = {ALONE: ONE_AGENT, MEAN: federation, POOLED: suite.first_of_size(federation)}
    return Cell(task, places[name], name, NO_ATTACK)


def reference_cells(suite: Suite, task: str, federation: str) -> list[Cell]:
    """Return the cells of all references in a setting, among them those with the scores 0 and 1."""
    return [reference_cell(suite, name, task, federation) for name in suite.references]


def cells_of(suite: Suite, entries: Mapping[str, BenchmarkEntry]) -> list[Cell]:
    """Return all cells of a suite, first the references, then entry by entry: what is stopped has complete entries.

    Entries with a server do not take part in decentralised federations.
    """
    cells = {cell: None for setting in suite.settings for cell in reference_cells(suite, *setting)}
    for entry in entries.values():
        for task, federation in suite.settings:
            if takes_part(suite, entry, task, federation):
                attacks = (NO_ATTACK, *suite.attacks_in(task, federation))
                cells.update({Cell(task, federation, entry.name, attack): None for attack in attacks})
    return list(cells)


def takes_part(suite: Suite, entry: BenchmarkEntry, task: str, federation: str) -> bool:
    """Return whether an entry competes in a setting. One with options that are not allowed does: its run says so."""
    if not suite.federations[federation].decentralised:
        return True
    try:
        config = cell_config(suite, Cell(task, federation, entry.name, NO_ATTACK), entry.options_on(task))
    except UsageError:
        return True
    return not config.traits.central


def options_of(suite: Suite, entries: Mapping[str, BenchmarkEntry], cell: Cell) -> dict[str, Any]:
    """Return the options of the entry or the reference of a cell."""
    task = suite.tasks[cell.task]
    references = {
        ALONE: {"algorithm": "page-pg", **task.alone},
        MEAN: {"algorithm": "dec-page-pg", **task.mean},
        POOLED: {"algorithm": "page-pg", **task.pooled},
    }
    if cell.entry in references:
        return references[cell.entry]
    return entries[cell.entry].options_on(cell.task)


def cell_config(suite: Suite, cell: Cell, options: Mapping[str, Any], **changes: Any) -> Config:
    """Return the configuration of a cell.

    Args:
        suite: sets the task, the federation, the seeds and the attack.
        cell: which training.
        options: of the entry or the reference; the suite's fixed options cannot be among them.
        **changes: options that replace others, for tuning.

    Raises:
        UsageError: if the options are not allowed.
    """
    task = suite.tasks[cell.task]
    for name in options:
        if name in task.fixed or name in RUN_OPTIONS:
            raise UsageError(f"entry {cell.entry}: {name} is fixed by the suite on task {cell.task}")
    count = suite.seeds.references if cell.entry in NOT_ENTRIES else suite.seeds.count
    seeds = {"seeds": count, "seed": suite.seeds.first, "coin": "own"}
    merged = {**task.defaults, **task.fixed, **options}
    merged |= {**_who_learns(suite, cell, merged), **seeds, **changes}
    try:
        return resolve("default", **merged, attack=cell.attack, unsafe=True)
    except UsageError as error:
        raise UsageError(f"{cell.name}: {error}") from error


def _who_learns(suite: Suite, cell: Cell, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the federation of a cell, or of the one learner that stands for it."""
    if cell.entry == ALONE:
        return {"agents": 1, "byzantine": 0}
    federation = suite.federations[cell.federation]
    K = federation.agents
    if cell.entry == POOLED:  # the samples of all agents per batch, and for as many batches
        return {"agents": 1, "byzantine": 0, **{name: K * options[name] for name in ("N", "B", "trajectories")}}
    return {**federation.options, "agents": K, "byzantine": 0 if cell.entry == MEAN else federation.byzantine}
