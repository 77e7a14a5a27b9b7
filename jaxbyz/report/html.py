"""The report: run folders as one HTML page that needs nothing else, neither a network nor this package."""

from __future__ import annotations

import base64
import html
import json
import math
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.environments.rendering import drawable, save_gif
from jaxbyz.errors import UsageError
from jaxbyz.experiments.config import agrees, registered, to_dict
from jaxbyz.experiments.run_folder import RunData, writing
from jaxbyz.report import plots
from jaxbyz.report.agreement_rounds import replay
from jaxbyz.report.episodes import film
from jaxbyz.report.runs import check_same_environment, command, labels, rule_name, shares_over_time, table_of
from jaxbyz.report.statistics import mean_and_std, stratified_iqm
from jaxbyz.report.tables import LEVELS, final_returns, smoothed, trajectories_of_mean

POINTS = 300  # a curve has at most so many
FRAMES = 120  # an animated episode, too
HIDDEN = ("trajectories", "batch", "coin", "finite")  # metrics that say nothing as a curve


def write_report(
    runs: Sequence[RunData],
    out: str | Path,
    *,
    title: str = "jaxbyz report",
    width: int = 100,
    animations: int = 4,
) -> Path:
    """Write the page; `width` is the trajectories a point of a curve averages over."""
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"out={path}: the name must end in .html")
    data = page_data(runs, title=title, width=width)
    data["animations"] = animated(runs[:animations])
    data["left_out"] = max(0, len(runs) - animations) if animations else 0
    with writing(path):
        path.write_text(page(data), encoding="utf-8")
    return path


def page(data: dict[str, Any]) -> str:
    """The page's text: template, style, program and numbers in one."""
    here = resources.files("jaxbyz.report") / "page"
    text = (here / "page.html").read_text("utf-8")
    numbers = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")  # no tag can close it
    for name, value in (
        ("title", html.escape(data["title"])),
        ("style", (here / "page.css").read_text("utf-8")),
        ("program", (here / "page.js").read_text("utf-8")),
        ("data", numbers),
    ):
        text = text.replace(f"<!--{name}-->", value)
    return text


@np.errstate(invalid="ignore")  # runs that went non-finite are shown as far as they came
def page_data(runs: Sequence[RunData], *, title: str = "jaxbyz report", width: int = 100) -> dict[str, Any]:
    """Everything the page shows but the animations, as JSON values; NaN is null."""
    environment = check_same_environment(runs)
    levels = LEVELS.get(environment, ())
    table = table_of(runs)
    return {
        "title": title,
        "environment": environment,
        "levels": list(levels),
        "differing": _differing(runs),
        "runs": [_run(run, name, width, levels) for name, run in zip(labels(runs), runs, strict=True)],
        "table": {
            "rules": table.rules,
            "attacks": table.attacks,
            "cells": [
                [None if cell is None else {"mean": _number(cell.mean), "seeds": _list(cell.seeds)} for cell in row]
                for row in table.cells
            ],
            "iqm": [_iqm([cell.seeds for cell in row if cell is not None]) for row in table.cells],
        },
    }


def _run(run: RunData, name: str, width: int, levels: Sequence[float]) -> dict[str, Any]:
    final = final_returns(run.metrics)
    try:
        shares = shares_over_time(run)
        trusted = {
            "trajectories": _list(shares.trajectories),
            "shares": [_list(row, 4) for row in shares.values],
            "byzantine": [bool(lies) for lies in shares.byzantine],
        }
    except UsageError:  # the rule does not say
        trusted = None
    return {
        "label": name,
        "folder": run.folder.name,
        "rule": rule_name(run.config),
        "command": command(run.config),
        "config": to_dict(run.config),
        "machine": run.environment,
        "final": {"mean": _number(final.mean()), "std": _number(final.std()), "worst": _number(final.min())},
        "seeds": _list(final),
        "trajectories": int(run.metrics["trajectories"][:, -1].max()),
        "iterations": int(run.metrics["returns"].shape[1]),
        "reached": [_number(trajectories_of_mean(run.metrics, level)) for level in levels],
        "diameter": _number(np.max(run.metrics["diameter"][:, -1])),
        "megabytes": _number(np.sum(run.metrics["bytes_sent"]) / len(final) / 1e6),
        "curves": {
            metric: _curve(run, metric, width)
            for metric, values in run.metrics.items()
            if values.ndim == 2 and metric not in HIDDEN
        },
        "diameters": _diameters(run.metrics["diameter"]),
        "trust": trusted,
    }


def _curve(run: RunData, metric: str, width: int) -> dict[str, Any]:
    """One metric on a grid of trajectories: mean and interquartile mean with their bands, and every seed."""
    spent = run.metrics["trajectories"]
    width = max(width, math.ceil(float(spent[:, -1].min()) / POINTS))
    x, y = smoothed({"trajectories": spent, "returns": run.metrics[metric]}, width)
    mean, iqm = mean_and_std(y), stratified_iqm([y], resamples=500)
    return {
        "x": _list(x),
        "mean": [_list(values, 6) for values in mean],
        "iqm": [_list(values, 6) for values in iqm],
        "seeds": [_list(row, 5) for row in y] if metric == "returns" else [],
    }


def _diameters(values: np.ndarray) -> dict[str, Any]:
    """Diameter [seeds, iterations] against iterations: median, least, largest."""
    kept = np.unique(np.linspace(0, values.shape[1] - 1, min(POINTS, values.shape[1])).round().astype(int))
    rows = values[:, kept]
    spread = (np.median(rows, axis=0), rows.min(axis=0), rows.max(axis=0))
    return {"x": _list(kept + 1), "median": [_list(row, 5) for row in spread]}


def _iqm(strata: list[np.ndarray]) -> dict[str, float | int | None]:
    estimate = stratified_iqm(strata)
    return {"value": _number(estimate.value), "low": _number(estimate.low), "high": _number(estimate.high)}


def _differing(runs: Sequence[RunData]) -> list[str]:
    """Options whose values differ between runs."""
    configs = [to_dict(run.config) for run in runs]
    return [name for name in configs[0] if any(config[name] != configs[0][name] for config in configs)]


def _number(value: Any, digits: int | None = None) -> float | int | None:
    """A JSON number; null for what is none."""
    if not math.isfinite(value):
        return None
    number = float(value) if digits is None else float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() else number


def _list(values: np.ndarray, digits: int | None = None) -> list[float | int | None]:
    return [_number(float(value), digits) for value in values]


def animated(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """An episode of every run's policy where it can be drawn, and its agreement where there is one, as GIFs.

    A run with a rule or an attack that is not registered here cannot be run again, and is not animated.
    """
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        for index, run in enumerate(runs):
            if not registered(run.config):
                continue
            for kind, draw in (("policy", _episode), ("agreement", _agreement)):
                if (made := draw(run, Path(folder) / f"{index}-{kind}.gif")) is not None:
                    path, caption = made
                    source = "data:image/gif;base64," + base64.b64encode(path.read_bytes()).decode()
                    shown.append({"run": index, "kind": kind, "caption": caption, "source": source})
    return shown


def _episode(run: RunData, path: Path) -> tuple[Path, str] | None:
    """The first seed's first agent plays once."""
    config = run.config
    if config.env not in drawable() or not run.policy:
        return None
    shown = film(config, run.policy[config.output][0, 0], width=240, most=FRAMES)
    save_gif(shown.frames, path, fps=25)
    return path, f"one episode of seed {config.seed}: return {shown.total:.0f} in {shown.steps} steps"


def _agreement(run: RunData, path: Path) -> tuple[Path, str] | None:
    """The first seed's first iterations agree."""
    if not agrees(run.config):
        return None
    trace = replay(run.config, 0, 3)
    apart = np.linalg.norm(np.ptp(trace.parameters[:, 0], axis=1))
    note = "" if apart > 0 else "; proposals are equal already"
    return plots.agreement_animation(trace, path, size=3.0), f"agreement ({run.config.agreement}) on parameters{note}"
