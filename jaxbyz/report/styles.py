"""Colours and dashes of runs. One colour is one method in all pictures of a project folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxbyz.errors import UsageError
from jaxbyz.report.runs import FinishedRun, defence_name, labels
from jaxbyz.runs import run_record
from jaxbyz.runs.run_folder import load_config

COLOURS, DASHES = 8, 4  # how many there are
PROJECT = "runs"  # the folder below which `jaxbyz train` writes by default


class Style(NamedTuple):
    """How a run is drawn: the number of its colour, and that of its pattern of dashes (0 for a solid line)."""

    colour: int
    dash: int


def project_folder(folder: Path) -> Path:
    """Return the folder whose runs share colours: the outermost one called `runs`, or else the folder's parent."""
    folder = folder.absolute()
    named = [parent for parent in folder.parents if parent.name == PROJECT]
    return named[-1] if named else folder.parent


def project_methods(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the methods in the project folders of runs in the order in which they were first started.

    Later runs therefore do not change the colours of earlier ones.
    """
    projects = {project_folder(folder) for run in runs if (folder := getattr(run, "folder", None)) is not None}
    started: dict[str, str] = {}
    files = [file for project in projects for depth in ("*", "*/*") for file in project.glob(f"{depth}/config.json")]
    for file in sorted(files):
        try:
            method = defence_name(load_config(file.parent, names=False))
        except (UsageError, KeyError):  # another version, or a rule that is not registered here
            continue
        start = str(run_record.read(file.parent).get("started", ""))
        started[method] = min(start, started.get(method, start))
    known = sorted(started, key=lambda method: (started[method], method))
    return list(dict.fromkeys([*known, *(defence_name(run.config) for run in runs)]))


def method_colours(runs: Sequence[FinishedRun]) -> dict[str, int]:
    """Return the colour of every method of the project; those of `runs` differ as long as there are colours."""
    project = project_methods(runs)
    shown = {defence_name(run.config) for run in runs}
    colours: dict[str, int] = {name: number % COLOURS for number, name in enumerate(project)}
    taken: set[int] = set()
    for name in (name for name in project if name in shown):
        free = [colour for colour in range(COLOURS) if colour not in taken]
        if colours[name] in taken and free:
            colours[name] = free[0]
        taken.add(colours[name])
    return colours


def styles(runs: Sequence[FinishedRun], varying: str | None = None) -> list[Style]:
    """Return how runs are drawn: one colour per method, and dashes to tell runs of the same method apart.

    If all runs use the same method, the second and later ones have colours that no method of the project has.

    Args:
        runs: the runs.
        varying: an option that need not be shown, because it is shown otherwise.
    """
    methods, colours = [defence_name(run.config) for run in runs], method_colours(runs)
    texts = labels(runs, without=varying)
    if len(set(methods)) == 1:
        own = colours[methods[0]]
        free = [own, *(colour for colour in range(COLOURS) if colour not in colours.values())]
        order = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return [Style(free[order[t] % len(free)], order[t] // len(free) % DASHES) for t in texts]
    seen: dict[int, dict[str, int]] = {}  # colour -> label -> its number
    found = []
    for method, text in zip(methods, texts, strict=True):
        with_colour = seen.setdefault(colours[method], {})
        found.append(Style(colours[method], with_colour.setdefault(f"{method}, {text}", len(with_colour)) % DASHES))
    return found
