"""The reproduced figures and their table: ours, and the paper's curves as thin lines under them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxbyz.experiments.run_folder import writing
from jaxbyz.report.plots import COLOURS, curve, figure, save
from jaxbyz.report.tables import arrival
from jaxbyz.reproduction.claims import Claim, claims
from jaxbyz.reproduction.figures import FIGURES, Curve, paper_curve
from jaxbyz.reproduction.parts import Part

AT = (2000, 4000, 6000, 8000)
LEVELS = {"CartPole": (195, 475), "LunarLander": (0, 200)}
AXES = {"CartPole": (0, 510), "LunarLander": (-500, 300)}


def draw(name: str, parts: dict[str, Part], out: Path, spread: bool = True) -> Path | None:
    """One figure with the paper's panels in the paper's order; None where nothing of it has been trained."""
    shown = FIGURES[name]
    if not any(line.part(panel.environment) in parts for panel in shown.panels for line in panel.curves):
        return None
    drawing, axes = figure(len(shown.panels), width=4.2 * len(shown.panels), height=3.6)
    for panel, place in zip(shown.panels, axes, strict=True):
        for line, colour in zip(panel.curves, COLOURS, strict=False):
            x, y = paper_curve(name, panel.title, line)
            part = parts.get(line.part(panel.environment))
            alone = None if part else f"{line.label}, the paper only"
            place.plot(x, y, color=colour, linewidth=0.8, linestyle="--", label=alone)
            if part is not None:
                curve(place, part.x, part.y if spread else part.y.mean(axis=0, keepdims=True), line.label, color=colour)
        place.set_title(panel.title)
        place.set_xlabel("trajectories per agent")
        place.set_ylim(*AXES[panel.environment])
        place.legend(fontsize=7, frameon=False)
    axes[0].set_ylabel("return of honest agents")
    drawing.suptitle(f"{shown.title}: jaxbyz (solid), the paper (dashed)", fontsize=10)
    return save(drawing, out)


def row(environment: str, x: np.ndarray, y: np.ndarray) -> list[str]:
    """Return at four points, then trajectories to the two levels."""
    cells = []
    for at in AT:
        near = int(np.argmin(np.abs(x - at)))
        cells.append(f"{y[near]:.0f}" if abs(x[near] - at) <= 100 and not np.isnan(y[near]) else "–")
    return [*cells, *(_count(arrival(x, y, level)) for level in LEVELS[environment])]


def _count(value: np.ndarray) -> str:
    return "–" if np.isnan(value) else str(int(value))


def curve_table(figures: list[str], parts: dict[str, Part]) -> list[str]:
    """Markdown: every curve, ours and the paper's."""
    lines = []
    for name in figures:
        lines += [f"### {name}: {FIGURES[name].title}", ""]
        lines.append(
            "| panel | curve | seeds | 2000 | 4000 | 6000 | 8000 | to 195 (0) | to 475 (200) | worst seed, end |"
        )
        lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for panel in FIGURES[name].panels:
            for line in panel.curves:
                theirs = row(panel.environment, *paper_curve(name, panel.title, line))
                part = parts.get(line.part(panel.environment))
                ours, seeds, worst = ["–"] * len(theirs), "0", "–"
                if part is not None:
                    ours, seeds = row(panel.environment, part.x, part.y.mean(axis=0)), str(len(part.seeds))
                    worst = f"{part.y[:, -10:].mean(axis=1).min():.0f}"
                cells = [f"{mine} ({paper})" for mine, paper in zip(ours, theirs, strict=True)]
                lines.append(f"| {panel.title} | {line.label} | {seeds} | {' | '.join(cells)} | {worst} |")
        lines.append("")
    return lines


def decided(parts: dict[str, Part]) -> list[tuple[Claim, Claim]]:
    """Every claim, decided for our curves and for the paper's."""
    pairs: list[tuple[Claim, Claim]] = []
    for environment, suffix in (("CartPole", "cartpole"), ("LunarLander", "lunar")):
        for tolerant, naive, ending in (("DecByzPG", "Dec-PAGE-PG", ""), ("ByzPG", "Fed-PAGE-PG", "_byzPG")):

            def ours(panel: str, line: Curve, environment: str = environment) -> tuple[np.ndarray, np.ndarray] | None:
                part = parts.get(line.part(environment))
                return None if part is None else (part.x, part.y.mean(axis=0))

            def theirs(
                panel: str, line: Curve, suffix: str = suffix, ending: str = ending
            ) -> tuple[np.ndarray, np.ndarray]:
                source = "speedup" if panel in ("CartPole", "LunarLander") else suffix
                return paper_curve(source + ending, panel, line)

            pairs += zip(
                claims(environment, tolerant, naive, ours), claims(environment, tolerant, naive, theirs), strict=True
            )
    return pairs


def verdict(claim: Claim) -> str:
    return {True: "yes", False: "no", None: "–"}[claim.holds]


def claim_table(parts: dict[str, Part]) -> list[str]:
    """Markdown: every claim, ours and the paper's."""
    lines = ["| environment | claim | ours | the paper's curves |", "| --- | --- | --- | --- |"]
    for ours, theirs in decided(parts):
        lines.append(
            f"| {ours.environment} | {ours.text} | {verdict(ours)}: "
            f"{ours.numbers} | {verdict(theirs)}: {theirs.numbers} |"
        )
    return lines


def write_table(figures: list[str], parts: dict[str, Part], out: Path, setting: str) -> Path:
    """Write both tables as Markdown; ours first, the paper's in brackets."""
    lines = [f"# Reproduction, setting `{setting}`", ""]
    levels = "Levels are CartPole's, in brackets LunarLander's."
    lines += [f"Return of honest agents, mean over seeds: ours, in brackets the paper's. {levels}", ""]
    lines += ["## Claims", "", *claim_table(parts), "", "## Curves", "", *curve_table(figures, parts)]
    with writing(out):
        out.write_text("\n".join(lines).rstrip() + "\n")
    return out
