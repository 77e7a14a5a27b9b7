"""What pictures and the report need to know of runs: which they are, what they are called, what they compare."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.experiments.config import FIELDS, Config, rule_spec, traits_of
from jaxbyz.experiments.run_folder import RunData, load_run
from jaxbyz.report.tables import final_returns


class Finished(Protocol):
    """A run that can be drawn: `RunData` from a folder, or an `Experiment` straight from `experiment.run`."""

    @property
    def config(self) -> Config: ...
    @property
    def metrics(self) -> dict[str, np.ndarray]: ...


def load_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Run folders, and folders of run folders: a path that holds no run itself stands for those below it."""
    found: list[Path] = []
    for path in map(Path, paths):
        below = sorted(file.parent for file in path.rglob("config.json")) if path.is_dir() else []
        found += [path] if path in below or not below else below
    return [load_run(path) for path in dict.fromkeys(found)]


def check_same_environment(runs: Sequence[Finished]) -> str:
    """The one environment of all runs; several cannot share a picture."""
    names = {run.config.env for run in runs}
    if len(names) > 1:
        raise UsageError(f"folders of different environments in one plot: {', '.join(sorted(names))}; draw each alone")
    return names.pop()


def label(run: Finished) -> str:
    """A line that tells runs apart."""
    config = run.config
    text = f"{config.algorithm}, K={config.agents}"
    return text + (f", {config.byzantine} Byzantine ({config.attack})" if config.byzantine else ", all honest")


def labels(runs: Sequence[Finished]) -> list[str]:
    """A line for each run; runs whose lines would be alike get what they differ in, or else their folder."""
    lines = [label(run) for run in runs]
    for line in set(lines):
        alike = [i for i, other in enumerate(lines) if other == line]
        if len(alike) == 1:
            continue
        varying = [n for n in FIELDS if n != "unsafe" and len({getattr(runs[i].config, n) for i in alike}) > 1]
        extras = [", ".join(f"{name}={getattr(runs[i].config, name)}" for name in varying) for i in alike]
        unique = len(set(extras)) == len(alike)
        for i, extra in zip(alike, extras, strict=True):
            lines[i] = f"{line}, {extra if unique else getattr(runs[i], 'folder', f'run {i}')}"
    return lines


def rule_name(config: Config) -> str:
    """The defence: algorithm, aggregator, agreement; algorithms that bring their own are their name."""
    if traits_of(config).naive:
        return config.algorithm
    parts = [config.algorithm, rule_spec(config)]
    return " · ".join(parts if config.agreement in ("none", "mda") else [*parts, config.agreement])


def command(config: Config) -> str:
    """The command that repeats a run, whatever the presets' numbers become."""
    words = ["jaxbyz", "train", "--preset", "default"]
    for name, field in FIELDS.items():
        value = getattr(config, name)
        if value == field.default:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace("None", "none"))
    return shlex.join(words)


class Cell(NamedTuple):
    """Final returns of one rule under one attack: mean over [seeds], and the seeds themselves."""

    mean: float
    seeds: np.ndarray


class AttackTable(NamedTuple):
    """rules × attacks; None where there is no run."""

    rules: list[str]
    attacks: list[str]
    cells: list[list[Cell | None]]


# Options that the table's rows and columns name, or that make no other experiment of a run.
NAMED = ("algorithm", "aggregator", "pre_aggregator", "agreement", "attack", "byzantine", "seed", "seeds", "unsafe")


def table_of(runs: Sequence[Finished]) -> AttackTable:
    """Final returns by rule and attack. Runs that differ in other options have rows of their own, which name them;
    runs that differ in their seeds only count as more seeds."""
    other = [n for n in FIELDS if n not in NAMED and len({getattr(run.config, n) for run in runs}) > 1]
    seeds: dict[tuple[str, str], list[np.ndarray]] = {}
    for run in runs:
        attack = run.config.attack if run.config.byzantine else "all honest"
        rule = ", ".join([rule_name(run.config), *(f"{n}={getattr(run.config, n)}" for n in other)])
        seeds.setdefault((rule, attack), []).append(final_returns(run.metrics))
    rules = list(dict.fromkeys(rule for rule, _ in seeds))
    attacks = list(dict.fromkeys(attack for _, attack in seeds))
    merged = {pair: np.concatenate(parts) for pair, parts in seeds.items()}
    cells = [
        [Cell(float(merged[rule, attack].mean()), merged[rule, attack]) if (rule, attack) in merged else None
         for attack in attacks]
        for rule in rules
    ]  # fmt: skip
    return AttackTable(rules, attacks, cells)


class Shares(NamedTuple):
    """values [K, G]: share of each sender, mean over seeds and over what lies between trajectories [G] and the one
    before; byzantine [K]: who lied more often than not."""

    values: np.ndarray
    trajectories: np.ndarray
    byzantine: np.ndarray


def shares_over_time(run: Finished, columns: int = 80) -> Shares:
    """Who is trusted. A server's small batches aggregate nobody, rules without shares report NaN: both are left out."""
    shares, spent = run.metrics["shares"], run.metrics["trajectories"][0]
    counted = np.isfinite(shares).all(axis=(0, 2)) & (shares.sum(axis=2) > 0).all(axis=0)
    if not counted.any():
        raise UsageError(f"aggregator {run.config.aggregator} does not say whose messages it uses")
    chosen, at = shares[:, counted].mean(axis=0), spent[counted]
    parts = np.array_split(np.arange(len(at)), min(columns, len(at)))
    return Shares(
        np.stack([chosen[part].mean(axis=0) for part in parts], axis=1),
        np.array([at[part[-1]] for part in parts]),
        run.metrics["byzantine"].mean(axis=(0, 1)) > 0.5,
    )
