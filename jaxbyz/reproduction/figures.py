"""What the paper's figures show: panels of curves, the training behind each, and the same curve in the paper.

`paper_curves.csv` holds the paper's curves as read off its figures, one a row, return (mean over 100 trajectories)
every 100 trajectories; where a curve leaves its panel the cells are empty.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.errors import UsageError, unknown

ATTACKS = {"RandomAction": "random-action", "LargeNoise": "large-noise", "AvgZero": "avg-zero"}
AGENTS, BYZANTINE = 13, 3
ENVIRONMENTS = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v3"}

# setting -> preset for each environment
SETTINGS: dict[str, dict[str, str]] = {
    "steady": {"CartPole": "cartpole", "LunarLander": "lunarlander"},
    "paper": {"CartPole": "cartpole-paper", "LunarLander": "lunarlander-paper"},
    "published": {"CartPole": "cartpole-published", "LunarLander": "lunarlander-published"},
    "best": {"CartPole": "cartpole-best", "LunarLander": "lunarlander-best"},
}


class Curve(NamedTuple):
    """A line of a panel: its label, and what trains it. `method`, `agents` and `byzantine` name the paper's curve."""

    label: str
    method: str
    agents: int
    byzantine: int
    attack: str

    def part(self, environment: str) -> str:
        """The name of the training behind it; curves of several panels share one."""
        name = f"{environment.lower()}-{self.method.lower()}"
        if self.method != "PAGE-PG":
            name += f"-k{self.agents}"
        return name if self.attack == "none" else f"{name}-{self.attack}"

    def options(self) -> dict[str, Any]:
        """Options of `jaxbyz.resolve` besides the preset."""
        return {
            "algorithm": self.method.lower(),
            "agents": self.agents,
            "byzantine": self.byzantine,
            "attack": self.attack,
        }


class Panel(NamedTuple):
    title: str  # as in paper_curves.csv
    environment: str  # CartPole or LunarLander
    curves: tuple[Curve, ...]


class Figure(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


def _attacked(environment: str, tolerant: str, naive: str) -> tuple[Panel, ...]:
    def panel(title: str) -> Panel:
        attack = ATTACKS[title]
        return Panel(
            title,
            environment,
            (
                Curve("PAGE-PG (K=1)", "PAGE-PG", 1, 0, "none"),
                Curve(f"{naive} (α=0)", naive, AGENTS, 0, "none"),
                Curve(f"{naive} (α=3/13)", naive, AGENTS, BYZANTINE, attack),
                Curve(f"{tolerant} (α=3/13)", tolerant, AGENTS, BYZANTINE, attack),
            ),
        )

    return tuple(panel(title) for title in ATTACKS)


def _speedup(tolerant: str) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            name,
            name,
            (
                Curve("PAGE-PG (K=1)", "PAGE-PG", 1, 0, "none"),
                Curve(f"{tolerant} (K=5)", tolerant, 5, 0, "none"),
                Curve(f"{tolerant} (K=13)", tolerant, 13, 0, "none"),
            ),
        )
        for name in ENVIRONMENTS
    )


FIGURES: dict[str, Figure] = {
    "speedup": Figure("Speed-up of DecByzPG in the number of agents", _speedup("DecByzPG")),
    "cartpole": Figure("DecByzPG under attack, CartPole", _attacked("CartPole", "DecByzPG", "Dec-PAGE-PG")),
    "lunar": Figure("DecByzPG under attack, LunarLander", _attacked("LunarLander", "DecByzPG", "Dec-PAGE-PG")),
    "speedup_byzPG": Figure("Speed-up of ByzPG in the number of agents", _speedup("ByzPG")),
    "cartpole_byzPG": Figure("ByzPG under attack, CartPole", _attacked("CartPole", "ByzPG", "Fed-PAGE-PG")),
    "lunar_byzPG": Figure("ByzPG under attack, LunarLander", _attacked("LunarLander", "ByzPG", "Fed-PAGE-PG")),
}


def chosen(name: str) -> list[str]:
    """Figure names for an argument: one of them, or `all`."""
    if name == "all":
        return list(FIGURES)
    if name not in FIGURES:
        raise UsageError(unknown("figure", name, ("all", *FIGURES)))
    return [name]


def parts_of(figures: list[str]) -> dict[str, tuple[str, Curve]]:
    """Trainings that the figures need, each once: name -> (environment, curve)."""
    found = {}
    for name in figures:
        for panel in FIGURES[name].panels:
            for curve in panel.curves:
                found[curve.part(panel.environment)] = (panel.environment, curve)
    return found


@cache
def _paper() -> dict[tuple[str, str, str, int, int], tuple[np.ndarray, np.ndarray]]:
    text = resources.files("jaxbyz.reproduction").joinpath("paper_curves.csv").read_text()
    header, *rows = list(csv.reader(text.splitlines()))
    x = np.array(header[5:], float)
    curves = {}
    for figure, panel, method, agents, byzantine, *cells in rows:
        y = np.array([float(cell) if cell else np.nan for cell in cells])
        curves[figure, panel, method, int(agents), int(byzantine)] = (x, y)
    return curves


def paper_curve(figure: str, panel: str, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The paper's curve: trajectories [81] and return [81], NaN where it is outside its panel."""
    return _paper()[figure, panel, curve.method, curve.agents, curve.byzantine]
