"""Protocols of the literature: every algorithm under three attacks, on equal trajectories, and the figure of it.

Fan et al. 2021 and Ganesh et al. 2024 let 3 of 10 agents be Byzantine, which send random noise, take random actions or
flip the sign of their gradients. A protocol is one of their tasks with all algorithms of the package: each has the
task's network, estimator and number of trajectories per agent, and its own batches and step size where its paper has
them (`jaxbyz.experiments.protocol_presets`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.algorithms import algorithms, traits_of_algorithm
from jaxbyz.experiments.config import Config
from jaxbyz.experiments.protocol_presets import NOISE, PROTOCOL_TASKS, method_options
from jaxbyz.experiments.resolving import resolve
from jaxbyz.files import write_output_text
from jaxbyz.report.plots import COLOURS, DASH_PATTERNS, draw_curve, figure
from jaxbyz.report.tables import mean_and_deviation
from jaxbyz.reproduction.result_files import TrainingResult

# panel -> attack. The published code multiplies the flipped gradient by 2.5.
ATTACKS = {
    "no attack": "none",
    "random noise": NOISE,
    "random action": "random-action",
    "sign flip": "sign-flip:scale=2.5",
}
ALONE = ".alone"  # ends the name of a training of one agent, which nobody attacks
GPOMDP = "gpomdp"  # what both papers call the mean of plain policy gradients


class ProtocolCurve(NamedTuple):
    """One curve of a protocol: the label of the algorithm, the panel, and the training behind it."""

    label: str
    panel: str
    training: str


def protocol_curves() -> list[ProtocolCurve]:
    """Return the curves of every protocol. One agent alone is not attacked: its curve is the same in all panels."""
    curves = []
    for panel in ATTACKS:
        for entry in algorithms:
            place = ALONE if traits_of_algorithm(entry.name).single else f".{panel.replace(' ', '-')}"
            curves.append(ProtocolCurve(entry.name, panel, f"{entry.name}{place}"))
        curves.append(ProtocolCurve(GPOMDP, panel, f"{GPOMDP}.{panel.replace(' ', '-')}"))
    return curves


def protocol_configs(protocol: str, seeds: int, seed: int, trajectories: int | None) -> dict[str, Config]:
    """Return the trainings of a protocol: name -> configuration.

    Args:
        protocol: a key of `PROTOCOL_TASKS`.
        seeds: the number of seeds.
        seed: the first of them.
        trajectories: trajectories per agent; None for those of the paper.
    """
    task = PROTOCOL_TASKS[protocol]
    budget = task.common["trajectories"] if trajectories is None else trajectories
    configs = {}
    for curve in protocol_curves():
        name = "fed-page-pg" if curve.label == GPOMDP else curve.label
        options: dict[str, Any] = {**method_options(task, name), "algorithm": name, "attack": ATTACKS[curve.panel]}
        traits = traits_of_algorithm(name)
        if traits.naive:
            options["aggregator"] = "mean"
        if traits.single:
            options |= {"agents": 1, "byzantine": 0, "attack": "none"}
        if curve.label == GPOMDP:
            options["p"] = 1.0
        configs[curve.training] = resolve(protocol, **options, seeds=seeds, seed=seed, trajectories=budget)
    return configs


def draw_protocol(protocol: str, results: dict[str, TrainingResult], spread: bool = True) -> Any:
    """Draw one panel per attack under which a federation has been trained, and one curve per algorithm.

    Args:
        protocol: a key of `PROTOCOL_TASKS`.
        results: training name -> result; what is missing is left out.
        spread: whether to draw the standard deviation over seeds.

    Returns:
        A matplotlib figure.
    """
    curves = protocol_curves()
    trained = [curve.panel for curve in curves if curve.training in results and not curve.training.endswith(ALONE)]
    panels = [panel for panel in ATTACKS if panel in trained] or list(ATTACKS)
    drawing, all_axes = figure(len(panels), width=max(3.4 * len(panels), 7.0), height=4.2, sharey=True, squeeze=False)
    all_axes = all_axes[0]
    labels = list(dict.fromkeys(curve.label for curve in curves))
    for curve in curves:
        result = results.get(curve.training)
        if result is None or curve.panel not in panels:
            continue
        number = labels.index(curve.label)
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASH_PATTERNS[number // len(COLOURS)]}
        returns = result.returns if spread else result.returns.mean(axis=0, keepdims=True)
        draw_curve(all_axes[panels.index(curve.panel)], result.trajectories, returns, curve.label, **style)
    for axes, panel in zip(all_axes, panels, strict=True):
        axes.set_title(panel)
        axes.set_xlabel("trajectories per agent")
    all_axes[0].set_ylabel("honest return")
    handles, texts = all_axes[0].get_legend_handles_labels()
    drawing.legend(handles, texts, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    drawing.suptitle(f"{protocol}: {PROTOCOL_TASKS[protocol].title}, 3 Byzantine agents of 10", fontsize=10)
    return drawing


def protocol_table(protocol: str, results: dict[str, TrainingResult]) -> str:
    """Return the mean return over the last tenth of the budget, ± standard deviation over seeds, as Markdown."""
    lines = [f"| {protocol} | {' | '.join(ATTACKS)} |", f"| --- |{' --- |' * len(ATTACKS)}"]
    cells: dict[str, list[str]] = {}
    for curve in protocol_curves():
        result = results.get(curve.training)
        cells.setdefault(curve.label, []).append(
            "–" if result is None else mean_and_deviation(mean_of_last_tenth(result))
        )
    lines += [f"| `{label}` | {' | '.join(row)} |" for label, row in cells.items()]
    return "\n".join(lines) + "\n"


def mean_of_last_tenth(result: TrainingResult) -> np.ndarray:
    """Return the mean return over the last tenth of the trajectories, `[seeds]`."""
    last = result.trajectories > 0.9 * result.trajectories[-1]
    return result.returns[:, last].mean(axis=1)


def write_protocol_table(protocol: str, results: dict[str, TrainingResult], path: Path) -> Path:
    """Write the table of a protocol."""
    write_output_text(path, protocol_table(protocol, results))
    return path
