"""Protocols of the literature: every algorithm under three attacks, on equal trajectories, and the figure of it.

Fan et al. 2021 and Ganesh et al. 2024 let 3 of 10 agents be Byzantine, which send random noise, take random actions or
flip the sign of their gradients. A protocol is one of their tasks with all algorithms of the package: each has the
task's network, estimator and number of trajectories per agent, and its own batches and step size where its paper has
them (`jaxbyz.configuration.protocol_presets`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxbyz.algorithms import algorithms, traits_of_algorithm
from jaxbyz.configuration.config import Config
from jaxbyz.configuration.protocol_presets import NOISE, PROTOCOL_TASKS, method_options
from jaxbyz.configuration.resolving import resolve
from jaxbyz.report.plots import COLOURS, draw_curve, figure, legend_below, seeds_text
from jaxbyz.report.tables import mean_and_deviation
from jaxbyz.reproduction.training_results import TrainingResult

UNATTACKED = "no attack"
# panel -> attack. The published code multiplies the flipped gradient by 2.5.
ATTACKS = {
    UNATTACKED: "none",
    "random noise": NOISE,
    "random action": "random-action",
    "sign flip": "sign-flip:scale=2.5",
}
ALONE = ".alone"  # ends the name of a training of one agent, which nobody attacks
COLUMNS = 4  # of the picture
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
        own = {**task.common, "momentum": None, **method_options(task, name)}  # not those of the preset's algorithm
        options: dict[str, Any] = {**own, "algorithm": name, "attack": ATTACKS[curve.panel]}
        traits = traits_of_algorithm(name)
        if traits.naive:
            options["aggregator"] = "mean"
        if traits.single:
            options |= {"agents": 1, "byzantine": 0, "attack": "none"}
        if curve.label == GPOMDP:
            options["p"] = 1.0
        configs[curve.training] = resolve(protocol, **options | {"seeds": seeds, "seed": seed, "trajectories": budget})
    return configs


def draw_protocol(protocol: str, results: dict[str, TrainingResult], spread: bool = True) -> Any:
    """Draw one panel per algorithm that has been trained, and in it one curve per attack.

    Args:
        protocol: a key of `PROTOCOL_TASKS`.
        results: training name -> result; what is missing is left out.
        spread: whether to draw the standard deviation over seeds.

    Returns:
        A matplotlib figure.
    """
    trained = [curve for curve in protocol_curves() if curve.training in results]
    panels = list(dict.fromkeys(curve.label for curve in trained))
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    drawing, grid = figure(
        columns, rows, width=max(2.4 * columns, 6.4), height=1.1 + 2.0 * rows, sharex=True, squeeze=False
    )
    for curve in trained:
        alone = curve.training.endswith(ALONE)
        if alone and curve.panel != UNATTACKED:
            continue
        result, colour = results[curve.training], COLOURS[list(ATTACKS).index(curve.panel)]
        returns = result.returns if spread else result.returns.mean(axis=0, keepdims=True)
        draw_curve(grid.flat[panels.index(curve.label)], result.trajectories, returns, curve.panel, color=colour)
    for axes, name in zip(grid.flat, panels, strict=False):
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes in grid.flat[len(panels) - columns : len(panels)]:  # the lowest panel of every column
        axes.set_xlabel("trajectories per agent", fontsize=9)
        axes.tick_params(labelbottom=True)
    drawing.supylabel("honest return (axes differ)", fontsize=9)
    legend_below(drawing, len(ATTACKS))
    counted = seeds_text([len(results[curve.training].seeds) for curve in trained])
    shown = "mean ± standard deviation" if spread else "mean"
    task = PROTOCOL_TASKS[protocol].title
    heading = f"{protocol}: {task}, 10 agents, 3 of them Byzantine\n{shown} over {counted}"
    drawing.suptitle(heading, fontsize=10)
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
