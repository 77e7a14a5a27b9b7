"""The pictures of docs/measurements/theory.md, drawn from benchmarks/results/theory.json."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from convergence import ATTACKED_GRID, BYZANTINE_SHARE, HONEST_GRID, Grid

from jaxbyz.report.plots import COLOURS, figure, legend_below, save

SERIES = {
    ("decbyzpg", False): "DecByzPG, α = 0", ("byzpg", False): "ByzPG, α = 0",
    ("byzpg-alone", False): "ByzPG, α = 0, η ∝ √p", ("decbyzpg", True): "DecByzPG, α = 0.2",
    ("byzpg", True): "ByzPG, α = 0.2",
}  # fmt: skip


def save_pictures(report: dict[str, Any], folder: Path) -> None:
    """Write theory-convergence.png, theory-trajectories.png and theory-agreement.png."""
    save(draw_convergence(report), folder / "theory-convergence.png")
    save(draw_trajectories(report), folder / "theory-trajectories.png")
    save(draw_agreement(report), folder / "theory-agreement.png")


def select(report: dict[str, Any], series: tuple[str, bool], **values: float) -> list[dict[str, Any]]:
    """Return the measurements of one series that have the given values."""
    name, attacked = series
    rows = [row for row in report["cells"] if row["algorithm"] == name and (row["f"] > 0) == attacked]
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def grid_of(series: tuple[str, bool]) -> Grid:
    return ATTACKED_GRID if series[1] else HONEST_GRID


def set_logarithmic(axes: Any, ticks: Iterable[float]) -> None:
    """Make both axes logarithmic, with these ticks on the x axis."""
    ticks = sorted(set(ticks))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.set_xticks([], minor=True)


def draw_convergence(report: dict[str, Any]) -> Any:
    """Draw E‖∇J(θ_T̂)‖² against trajectories, one panel per series, one curve per K."""
    drawing, panels = figure(2, rows=2, width=10, height=7.6)
    agents = sorted({row["K"] for row in report["cells"]})
    dashes = {K: "-" if index < len(COLOURS) else "--" for index, K in enumerate(agents)}
    for axes, series in zip(panels.ravel(), [key for key in SERIES if key[0] != "byzpg-alone"], strict=True):
        epsilon = grid_of(series).epsilons[1]
        for row in select(report, series, epsilon=epsilon):
            number = agents.index(row["K"])
            style = {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes[row["K"]]}
            axes.loglog(*zip(*row["curve"], strict=True), label=f"K = {row['K']}", **style)
        axes.axhline(epsilon**2, color="0.3", linestyle=":", label="ε²")
        axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.set_title(f"{SERIES[series]}; N, p, η for ε = {epsilon}", fontsize=10)
        axes.set_xlabel("trajectories per agent")
        axes.set_ylabel("E‖∇J(θ_T̂)‖²")
    legend_below(drawing, 6, order=[*(f"K = {K}" for K in agents), "ε²"])
    drawing.suptitle(f"Stationarity on the tabular MDP, mean over {report['seeds']} seeds", fontsize=10)
    return drawing


def draw_trajectories(report: dict[str, Any]) -> Any:
    """Draw the trajectories needed against K and against ε, with 95 % intervals and the slope −1 in K."""
    drawing, panels = figure(2, width=10, height=4.8)
    for axes, variable in zip(panels, ("K", "epsilon"), strict=True):
        for series, label in SERIES.items():
            grid = grid_of(series)
            fixed = {"epsilon": grid.epsilons[1]} if variable == "K" else {"K": grid.some_agents[-1]}
            rows = [row for row in select(report, series, **fixed) if row["trajectories"]]
            x, y, low, high = (
                np.array([row[key] for row in rows]) for key in (variable, "trajectories", "low", "high")
            )
            errors = np.abs([y - low, high - y])
            axes.errorbar(x, y, errors, marker="o", markersize=4, label=label)
        both = (HONEST_GRID, ATTACKED_GRID)
        set_logarithmic(axes, [x for grid in both for x in (grid.agents if variable == "K" else grid.epsilons)])
        axes.set_xlabel("agents K" if variable == "K" else "target ε")
        axes.set_ylabel("trajectories per agent until ε²")
    honest, attacked = HONEST_GRID, ATTACKED_GRID
    panels[0].set_title(f"ε = {honest.epsilons[1]} (α = 0), ε = {attacked.epsilons[1]} (α = 0.2)", fontsize=10)
    panels[1].set_title(f"K = {honest.some_agents[-1]} (α = 0), K = {attacked.some_agents[-1]} (α = 0.2)", fontsize=10)
    single = select(report, ("decbyzpg", False), K=1, epsilon=HONEST_GRID.epsilons[1])[0]["trajectories"]
    ideal = [single / K for K in HONEST_GRID.agents]
    panels[0].plot(HONEST_GRID.agents, ideal, "k:", linewidth=1, label="those of one agent / K")
    legend_below(drawing, 3)
    drawing.suptitle(
        f"Trajectories until E‖∇J(θ_T̂)‖² ≤ ε² on the tabular MDP; 95 % intervals over {report['seeds']} seeds",
        fontsize=10,
    )
    return drawing


def draw_agreement(report: dict[str, Any]) -> Any:
    """Draw the honest diameter against κ, and the error of an aggregate against N and K."""
    drawing, (left, middle, right) = figure(3, width=12, height=4.4)
    rounds = range(1, 1 + len(report["diameter"][0]["ratio"]))
    for row, colour in zip(report["diameter"], COLOURS[2:], strict=False):
        label = f"{row['agreement']}, {row['byzantine']} of {row['K']} Byzantine"
        left.semilogy(rounds, row["ratio"], "o-", markersize=3, label=label, color=colour)
    left.semilogy(rounds, [2.0**-k for k in rounds], "k--", linewidth=1, label="2^−κ")
    left.set_ylim(bottom=1e-5)  # smaller values are rounding errors
    left.set_xlabel("agreement rounds κ")
    left.set_ylabel("largest honest diameter after / before")
    left.set_title("agreement, worst adversary found", fontsize=10)
    for axes, variable, name, fixed in ((middle, "N", "large batch N", "K = 20"), (right, "K", "agents K", "N = 256")):
        rows = [row for row in report["bias"]["rows"] if row["against"] == variable]
        for attacked in (False, True):
            series = [row for row in rows if (row["byzantine"] > 0) == attacked]
            x, y = ([row[key] for row in series] for key in (variable, "error"))
            errors = [2 * row["standard_error"] for row in series]
            label = f"aggregate, α = {BYZANTINE_SHARE if attacked else 0}"
            axes.errorbar(x, y, errors, marker="o", markersize=4, label=label, color=COLOURS[attacked])
        axes.plot(x, [rows[0]["error"] * x[0] / value for value in x], "k:", label="slope −1")
        set_logarithmic(axes, x)
        axes.set_xlabel(name)
        axes.set_ylabel("E‖v − ∇J‖²")
        axes.set_title(f"aggregate of one large batch, {fixed}", fontsize=10)
    legend_below(drawing, 4)
    drawing.suptitle("Agreement and aggregation on the tabular MDP; bars: two standard errors", fontsize=10)
    return drawing
