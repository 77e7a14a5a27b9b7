"""A suite: the tasks, federations, attacks, seeds and statistics that make results comparable.

A suite is a small TOML file. Those of the package are in `jaxbyz/benchmark/suites`. A suite is never changed after its
release: every result carries the hash of its suite, and results with different hashes are not combined.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jaxbyz.certify import Budget
from jaxbyz.configuration.config import FIELDS
from jaxbyz.configuration.resolving import resolve, unknown_option
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.files import read_toml

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
MEASURES = ("average", "final")
# Options that the suite itself sets for every run. Neither tasks nor entries may set them.
RUN_OPTIONS = ("agents", "byzantine", "attack", "seeds", "seed", "coin", "start", "output", "unsafe")


class Task(NamedTuple):
    """A task.

    Attributes:
        name: its name in the suite.
        fixed: options that no entry may change: environment, budget, policy network.
        defaults: options that an entry may change: batch sizes, step size, estimator.
        alone: options of the reference with score 0, one honest agent alone.
        mean: options of the reference with score 1, the attack-free federation with the mean.
        threshold: the return whose first crossing is reported.
        without: attacks of the suite that are too expensive on this task and not run.
    """

    name: str
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    alone: dict[str, Any]
    mean: dict[str, Any]
    threshold: float
    without: tuple[str, ...] = ()


class Federation(NamedTuple):
    """Who takes part.

    Attributes:
        name: its name in the suite.
        agents: the number of agents K.
        byzantine: the number of Byzantine agents f.
        options: further options, which take precedence over those of entries.
        decentralised: whether only entries without a server take part.
        ranked: whether its scores count in the overall score.
        without: attacks of the suite that are too expensive in this federation and not run.
    """

    name: str
    agents: int
    byzantine: int
    options: dict[str, Any]
    decentralised: bool
    ranked: bool
    without: tuple[str, ...] = ()


class Statistics(NamedTuple):
    """How runs become scores.

    Attributes:
        measure: `average`, the mean return over the whole run, or `final`, that of the last tenth of the budget.
        floor: lower scores, and seeds that became non-finite, count as this score.
        resamples: the number of bootstrap samples.
        confidence: the coverage of the intervals.
    """

    measure: str
    floor: float
    resamples: int
    confidence: float


class Tuning(NamedTuple):
    """The tuning budget that every entry and reference has on each task.

    Attributes:
        seeds: the number of seeds, which are not among those of the suite.
        first_seed: the first of them.
        attacks: the worst of these decides; references are tuned without attack.
        factors: the default step size of the task times each of these is tried.
    """

    seeds: int
    first_seed: int
    attacks: tuple[str, ...]
    factors: tuple[float, ...]


class Suite(NamedTuple):
    """The contents of a suite file.

    Attributes:
        name: its name and version.
        summary: one line.
        hash: of the contents; comments and the order of keys do not matter.
        seeds: the number of seeds of every run.
        first_seed: the first of them.
        reference_seeds: the number of seeds of the references, which define the scale of all scores.
        attacks: the attacks, besides `none`; a task or a federation may leave some out.
        tasks: by name.
        federations: by name.
        settings: pairs of a task and a federation, in the order in which they are run.
        statistics: how runs become scores.
        tuning: how the hyperparameters of entries may be chosen.
        certificate: how hard the certifier searches.
    """

    name: str
    summary: str
    hash: str
    seeds: int
    first_seed: int
    reference_seeds: int
    attacks: tuple[str, ...]
    tasks: dict[str, Task]
    federations: dict[str, Federation]
    settings: tuple[tuple[str, str], ...]
    statistics: Statistics
    tuning: Tuning
    certificate: Budget

    @property
    def label(self) -> dict[str, str]:
        """What results name their suite by."""
        return {"name": self.name, "hash": self.hash}

    def attacks_in(self, task: str, federation: str) -> tuple[str, ...]:
        """Return the attacks that are run in a setting, besides `none`."""
        left_out = (*self.tasks[task].without, *self.federations[federation].without)
        return tuple(attack for attack in self.attacks if attack not in left_out)

    def certified_as(self, federation: str) -> str:
        """Return the first federation of the same size, which shares its certificates with this one.

        A certificate of a rule depends on the numbers of agents and of Byzantine agents only.
        """

        def size(name: str) -> tuple[int, int]:
            return self.federations[name].agents, self.federations[name].byzantine

        return next(name for name in self.federations if size(name) == size(federation))


def suite_names() -> list[str]:
    """Return the suites of the package."""
    folder = resources.files("jaxbyz.benchmark") / "suites"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_suite(name: str | Path) -> Suite:
    """Read a suite of the package by its name, or a file by its path.

    Raises:
        UsageError: if there is no such suite, or the file is not one.
    """
    text = str(name)
    if text.endswith(".toml"):
        return parse_suite(read_toml(Path(text)), text)
    check_choice("suite", text, suite_names())
    content = (resources.files("jaxbyz.benchmark") / "suites" / f"{text}.toml").read_text("utf-8")
    return parse_suite(tomllib.loads(content), f"{text}.toml")


def parse_suite(values: dict[str, Any], path: str) -> Suite:
    """Return the suite that a table describes, with every part checked; `path` is named in errors."""
    top = Fields(values, path, "")
    statistics, seeds, tuning = top.table("statistics"), top.table("seeds"), top.table("tuning")
    certificate = top.table("certificate")
    tasks = {name: _task(name, fields) for name, fields in top.tables("tasks").items()}
    federations = {name: _federation(name, fields) for name, fields in top.tables("federations").items()}
    suite = Suite(
        name=top.take("name", str),
        summary=top.take("summary", str),
        hash="",
        seeds=seeds.take("count", int, least=1),
        first_seed=seeds.take("first", int, least=0),
        reference_seeds=seeds.take("references", int, least=1),
        attacks=top.texts("attacks"),
        tasks=tasks,
        federations=federations,
        settings=_settings(top.table("settings"), tasks, federations),
        statistics=Statistics(
            measure=statistics.take("measure", str),
            floor=statistics.take("floor", float),
            resamples=statistics.take("resamples", int, least=1),
            confidence=statistics.take("confidence", float),
        ),
        tuning=Tuning(
            seeds=tuning.take("count", int, least=1),
            first_seed=tuning.take("first", int, least=0),
            attacks=tuning.texts("attacks"),
            factors=tuning.factors("factors"),
        ),
        certificate=Budget(
            starts=certificate.take("starts", int, least=1),
            climbers=certificate.take("climbers", int, least=1),
            steps=certificate.take("steps", int, least=1),
        ),
    )
    for fields in (top, statistics, seeds, tuning, certificate):
        fields.refuse_others()
    _check(suite, path)
    return suite._replace(hash=content_hash(values))  # of checked values only: others may not be JSON values


def content_hash(value: Any) -> str:
    """Return a hash of JSON values that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Fields:
    """A table of a TOML file, whose entries are taken out one by one and checked."""

    def __init__(self, values: Mapping[str, Any], path: str, where: str):
        self.values, self.path, self.where = values, path, where
        self.known: set[str] = set()

    def take(self, name: str, kind: Any, default: Any = None, least: float | None = None) -> Any:
        """Return the value of this name; whole numbers are accepted for floats. Without a default it must exist."""
        self.known.add(name)
        value = self.values.get(name, default)
        if value is None:
            near = difflib.get_close_matches(name, self.values.keys() - self.known, n=1)
            raise UsageError(f"{self.path}: {self.where}{name} is missing{f'; there is {near[0]!r}' if near else ''}")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UsageError(f"{self.path}: {self.where}{name}={str(value)[:60]} is not of type {kind.__name__}")
        if kind is float and not math.isfinite(value):
            raise UsageError(f"{self.path}: {self.where}{name}={value}: must be finite")
        if least is not None and value < least:
            raise UsageError(f"{self.path}: {self.where}{name}={value}: must be at least {least}")
        return value

    def table(self, name: str, optional: bool = False) -> Fields:
        """Return the table of this name."""
        return Fields(self.take(name, dict, {} if optional else None), self.path, f"{self.where}{name}.")

    def tables(self, name: str) -> dict[str, Fields]:
        """Return the tables inside the table of this name; their names are lowercase with dashes."""
        found = self.table(name)
        for inner in found.values:
            check_name(self.path, f"{self.where}{name}", inner)
        return {inner: found.table(inner) for inner in found.values}

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of texts of this name, which is not empty and names nothing twice."""
        values = self.take(name, list)
        if not values or not all(isinstance(value, str) for value in values) or len(set(values)) < len(values):
            raise UsageError(f"{self.path}: {self.where}{name}: must be a list of different texts, at least one")
        return tuple(values)

    def optional_texts(self, name: str) -> tuple[str, ...]:
        """Return the list of texts of this name, or none if it is not given."""
        return self.texts(name) if name in self.values else ()

    def factors(self, name: str) -> tuple[float, ...]:
        """Return the list of positive numbers of this name, which is not empty."""
        values = self.take(name, list)
        if not values or any(type(value) not in (int, float) or not 0 < value < math.inf for value in values):
            raise UsageError(f"{self.path}: {self.where}{name}: must be a list of positive numbers, at least one")
        return tuple(map(float, values))

    def options(self, name: str, refused: tuple[str, ...] = RUN_OPTIONS) -> dict[str, Any]:
        """Return a table of options of a run."""
        values = dict(self.table(name, optional=True).values)
        check_options(self.path, f"{self.where}{name}", values, refused)
        return values

    def refuse_others(self) -> None:
        """Raise if the table has entries that nobody took."""
        if others := sorted(self.values.keys() - self.known):
            raise UsageError(f"{self.path}: {self.where}{others[0]} is unknown; known: {', '.join(sorted(self.known))}")


def check_name(path: str, where: str, name: str) -> None:
    """Refuse a name that is not lowercase with dashes, because names become parts of file names."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{path}: {where}: {name[:60]!r} must consist of lowercase letters, digits and dashes")


def check_options(path: str, where: str, options: Mapping[str, Any], refused: tuple[str, ...]) -> None:
    """Refuse options that do not exist, those that someone else sets, and values that JSON does not have."""
    for name, value in options.items():
        if name not in FIELDS:
            raise UsageError(f"{path}: {where}: {unknown_option(name)}")
        if name in refused:
            raise UsageError(f"{path}: {where}.{name}: the suite sets this option itself")
        if not is_json(value):
            raise UsageError(f"{path}: {where}.{name}={str(value)[:60]}: must not be a date, a time or non-finite")


def is_json(value: Any) -> bool:
    """Return whether a TOML value is a JSON value: neither a date or a time, nor a number that is not finite."""
    if isinstance(value, dict):
        return all(map(is_json, value.values()))
    if isinstance(value, list):
        return all(map(is_json, value))
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, (str, int))


def _task(name: str, fields: Fields) -> Task:
    fixed, defaults = fields.options("fixed"), fields.options("defaults")
    if both := sorted(fixed.keys() & defaults.keys()):
        raise UsageError(f"{fields.path}: {fields.where}{both[0]} is in fixed and in defaults")
    references = {kind: fields.options(kind, (*RUN_OPTIONS, *fixed)) for kind in ("alone", "mean")}
    threshold = fields.take("threshold", float)
    task = Task(
        name, fixed, defaults, references["alone"], references["mean"], threshold, fields.optional_texts("without")
    )
    fields.refuse_others()
    return task


def _federation(name: str, fields: Fields) -> Federation:
    federation = Federation(
        name=name,
        agents=fields.take("agents", int, least=2),
        byzantine=fields.take("byzantine", int, least=1),
        options=fields.options("options"),
        decentralised=fields.take("decentralised", bool, False),
        ranked=fields.take("ranked", bool, True),
        without=fields.optional_texts("without"),
    )
    fields.refuse_others()
    return federation


def _settings(
    fields: Fields, tasks: Mapping[str, Task], federations: Mapping[str, Federation]
) -> tuple[tuple[str, str], ...]:
    pairs = []
    for task in fields.values:
        if task not in tasks:
            raise UsageError(f"{fields.path}: settings.{task}: the suite has no such task")
        for federation in fields.texts(task):
            if federation not in federations:
                raise UsageError(f"{fields.path}: settings.{task}: the suite has no federation {federation!r}")
            pairs.append((task, federation))
    if not pairs:
        raise UsageError(f"{fields.path}: settings: must name at least one task with its federations")
    return tuple(pairs)


def _check(suite: Suite, path: str) -> None:
    """Refuse values that no run could use: every task, federation and attack must make a configuration."""
    check_name(path, "name", suite.name)
    statistics = suite.statistics
    if statistics.measure not in MEASURES:
        raise UsageError(f"{path}: statistics.measure={statistics.measure!r}: must be {' or '.join(MEASURES)}")
    if not 0 < statistics.confidence < 1:
        raise UsageError(f"{path}: statistics.confidence={statistics.confidence}: must be between 0 and 1")
    if statistics.floor >= 0:
        raise UsageError(f"{path}: statistics.floor={statistics.floor}: must be negative")
    seeds = range(suite.first_seed, suite.first_seed + max(suite.seeds, suite.reference_seeds))
    tuning = range(suite.tuning.first_seed, suite.tuning.first_seed + suite.tuning.seeds)
    if max(seeds[0], tuning[0]) <= min(seeds[-1], tuning[-1]):
        raise UsageError(f"{path}: tuning.first={tuning[0]}: tuning seeds and seeds of the suite must differ")
    if "none" in suite.attacks:
        raise UsageError(f"{path}: attacks: 'none' is always run; do not name it")
    if others := [name for name in suite.tuning.attacks if name not in (*suite.attacks, "none")]:
        raise UsageError(f"{path}: tuning.attacks: {others[0]!r} is not an attack of the suite")
    for kind, parts in (("tasks", suite.tasks), ("federations", suite.federations)):
        for name, part in parts.items():
            if others := [attack for attack in part.without if attack not in suite.attacks]:
                raise UsageError(f"{path}: {kind}.{name}.without: {others[0]!r} is not an attack of the suite")
            if others := [attack for attack in part.without if attack in suite.tuning.attacks]:
                raise UsageError(f"{path}: {kind}.{name}.without: {others[0]!r} is needed for tuning")
    for task, federation in ((suite.tasks[t], suite.federations[f]) for t, f in suite.settings):
        size = {"agents": federation.agents, "byzantine": federation.byzantine}
        if not suite.attacks_in(task.name, federation.name):
            raise UsageError(f"{path}: task {task.name}, federation {federation.name}: no attack is left")
        for attack in suite.attacks_in(task.name, federation.name):
            options = {**task.defaults, **task.fixed, **federation.options, **size}
            try:
                resolve("default", **options, attack=attack, unsafe=True)
            except UsageError as error:
                raise UsageError(f"{path}: task {task.name}, federation {federation.name}: {error}") from error
