"""The six figures of the paper as data: panels of curves, the training behind each, and the same curve in the paper.

`paper_curves.csv` holds the curves of the paper as read off its figures, one per row: the return, averaged over 100
trajectories, every 100 trajectories. Cells are empty where a curve leaves its panel.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

ATTACKS = {"RandomAction": "random-action", "LargeNoise": "large-noise", "AvgZero": "avg-zero"}
AGENTS, BYZANTINE = 13, 3
ENVIRONMENTS = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v3"}

# setting -> preset for each environment
SETTINGS: dict[str, dict[str, str]] = {
    "steady": {"CartPole": "cartpole-steady", "LunarLander": "lunarlander-steady"},
    "paper": {"CartPole": "cartpole-paper", "LunarLander": "lunarlander-paper"},
    "published": {"CartPole": "cartpole-published", "LunarLander": "lunarlander-published"},
    "best": {"CartPole": "cartpole", "LunarLander": "lunarlander-best"},
}


class PaperCurve(NamedTuple):
    """One curve of a panel: its label, and the training behind it."""

    label: str
    method: str
    agents: int
    byzantine: int = 0
    attack: str = "none"

    def training_name(self, environment: str) -> str:
        """Return the name of the training; curves in several panels share one training."""
        name = f"{environment.lower()}-{self.method.lower()}"
        if self.method != "PAGE-PG":
            name += f"-k{self.agents}"
        return name if self.attack == "none" else f"{name}-{self.attack}"

    def options(self) -> dict[str, Any]:
        """Return the options of `jaxbyz.resolve` besides the preset."""
        return {
            "algorithm": self.method.lower(),
            "agents": self.agents,
            "byzantine": self.byzantine,
            "attack": self.attack,
        }


class PaperPanel(NamedTuple):
    """One panel of a figure; `environment` is `CartPole` or `LunarLander`."""

    title: str
    environment: str
    curves: tuple[PaperCurve, ...]


class PaperFigure(NamedTuple):
    """One figure: its title and its panels in the paper's order."""

    title: str
    panels: tuple[PaperPanel, ...]


SINGLE_AGENT = PaperCurve("PAGE-PG (K=1)", "PAGE-PG", 1)


def attack_curves(tolerant: str, naive: str, attack: str) -> tuple[PaperCurve, ...]:
    """Return the curves of a panel about one attack: one agent, naive unattacked, naive attacked, tolerant attacked."""
    return (
        SINGLE_AGENT,
        PaperCurve(f"{naive} (α=0)", naive, AGENTS),
        PaperCurve(f"{naive} (α=3/13)", naive, AGENTS, BYZANTINE, attack),
        PaperCurve(f"{tolerant} (α=3/13)", tolerant, AGENTS, BYZANTINE, attack),
    )


def speedup_curves(tolerant: str) -> tuple[PaperCurve, ...]:
    """Return the curves of a panel about the speed-up: 1, 5 and 13 agents."""
    return (SINGLE_AGENT, *(PaperCurve(f"{tolerant} (K={K})", tolerant, K) for K in (5, 13)))


def _attack_figure(environment: str, tolerant: str, naive: str) -> PaperFigure:
    panels = (PaperPanel(title, environment, attack_curves(tolerant, naive, name)) for title, name in ATTACKS.items())
    return PaperFigure(f"{tolerant} under attack, {environment}", tuple(panels))


def _speedup_figure(tolerant: str) -> PaperFigure:
    panels = (PaperPanel(name, name, speedup_curves(tolerant)) for name in ENVIRONMENTS)
    return PaperFigure(f"Speed-up of {tolerant} in the number of agents", tuple(panels))


FIGURES: dict[str, PaperFigure] = {
    "speedup": _speedup_figure("DecByzPG"),
    "cartpole": _attack_figure("CartPole", "DecByzPG", "Dec-PAGE-PG"),
    "lunar": _attack_figure("LunarLander", "DecByzPG", "Dec-PAGE-PG"),
    "speedup_byzPG": _speedup_figure("ByzPG"),
    "cartpole_byzPG": _attack_figure("CartPole", "ByzPG", "Fed-PAGE-PG"),
    "lunar_byzPG": _attack_figure("LunarLander", "ByzPG", "Fed-PAGE-PG"),
}


def select_figures(name: str) -> list[str]:
    """Return the names of the figures that an argument means: one figure, or `all`."""
    return list(FIGURES) if name == "all" else [name]


def needed_trainings(figures: list[str]) -> dict[str, tuple[str, PaperCurve]]:
    """Return the trainings that the figures need, each once: name -> (environment, curve)."""
    return {
        curve.training_name(panel.environment): (panel.environment, curve)
        for name in figures
        for panel in FIGURES[name].panels
        for curve in panel.curves
    }


@cache
def _paper_curves() -> dict[tuple[str, str, str, int, int], tuple[np.ndarray, np.ndarray]]:
    text = resources.files("jaxbyz.reproduction").joinpath("paper_curves.csv").read_text()
    header, *rows = list(csv.reader(text.splitlines()))
    x = np.array(header[5:], float)
    curves = {}
    for figure, panel, method, agents, byzantine, *cells in rows:
        y = np.array([float(cell) if cell else np.nan for cell in cells])
        curves[figure, panel, method, int(agents), int(byzantine)] = (x, y)
    return curves


def curve_in_paper(figure: str, panel: str, curve: PaperCurve) -> tuple[np.ndarray, np.ndarray]:
    """Return trajectories `[81]` and returns `[81]` of a curve in the paper; NaN where it is outside its panel."""
    return _paper_curves()[figure, panel, curve.method, curve.agents, curve.byzantine]
