"""What pictures and the report need to know about runs: labels, commands, shares over time."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from jaxbyz.configuration.config import FIELDS, Config
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.federation.keys import FEDERATION_FILE
from jaxbyz.federation.results import is_federation, load_federation
from jaxbyz.registry import import_options
from jaxbyz.runs.run_folder import RunData, load_run

# metric with one value per iteration -> axis label; the order is that of menus
METRIC_LABELS = {
    "returns": "honest return",
    "worst_agent": "return of the worst honest agent",
    "return_spread": "standard deviation of returns over honest agents",
    "length": "episode length (steps)",
    "diameter": "largest distance between honest agents",
    "ess": "effective sample size / batch size",
    "max_weight": "largest importance weight",
    "byzantine_weight": "total share of Byzantine messages",
    "gradient_norm": "norm of the aggregate",
    "rounds": "agreement rounds",
    "bytes_sent": "bytes sent per iteration",
    "bytes_moved": "bytes moved between devices per iteration",
    "batch": "trajectories per iteration",
    "coin": "share of large batches",
    "finite": "share of finite iterations",
    "trajectories": "trajectories per agent",
}


class FinishedRun(Protocol):
    """A run that can be drawn: `RunData` read from a folder, or the `Experiment` that training returns."""

    @property
    def config(self) -> Config: ...
    @property
    def metrics(self) -> dict[str, np.ndarray]: ...


def load_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Load run folders, finished or not. A folder that is not a run itself stands for all run folders below it.

    A federation of processes is one run, although every node has a run folder of its own.
    """
    folders: list[Path] = []
    for path in map(Path, paths):
        federations = [file.parent for file in path.rglob(FEDERATION_FILE) if is_federation(file.parent)]
        runs = [file.parent for file in path.rglob("config.json") if file.parent.parent not in federations]
        below = sorted([*federations, *runs])
        folders += [path] if path in below or not below else below
    return [
        load_federation(path) if is_federation(path) else load_run(path, log=lambda line: None)
        for path in dict.fromkeys(folders)
    ]


def common_environment(runs: Sequence[FinishedRun]) -> str:
    """Return the environment of all runs; refuse runs of different environments, which cannot share a picture."""
    names = {run.config.env for run in runs}
    if len(names) > 1:
        found = ", ".join(sorted(names))
        raise UsageError(f"the runs use different environments ({found}); draw each environment separately")
    return names.pop()


def check_metric(run: FinishedRun, metric: str) -> None:
    """Refuse a metric that the run does not have, or that is not one number per iteration."""
    check_choice("metric", metric, [name for name, values in run.metrics.items() if values.ndim == 2])


def differing_options(runs: Sequence[FinishedRun], without: Collection[str] = ()) -> list[str]:
    """Return the options in which runs differ, except some, and except an `eta_end` that follows from `eta`."""
    different = [name for name in FIELDS if len({getattr(run.config, name) for run in runs}) > 1]
    if len({run.config.eta_end and round(run.config.eta_end / run.config.eta, 9) for run in runs}) == 1:
        different = [name for name in different if name != "eta_end"]
    return [name for name in different if name not in without]


def assignments(run: FinishedRun, names: Sequence[str]) -> list[str]:
    """Return the values of options of a run, as `eta=0.01`."""
    values = {name: getattr(run.config, name) for name in names}
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()]


# Options that `labels` words itself, or that do not make a run a different experiment.
WORDED_OPTIONS = (
    "algorithm", "aggregator", "pre_aggregator", "agreement", "attack", "byzantine", "agents", "unsafe", "env",
)  # fmt: skip


def attack_name(config: Config) -> str:
    """Name the attack on a run."""
    return config.attack if config.byzantine else "all honest"


def _parts(config: Config) -> dict[str, str]:
    """Return what can be said about a run in a few words, by topic."""
    parts = dict(zip(("algorithm", "rule", "agreement"), defence_name(config).split(" · "), strict=False))
    parts |= {"attack": attack_name(config), "agents": f"K={config.agents}"}
    return parts | ({"byzantine": f"{config.byzantine} Byzantine"} if config.byzantine else {})


def setting(runs: Sequence[FinishedRun]) -> str:
    """Describe what all runs have in common: environment, and algorithm, agents and attack if they are the same."""
    parts = [_parts(run.config) for run in runs]
    same = {topic: text for topic, text in parts[0].items() if all(other.get(topic) == text for other in parts)}
    defence = " · ".join(same[topic] for topic in ("algorithm", "rule", "agreement") if topic in same)
    agents = same.get("agents", "").replace("K=", "") + " agents" if "agents" in same else ""
    liars = " ".join(filter(None, (same.get("byzantine", ""), f"({same['attack']})" if "attack" in same else "")))
    liars = "all honest" if same.get("attack") == "all honest" else liars
    return ", ".join(filter(None, (common_environment(runs), *_changes(runs), defence, agents, liars)))


def _changes(runs: Sequence[FinishedRun]) -> list[str]:
    """Return how the environment of all runs differs from the nominal one, and those of the agents from each other."""
    words = {"env_param": "{}", "env_spread": "agents differ by ±{}", "env_agents": "agents differ"}
    values = {name: {getattr(run.config, name) for run in runs} for name in words}
    return [words[name].format(*found) for name, found in values.items() if len(found) == 1 and any(found)]


def labels(runs: Sequence[FinishedRun], without: str | None = None) -> list[str]:
    """Describe every run by what differs between the runs; a single run by everything that `setting` says.

    Runs that no option distinguishes are extended by the folder.

    Args:
        runs: the runs.
        without: an option that need not be mentioned, because it is said elsewhere.
    """
    if len(runs) == 1:
        return [", ".join(_parts(runs[0].config).values())]
    parts = [_parts(run.config) for run in runs]
    topics = [t for t in dict.fromkeys(t for part in parts for t in part) if len({part.get(t) for part in parts}) > 1]
    if "attack" in topics and len({run.config.byzantine for run in runs if run.config.byzantine}) < 2:
        topics = [topic for topic in topics if topic != "byzantine"]
    others = differing_options(runs, WORDED_OPTIONS)
    texts = [
        ", ".join(
            [part[topic] for topic in topics if topic in part and topic != without]
            + assignments(run, [name for name in others if name != without])
        )
        for part, run in zip(parts, runs, strict=True)
    ]
    for text in set(texts):
        equal = [i for i, other in enumerate(texts) if other == text]
        if without is not None or len(equal) == 1:
            continue
        differing = differing_options([runs[i] for i in equal], ("unsafe",))
        options = [", ".join(assignments(runs[i], differing)) for i in equal]
        unique = len(set(options)) == len(equal)
        for i, option in zip(equal, options, strict=True):
            difference = option if unique else str(getattr(runs[i], "folder", f"run {i}"))
            texts[i] = ", ".join(filter(None, (text, difference)))
    return texts


def defence_name(config: Config) -> str:
    """Name the defence: algorithm, aggregator and, unless it is the usual MDA, agreement."""
    if config.traits.naive:
        return config.algorithm
    names = [config.algorithm, config.rule]
    return " · ".join(names if config.agreement in ("none", "mda") else [*names, config.agreement])


def training_command(config: Config, imported: Sequence[str] = ()) -> str:
    """Return the command that repeats a run, independent of the numbers in presets.

    Args:
        config: the configuration of the run.
        imported: the files and modules that it needs, for `--import`.
    """
    words = ["jaxbyz", *import_options(imported), "train", "--preset", "default"]
    # By default the horizon is the environment's, and the aggregator the mean if nobody is Byzantine.
    derived = ("horizon", "aggregator") if config.byzantine == 0 else ("horizon",)
    for name, field in FIELDS.items():
        value = getattr(config, name)
        if value == field.default and name not in derived:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace("None", "none"))
    return shlex.join(words)


class SharesOverTime(NamedTuple):
    """How much each sender counts in the aggregate, in G intervals of a run.

    Attributes:
        shares: `[K, G]`, mean share of each sender over seeds and over the iterations of each interval.
        trajectories: `[G]`, trajectories per agent at the end of each interval.
        byzantine: `[K]`, True for senders that were Byzantine in most iterations.
    """

    shares: np.ndarray
    trajectories: np.ndarray
    byzantine: np.ndarray


def brightest_share(agents: int) -> float:
    """Return the share from which on pictures show the brightest colour: three times an equal share."""
    return 3 / agents


def shares_over_time(run: FinishedRun, intervals: int = 80) -> SharesOverTime:
    """Average the shares over time intervals.

    Iterations without shares are skipped: those in which the server sampled alone.

    Raises:
        UsageError: if the rule does not report shares.
    """
    shares, trajectories = run.metrics["shares"], run.metrics["trajectories"][0]
    has_shares = np.isfinite(shares).all(axis=(0, 2)) & (shares.sum(axis=2) > 0).all(axis=0)
    if not has_shares.any():
        raise UsageError(f"aggregator {run.config.aggregator} does not report whose messages it uses")
    shares, trajectories = shares[:, has_shares].mean(axis=0), trajectories[has_shares]
    parts = np.array_split(np.arange(len(trajectories)), min(intervals, len(trajectories)))
    return SharesOverTime(
        np.stack([shares[part].mean(axis=0) for part in parts], axis=1),
        np.array([trajectories[part[-1]] for part in parts]),
        run.metrics["byzantine"].mean(axis=(0, 1)) > 0.5,
    )
