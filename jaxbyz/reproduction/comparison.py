"""Markdown tables that compare the reproduction with the paper: every claim and every curve."""

from __future__ import annotations

import numpy as np

from jaxbyz.report.statistics import first_reached
from jaxbyz.reproduction.claims import Claim, compare_claims, mean_of_last_1000
from jaxbyz.reproduction.figures import FIGURES, curve_in_paper
from jaxbyz.reproduction.training_results import TrainingResult

COLUMNS_AT = (2000, 4000, 6000, 8000)  # trajectories per agent
LEVELS_TO_REACH = {"CartPole": (195, 475), "LunarLander": (0, 200)}


def comparison(figures: list[str], results: dict[str, TrainingResult], setting: str) -> str:
    """Return both tables; numbers of the paper stand in brackets."""
    lines = [
        f"# Reproduction, setting `{setting}`",
        "",
        'Return of honest agents, mean over seeds: ours, in brackets the paper\'s. "to A / B": trajectories per agent '
        'until it reaches A on CartPole, B on LunarLander. "At the end": mean over the last 1000 trajectories.',
        "",
        "## Claims",
        "",
        *claim_table(results),
        "",
        "## Curves",
        "",
        *curve_table(figures, results),
    ]
    return "\n".join(lines).rstrip() + "\n"


def claim_table(results: dict[str, TrainingResult]) -> list[str]:
    """Return the lines of the table of claims, with a verdict for our curves and one for the paper's."""
    lines = ["| environment | claim | ours | the paper's curves |", "| --- | --- | --- | --- |"]
    for ours, theirs in compare_claims(results):
        lines.append(f"| {ours.environment} | {ours.text} | {_verdict(ours)} | {_verdict(theirs)} |")
    return lines


def _verdict(claim: Claim) -> str:
    return f"{ {True: 'yes', False: 'no', None: '–'}[claim.holds] }: {claim.numbers}"


def curve_table(figures: list[str], results: dict[str, TrainingResult]) -> list[str]:
    """Return the lines of the table of curves, ours and the paper's."""
    levels = [f"to {' / '.join(map(str, pair))}" for pair in zip(*LEVELS_TO_REACH.values(), strict=True)]
    columns = ["panel", "curve", "seeds", *map(str, COLUMNS_AT), *levels, "worst seed at the end"]
    lines = []
    for name in figures:
        lines += [f"### {name}: {FIGURES[name].title}", ""]
        lines += [f"| {' | '.join(columns)} |", f"| {' | '.join(['---'] * len(columns))} |"]
        for panel in FIGURES[name].panels:
            for curve in panel.curves:
                theirs = curve_cells(panel.environment, *curve_in_paper(name, panel.title, curve))
                result = results.get(curve.training_name(panel.environment))
                ours, seeds, worst = ["–"] * len(theirs), "0", "–"
                if result is not None:
                    ours = curve_cells(panel.environment, result.trajectories, result.returns.mean(axis=0))
                    seeds = str(len(result.seeds))
                    worst = f"{min(mean_of_last_1000((result.trajectories, row)) for row in result.returns):.0f}"
                cells = [f"{our} ({their})" for our, their in zip(ours, theirs, strict=True)]
                lines.append(f"| {panel.title} | {curve.label} | {seeds} | {' | '.join(cells)} | {worst} |")
        lines.append("")
    return lines


def curve_cells(environment: str, x: np.ndarray, y: np.ndarray) -> list[str]:
    """Return the return at four points and the trajectories needed for two levels; "–" for what does not exist."""
    cells = []
    for at in COLUMNS_AT:
        nearest = int(np.argmin(np.abs(x - at)))
        exists = abs(x[nearest] - at) <= 100 and not np.isnan(y[nearest])
        cells.append(f"{y[nearest]:.0f}" if exists else "–")
    for level in LEVELS_TO_REACH[environment]:
        reached_at = first_reached(x, y, level)
        cells.append("–" if np.isnan(reached_at) else str(int(reached_at)))
    return cells
