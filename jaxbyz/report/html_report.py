"""The HTML report: run folders as one page that needs neither a network nor this package."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.configuration.resolving import to_dict
from jaxbyz.errors import UsageError, check_ending
from jaxbyz.files import write_output_text
from jaxbyz.report.animations import animate
from jaxbyz.report.compare import compared_method
from jaxbyz.report.comparison_table import INTERVALS
from jaxbyz.report.findings import findings
from jaxbyz.report.intervals import Estimate, bootstrap_mean
from jaxbyz.report.result_table import result_table
from jaxbyz.report.runs import (
    METRIC_LABELS,
    brightest_share,
    common_environment,
    differing_options,
    labels,
    setting,
    shares_over_time,
    training_command,
)
from jaxbyz.report.statistics import (
    SEED_STATISTICS,
    average_returns,
    failure_level,
    final_returns,
    have_failed,
    of_finite_seeds,
    smoothed,
    smoothing_width,
    trajectories_to_level,
    within,
)
from jaxbyz.report.styles import styles
from jaxbyz.report.tables import RETURN_LEVELS, possible_range, value_range, with_interval
from jaxbyz.runs.run_folder import RunData

MAX_POINTS = 300  # per curve
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
    data["animations"], data["missing_animations"] = animate(runs[:animations], log)
    data["not_animated"] = max(0, len(runs) - animations) if animations else 0
    for index, reason in data["missing_animations"]:
        log(f"{data['runs'][index]['label']}: {reason}")
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
    failing = failure_level([run.metrics for run in runs])
    return {
        "title": title,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "findings": findings(runs),
        "setting": setting(runs),
        "intervals": INTERVALS,
        "failing": _number(failing),
        "styles": [style._asdict() for style in styles(runs)],
        "brightest": max(brightest_share(run.config.agents) for run in runs),
        "environment": environment,
        "levels": list(levels),
        "metric_labels": METRIC_LABELS,
        "differing": differing_options(runs),
        "runs": [_run_data(run, name, width, levels, failing) for name, run in zip(labels(runs), runs, strict=True)],
        "table": _table(runs, failing) | {"range": value_range(environment)},
    }


def _table(runs: Sequence[RunData], failing: float) -> dict[str, Any]:
    """Return the final returns by method and attack, and what every row amounts to."""
    table, areas = result_table(runs), result_table(runs, average_returns)
    rows = []
    for method, cells, area in zip(table.rows, table.cells, areas.cells, strict=True):
        known = [(a, f, g) for a, f, g in zip(table.columns, cells, area, strict=True) if f is not None]
        attacks, finals, averages = map(list, zip(*known, strict=True))
        row = compared_method(method, attacks, finals, averages, None, failing)
        worst = (attacks[0], float(finals[0].values.mean())) if row.worst_attack is None else row.worst_attack
        rows.append(
            {
                "iqm": _estimate(row.robust),
                "area": _estimate(row.area),
                "worst_seed": _number(row.worst_seed),
                "worst_attack": [worst[0], _number(worst[1])],
                "failed": f"{row.failed}/{row.results}",
            }
        )
    shown = [[None if cell is None else _cell(cell.values, failing) for cell in row] for row in table.cells]
    return {"defences": table.rows, "attacks": table.columns, "cells": shown, "rows": rows}


def _cell(seeds: np.ndarray, failing: float) -> dict[str, Any]:
    failed = int(have_failed(seeds, failing).sum())
    text = with_interval(bootstrap_mean(seeds)) + (f", {failed} of {len(seeds)} failed" if failed else "")
    return {"mean": _number(seeds.mean()), "seeds": _list(seeds), "text": text}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"text": with_interval(estimate), **_numbers(**estimate._asdict())}


def _times(run: RunData) -> dict[str, str]:
    """Return when a run started and finished and how long it took, as far as its folder says."""
    times = {name: str(run.record[name]) for name in ("started", "finished") if run.record.get(name)}
    seconds = run.record.get("seconds")
    return times | ({"duration": str(timedelta(seconds=round(seconds)))} if seconds else {})


def _run_data(run: RunData, name: str, width: int | None, levels: Sequence[float], failing: float) -> dict[str, Any]:
    metrics = run.metrics
    final = of_finite_seeds(metrics, final_returns(metrics))
    interval = bootstrap_mean(final)
    return {
        "label": name,
        "command": training_command(run.config, run.record.get("imported", ())),
        "times": _times(run),
        "config": to_dict(run.config),
        "machine": run.environment,
        "final": _numbers(mean=final.mean(), low=interval.low, high=interval.high, worst=final.min()),
        "failed": int(have_failed(final, failing).sum()),
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
    """Return a smoothed metric: every statistic over seeds as [value, low, high], and every seed of the return."""
    shortest = math.ceil(float(run.metrics["trajectories"][:, -1].min()) / MAX_POINTS)
    x, y = smoothed(run.metrics, max(width or smoothing_width(run.metrics), shortest), metric)
    bounds = possible_range(run.config, metric)
    return {
        "x": _list(x),
        **{
            name: [_list(values, 6) for values in within(statistic(y), y, bounds)]
            for name, (statistic, _) in SEED_STATISTICS.items()
        },
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
