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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jaxbyz.certify import Budget
from jaxbyz.configuration.config import FIELDS
from jaxbyz.configuration.resolving import resolve, unknown_option
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.files import read_toml

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
# Options that the suite itself sets for every run. Neither tasks nor entries may set them.
ALONE, MEAN, POOLED = "alone", "mean", "pooled"  # references: one agent, and without liars the mean and one learner
ENTRY_FILES = ("entries.toml", "entries-v2.toml")  # of the package
REFERENCES = {"references": (ALONE, MEAN), "paired": (ALONE, MEAN, POOLED)}  # scoring -> the references that it uses
RUN_OPTIONS = ("agents", "byzantine", "attack", "seeds", "seed", "coin", "start", "output", "unsafe")


class SuiteTask(NamedTuple):
    """A task.

    Attributes:
        name: its name in the suite.
        fixed: options that no entry may change: environment, budget, policy network.
        defaults: options that an entry may change: batch sizes, step size, estimator.
        alone: options of the reference with score 0, one honest agent alone.
        mean: options of the reference with score 1, the attack-free federation with the mean.
        pooled: options of the reference that has the samples of all agents, in suites that have one.
        threshold: the return whose first crossing is reported.
        without: attacks of the suite that are too expensive on this task and not run.
        ranked: whether its scores count in the overall score.
    """

    name: str
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    alone: dict[str, Any]
    mean: dict[str, Any]
    pooled: dict[str, Any]
    threshold: float
    without: tuple[str, ...] = ()
    ranked: bool = True


class FederationSize(NamedTuple):
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


@dataclass(frozen=True)
class Seeds:
    """The seeds of every run.

    Attributes:
        first: the first seed.
        count: the number of seeds of an entry.
        references: the number of seeds of the references, which define the scale of all scores.
    """

    first: int
    count: int
    references: int


class Statistics(NamedTuple):
    """How runs become scores.

    Attributes:
        measure: `average`, the mean return over the whole run, or `final`, that of the last tenth of the budget.
        floor: seeds that became non-finite count as this score, and so do lower scores if `scoring` is `references`.
        resamples: the number of bootstrap samples.
        confidence: the coverage of the intervals.
        scoring: `references` (`jaxbyz.benchmark.reference_scores`) or `paired` (`jaxbyz.benchmark.paired_scores`).
    """

    measure: str
    floor: float
    resamples: int
    confidence: float
    scoring: str = "references"


@dataclass(frozen=True)
class Tuning:
    """The tuning budget that every entry and reference has on each task.

    Attributes:
        first: the first seed; the seeds are not among those of the suite.
        count: the number of seeds.
        attacks: the worst of these decides; references are tuned without attack.
        factors: the default step size of the task times each of these is tried.
        worst: if positive, only so many of the attacks decide: those under which the entry is worst with the factor 1.
    """

    first: int
    count: int
    attacks: tuple[str, ...]
    factors: tuple[float, ...]
    worst: int = 0


class Suite(NamedTuple):
    """The contents of a suite file.

    Attributes:
        name: its name and version.
        summary: one line.
        entries: the file of the package with the entries that compete if no other file is named.
        hash: of the contents; comments and the order of keys do not matter.
        attacks: the attacks, besides `none`; a task or a federation may leave some out.
        seeds: the seeds of every run.
        statistics: how runs become scores.
        tuning: how the hyperparameters of entries may be chosen.
        certificate: how hard the certifier searches.
        tasks: by name.
        federations: by name.
        settings: pairs of a task and a federation, in the order in which they are run.
    """

    name: str
    summary: str
    entries: str
    hash: str
    attacks: tuple[str, ...]
    seeds: Seeds
    statistics: Statistics
    tuning: Tuning
    certificate: Budget
    tasks: dict[str, SuiteTask]
    federations: dict[str, FederationSize]
    settings: tuple[tuple[str, str], ...]

    @property
    def label(self) -> dict[str, str]:
        """What results name their suite by."""
        return {"name": self.name, "hash": self.hash}

    @property
    def references(self) -> tuple[str, ...]:
        """The references of every setting."""
        return REFERENCES[self.statistics.scoring]

    def attacks_in(self, task: str, federation: str) -> tuple[str, ...]:
        """Return the attacks that are run in a setting, besides `none`."""
        left_out = (*self.tasks[task].without, *self.federations[federation].without)
        return tuple(attack for attack in self.attacks if attack not in left_out)

    def first_federation(self, task: str) -> str:
        """Return the first federation of a task, in which entries are tuned."""
        return next(f for t, f in self.settings if t == task)

    def tuning_attacks(self, task: str) -> tuple[str, ...]:
        """Return the attacks under which entries are tuned on a task: those that it does not leave out."""
        return tuple(attack for attack in self.tuning.attacks if attack not in self.tasks[task].without)

    def is_ranked(self, task: str, federation: str) -> bool:
        """Return whether a setting counts in the overall score."""
        return self.tasks[task].ranked and self.federations[federation].ranked

    def first_of_size(self, federation: str) -> str:
        """Return the first federation of the same size, which shares its certificates and `pooled` with this one.

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
    top = Table(values, path).read({name: KINDS[name] for name in Suite._fields if name != "hash"})
    check_name(path, top["name"])
    tasks = {name: _task(name, table) for name, table in top["tasks"].tables().items()}
    federations = {name: _federation(name, table) for name, table in top["federations"].tables().items()}
    parts: dict[str, Any] = {
        "seeds": Seeds(**top["seeds"].read_fields(Seeds)),
        "statistics": Statistics(**top["statistics"].read_fields(Statistics)),
        "tuning": Tuning(**top["tuning"].read_fields(Tuning)),
        "certificate": Budget(**top["certificate"].read(dict.fromkeys(("starts", "climbers", "steps"), COUNT))),
        "settings": _settings(top["settings"], tasks, federations),
    }
    suite = Suite(**{**top, **parts, "tasks": tasks, "federations": federations, "hash": ""})
    if (problem := next(_problems(suite), None)) is not None:
        raise UsageError(f"{path}: {problem}")
    return suite._replace(hash=content_hash(values))  # of checked values only: others may not be JSON values


def content_hash(value: Any) -> str:
    """Return a hash of JSON values that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Kind(NamedTuple):
    """What a value of a suite file may be.

    Attributes:
        type: of the value. Whole numbers are accepted for floats, which must be finite.
        wording: completes the sentence "must be …".
        allowed: returns whether a value of this type is allowed.
        default: the value of a key that is not given; None if it must be given.
    """

    type: Any
    wording: str = ""
    allowed: Callable[[Any], bool] = lambda value: True
    default: Any = None


def _different_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values) and len(set(values)) == len(values)


def _positive_numbers(values: list[Any]) -> bool:
    return bool(values) and all(type(value) in (int, float) and 0 < value < math.inf for value in values)


TEXT, TABLE, OPTIONAL_TABLE = Kind(str), Kind(dict), Kind(dict, default={})
COUNT = Kind(int, "at least 1", lambda value: value >= 1)
TEXTS = Kind(list, "a list of different texts, at least one", lambda values: values and _different_texts(values))
KINDS = {
    **dict.fromkeys(("name", "summary"), TEXT),
    **dict.fromkeys(("count", "references", "resamples", "byzantine"), COUNT),
    **dict.fromkeys(("seeds", "statistics", "tuning", "certificate", "tasks", "federations", "settings"), TABLE),
    **dict.fromkeys(("fixed", "defaults", "alone", "mean", "pooled", "options"), OPTIONAL_TABLE),
    "entries": Kind(str, "entries.toml or entries-v2.toml", lambda value: value in ENTRY_FILES, default="entries.toml"),
    "first": Kind(int, "at least 0", lambda value: value >= 0),
    "agents": Kind(int, "at least 2", lambda value: value >= 2),
    "threshold": Kind(float),
    "floor": Kind(float, "negative", lambda value: value < 0),
    "confidence": Kind(float, "between 0 and 1", lambda value: 0 < value < 1),
    "measure": Kind(str, "average or final", lambda value: value in ("average", "final")),
    "scoring": Kind(str, "references or paired", lambda value: value in REFERENCES, default="references"),
    "worst": Kind(int, "at least 0", lambda value: value >= 0, default=0),
    "attacks": TEXTS,
    "without": Kind(list, "a list of different texts", _different_texts, default=[]),
    "factors": Kind(list, "a list of positive numbers, at least one", _positive_numbers),
    "decentralised": Kind(bool, default=False),
    "ranked": Kind(bool, default=True),
}


class Table(NamedTuple):
    """A table of a TOML file: its values, the file and the place in it, which errors name."""

    values: Mapping[str, Any]
    path: str
    where: str = ""

    def read(self, kinds: Mapping[str, Kind], complete: bool = True) -> dict[str, Any]:
        """Return the values of these kinds by name, with tables as `Table`; refuse missing, wrong and other values.

        Args:
            kinds: what the values may be.
            complete: whether these are all that the table may contain.
        """
        found, others = {}, self.values.keys() - kinds.keys()
        for name, kind in kinds.items():
            place, value = f"{self.path}: {self.where}{name}", self.values.get(name, kind.default)
            if value is None:
                near = difflib.get_close_matches(name, others, n=1)
                raise UsageError(f"{place} is missing{f'; there is {near[0]!r}' if near else ''}")
            if kind.type is float and type(value) is int:
                value = float(value)
            if type(value) is not kind.type:
                raise UsageError(f"{place}={str(value)[:60]} is not of type {kind.type.__name__}")
            if kind.type is float and not math.isfinite(value):
                raise UsageError(f"{place}={value}: must be finite")
            if not kind.allowed(value):
                raise UsageError(f"{place}={str(value)[:60]}: must be {kind.wording}")
            if kind.type is dict:
                value = Table(value, self.path, f"{self.where}{name}.")
            found[name] = tuple(value) if kind.type is list else value
        if complete and others:
            raise UsageError(f"{self.path}: {self.where}{min(others)} is unknown; known: {', '.join(sorted(kinds))}")
        return found

    def read_fields(self, kind: Any, *besides: str) -> dict[str, Any]:
        """Return the values of the fields of a class, besides some of them."""
        return self.read({name: KINDS[name] for name in kind.__annotations__ if name not in besides})

    def tables(self) -> dict[str, Table]:
        """Return the tables inside this one; their names are lowercase with dashes."""
        for name in self.values:
            check_name(f"{self.path}: {self.where}", name)
        return self.read(dict.fromkeys(self.values, TABLE))

    def options(self, refused: tuple[str, ...] = RUN_OPTIONS) -> dict[str, Any]:
        """Return the options of a run in this table.

        Refuse options that do not exist, those that someone else sets, and values that JSON does not have.
        """
        for name, value in self.values.items():
            place = f"{self.path}: {self.where}{name}"
            if name not in FIELDS:
                raise UsageError(f"{self.path}: {self.where.removesuffix('.')}: {unknown_option(name)}")
            if name in refused:
                raise UsageError(f"{place}: the suite sets this option itself")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                shown = str(value)[:60]
                raise UsageError(f"{place}={shown}: must not be a date, a time or non-finite") from error
        return dict(self.values)


def check_name(place: str, name: str) -> None:
    """Refuse a name that is not lowercase with dashes, because names become parts of file names."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{place}: {name[:60]!r} must consist of lowercase letters, digits and dashes")


def _task(name: str, table: Table) -> SuiteTask:
    found = table.read_fields(SuiteTask, "name")
    fixed, defaults = found["fixed"].options(), found["defaults"].options()
    if both := sorted(fixed.keys() & defaults.keys()):
        raise UsageError(f"{table.path}: {table.where}{both[0]} is in fixed and in defaults")
    references = {kind: found[kind].options((*RUN_OPTIONS, *fixed)) for kind in (ALONE, MEAN, POOLED)}
    return SuiteTask(name, **{**found, **references, "fixed": fixed, "defaults": defaults})


def _federation(name: str, table: Table) -> FederationSize:
    found = table.read_fields(FederationSize, "name")
    return FederationSize(name, **{**found, "options": found["options"].options()})


def _settings(
    table: Table, tasks: Mapping[str, SuiteTask], federations: Mapping[str, FederationSize]
) -> tuple[tuple[str, str], ...]:
    pairs = [(t, f) for t, names in table.read(dict.fromkeys(table.values, TEXTS)).items() for f in names]
    if not pairs:
        raise UsageError(f"{table.path}: settings: must name at least one task with its federations")
    for task, federation in pairs:
        if task not in tasks:
            raise UsageError(f"{table.path}: settings.{task}: the suite has no such task")
        if federation not in federations:
            raise UsageError(f"{table.path}: settings.{task}: the suite has no federation {federation!r}")
    return tuple(pairs)


def _problems(suite: Suite) -> Iterator[str]:
    """Yield why no run could use this suite: every task, federation and attack must make a configuration."""
    seeds, tuning = suite.seeds, suite.tuning
    last = seeds.first + max(seeds.count, seeds.references) - 1
    if max(seeds.first, tuning.first) <= min(last, tuning.first + tuning.count - 1):
        yield f"tuning.first={tuning.first}: tuning seeds and seeds of the suite must differ"
    if seeds.count != seeds.references and suite.statistics.scoring == "paired":
        yield f"seeds.references={seeds.references}: paired scores need as many as seeds.count={seeds.count}"
    if tuning.worst and 1.0 not in tuning.factors:
        yield "tuning.factors: must contain 1, with which the worst attacks are chosen"
    if tuning.worst > len(tuning.attacks):
        yield f"tuning.worst={tuning.worst}: there are {len(tuning.attacks)} tuning attacks"
    if "none" in suite.attacks:
        yield "attacks: 'none' is always run; do not name it"
    if others := [name for name in tuning.attacks if name not in (*suite.attacks, "none")]:
        yield f"tuning.attacks: {others[0]!r} is not an attack of the suite"
    for kind, parts in (("tasks", suite.tasks), ("federations", suite.federations)):
        for name, part in parts.items():
            for attack in part.without:
                if attack not in suite.attacks:
                    yield f"{kind}.{name}.without: {attack!r} is not an attack of the suite"
                if attack in tuning.attacks and kind == "federations":
                    yield f"{kind}.{name}.without: {attack!r} is needed for tuning"
    for name in suite.tasks:
        if len(suite.tuning_attacks(name)) < max(1, tuning.worst):
            yield f"tasks.{name}.without: leaves {len(suite.tuning_attacks(name))} tuning attacks"
    for task, federation in ((suite.tasks[t], suite.federations[f]) for t, f in suite.settings):
        attacks = suite.attacks_in(task.name, federation.name)
        if not attacks:
            yield f"task {task.name}, federation {federation.name}: no attack is left"
        size = {"agents": federation.agents, "byzantine": federation.byzantine}
        options = {**task.defaults, **task.fixed, **federation.options, **size}
        for attack in attacks:
            try:
                resolve("default", **options, attack=attack, unsafe=True)
            except UsageError as error:
                yield f"task {task.name}, federation {federation.name}: {error}"
