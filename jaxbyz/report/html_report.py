"""The HTML report: run folders as one page that needs neither a network nor this package."""

from __future__ import annotations

import base64
import html
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.check import registered
from jaxbyz.configuration.resolving import to_dict
from jaxbyz.environments.rendering import drawable, save_gif
from jaxbyz.errors import UsageError, check_ending
from jaxbyz.files import write_output_text
from jaxbyz.report import plots
from jaxbyz.report.agreement_rounds import trace_run
from jaxbyz.report.episodes import render_episode
from jaxbyz.report.findings import findings
from jaxbyz.report.runs import (
    METRIC_LABELS,
    attack_table,
    brightest_share,
    common_environment,
    differing_options,
    labels,
    setting,
    shares_over_time,
    styles,
    training_command,
)
from jaxbyz.report.statistics import (
    final_returns,
    mean_and_std,
    smoothed,
    smoothing_width,
    standard_deviation,
    stratified_iqm,
    trajectories_to_level,
)
from jaxbyz.report.tables import RETURN_LEVELS, mean_and_deviation, value_range
from jaxbyz.runs.run_folder import RunData

MAX_POINTS = 300  # per curve
MAX_FRAMES = 120  # per animated episode
NOT_DRAWN = ("trajectories", "batch", "coin", "finite")  # metrics that are not worth a curve


def write_report(
    runs: Sequence[RunData],
    out: str | Path,
    *,
    title: str = "jaxbyz report",
    width: int | None = None,
    animations: int = 4,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the report.

    Args:
        runs: the runs, all in the same environment.
        out: the file to write; its name ends in .html.
        title: the title of the page.
        width: the number of trajectories over which each point of a curve averages; by default it follows each run.
        animations: how many runs are animated.
        log: receives a line before each animation.
    """
    check_ending(out, ".html", ".htm")
    data = report_data(runs, title=title, width=width)
    data["animations"] = animate(runs[:animations], log)
    data["not_animated"] = max(0, len(runs) - animations) if animations else 0
    write_output_text(Path(out), fill_template(data))
    return Path(out)


def shared_file(name: str) -> str:
    """Return a file of the template of the report, parts of which other pages use."""
    return (resources.files("jaxbyz.report") / "template" / name).read_text("utf-8")


def fill_template(
    data: dict[str, Any], template: str | None = None, style: str | None = None, script: str | None = None
) -> str:
    """Return the text of a page: template, style, script and data in one. The defaults are those of the report.

    Args:
        data: JSON values, with the `title` of the page.
        template: HTML with the places `<!--title-->`, `<!--style-->`, `<!--script-->` and `<!--data-->`.
        style: CSS.
        script: JavaScript that runs after that of `charts.js`, which reads the data.
    """
    # Escaping "<" keeps strings in the data from closing the script element.
    values = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    text = template or shared_file("report.html")
    for name, value in (
        ("title", html.escape(data["title"])),
        ("style", style or shared_file("report.css")),
        ("script", shared_file("charts.js") + (script or shared_file("report.js"))),
        ("data", values),
    ):
        text = text.replace(f"<!--{name}-->", value)
    return text


@np.errstate(invalid="ignore")  # runs that became non-finite are shown as far as they went
def report_data(runs: Sequence[RunData], *, title: str = "jaxbyz report", width: int | None = None) -> dict[str, Any]:
    """Return everything that the page shows, except animations, as JSON values; non-finite numbers become null."""
    environment = common_environment(runs)
    levels = RETURN_LEVELS.get(environment, ())
    table = attack_table(runs)
    return {
        "title": title,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "findings": findings(runs),
        "setting": setting(runs),
        "styles": [style._asdict() for style in styles(runs)],
        "brightest": max(brightest_share(run.config.agents) for run in runs),
        "environment": environment,
        "levels": list(levels),
        "metric_labels": METRIC_LABELS,
        "differing": differing_options(runs),
        "runs": [_run_data(run, name, width, levels) for name, run in zip(labels(runs), runs, strict=True)],
        "table": {
            "defences": table.defences,
            "attacks": table.attacks,
            "cells": [[None if seeds is None else _cell(seeds) for seeds in row] for row in table.returns],
            "range": value_range(environment),
            "iqm": [
                _numbers(**stratified_iqm([seeds for seeds in row if seeds is not None])._asdict())
                for row in table.returns
            ],
        },
    }


def _cell(seeds: np.ndarray) -> dict[str, Any]:
    return {"mean": _number(seeds.mean()), "seeds": _list(seeds), "text": mean_and_deviation(seeds)}


def _times(run: RunData) -> dict[str, str]:
    """Return when a run started and finished and how long it took, as far as its folder says."""
    times = {name: str(run.record[name]) for name in ("started", "finished") if run.record.get(name)}
    seconds = run.record.get("seconds")
    return times | ({"duration": str(timedelta(seconds=round(seconds)))} if seconds else {})


def _run_data(run: RunData, name: str, width: int | None, levels: Sequence[float]) -> dict[str, Any]:
    metrics, final = run.metrics, final_returns(run.metrics)
    return {
        "label": name,
        "command": training_command(run.config, run.record.get("imported", ())),
        "times": _times(run),
        "config": to_dict(run.config),
        "machine": run.environment,
        "final": _numbers(mean=final.mean(), std=standard_deviation(final), worst=final.min()),
        "seeds": _list(final),
        "trajectories": int(metrics["trajectories"][:, -1].max()),
        "reached_at": [_number(trajectories_to_level(metrics, level)) for level in levels],
        "diameter": _number(np.max(metrics["diameter"][:, -1])),
        "megabytes": _number(np.sum(metrics["bytes_sent"]) / len(final) / 1e6),
        "curves": {
            metric: _curve(run, metric, width)
            for metric, values in metrics.items()
            if values.ndim == 2 and metric not in NOT_DRAWN
        },
        "diameters": _diameters(metrics["diameter"]),
        "trust": _trust(run),
    }


def _trust(run: RunData) -> dict[str, Any] | None:
    """Return shares over time, or None if the rule does not report them."""
    try:
        shares, trajectories, byzantine = shares_over_time(run)
    except UsageError:
        return None
    rows = [_list(row, 4) for row in shares]
    return {"trajectories": _list(trajectories), "shares": rows, "byzantine": byzantine.tolist()}


def _curve(run: RunData, metric: str, width: int | None) -> dict[str, Any]:
    """Return a smoothed metric: mean and interquartile mean as [value, low, high], and every seed of the return."""
    shortest = math.ceil(float(run.metrics["trajectories"][:, -1].min()) / MAX_POINTS)
    x, y = smoothed(run.metrics, max(width or smoothing_width(run.metrics), shortest), metric)
    return {
        "x": _list(x),
        "mean": [_list(values, 6) for values in mean_and_std(y)],
        "iqm": [_list(values, 6) for values in stratified_iqm([y], resamples=500)],
        "seeds": [_list(row, 5) for row in y] if metric == "returns" else [],
    }


def _diameters(diameter: np.ndarray) -> dict[str, Any]:
    """Return the diameter `[seeds, iterations]` against iterations, as [median, least, largest] over seeds."""
    T = diameter.shape[1]
    kept = np.unique(np.linspace(0, T - 1, min(MAX_POINTS, T)).round().astype(int))
    rows = diameter[:, kept]
    spread = (np.median(rows, axis=0), rows.min(axis=0), rows.max(axis=0))
    return {"x": _list(kept + 1), "spread": [_list(row, 5) for row in spread]}


def _number(value: Any, digits: int | None = None) -> float | int | None:
    """Return a JSON number with this many significant digits; None if the value is not finite."""
    if not math.isfinite(value):
        return None
    number = float(value) if digits is None else float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() else number


def _numbers(**values: Any) -> dict[str, float | int | None]:
    return {name: _number(value) for name, value in values.items()}


def _list(values: np.ndarray, digits: int | None = None) -> list[float | int | None]:
    return [_number(float(value), digits) for value in values]


def animate(runs: Sequence[RunData], log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """Return GIFs of an episode of every run and of its agreement, where the environment and the algorithm allow it.

    A run with a rule or an attack that is not registered here cannot be repeated and is skipped.
    """
    animations = []
    with tempfile.TemporaryDirectory() as folder:
        for index, run in enumerate(runs):
            if not registered(run.config):
                continue
            for kind, draw in (("policy", _animate_episode), ("agreement", _animate_agreement)):
                path = Path(folder) / f"{index}-{kind}.gif"
                log(f"animation of the {kind} of run {index + 1} of {len(runs)}")
                if (caption := draw(run, path)) is not None:
                    source = "data:image/gif;base64," + base64.b64encode(path.read_bytes()).decode()
                    animations.append({"run": index, "kind": kind, "caption": caption, "source": source})
    return animations


def _animate_episode(run: RunData, path: Path) -> str | None:
    """Draw an episode of the first seed's first agent; return the caption, or None if it cannot be drawn."""
    config = run.config
    if config.env not in drawable() or not run.policy:
        return None
    theta = run.policy[config.output][0, 0]
    if not np.isfinite(theta).all():  # this seed diverged; the curves show it
        return None
    episode = render_episode(config, theta, width=240, max_frames=MAX_FRAMES)
    save_gif(episode.frames, path, fps=25)
    return f"one episode of seed {config.seed}: return {episode.total_return:.0f} in {episode.steps} steps"


def _animate_agreement(run: RunData, path: Path) -> str | None:
    """Draw the agreement of the first seed's first iterations; return the caption, or None if all proposals agree."""
    if run.config.agreement == "none":
        return None
    trace = trace_run(run.config, 0, 3)
    if not np.ptp(trace.parameters[:, 0], axis=1).any():
        return None
    plots.agreement_animation(trace, path, size=3.0)
    return f"agreement ({run.config.agreement}) on parameters"
