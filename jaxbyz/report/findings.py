"""What runs show, in sentences: who won, who broke, and where liars received more weight than their fair share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxbyz.report.runs import FinishedRun, attack_name, attack_table, defence_name
from jaxbyz.report.tables import mean_and_deviation

BROKEN = 0.25  # a run is broken if it covers less than this part of the way from the start to the best run


class DefendedRuns(NamedTuple):
    """The runs of one defence under one attack, and their final returns `[seeds]`."""

    defence: str
    attack: str
    final: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether every seed stayed finite."""
        return bool(np.isfinite(self.final).all())

    def __str__(self) -> str:
        """Name the defence and its final return."""
        return f"{self.defence} ends at {mean_and_deviation(self.final)}"


def findings(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the findings about runs of one environment as sentences."""
    table = attack_table(runs)
    cells = [
        DefendedRuns(defence, attack, returns)
        for attack, column in zip(table.attacks, zip(*table.returns, strict=True), strict=True)
        for defence, returns in zip(table.defences, column, strict=True)
        if returns is not None
    ]
    untrained = float(np.mean([np.nanmean(run.metrics["returns"][:, 0]) for run in runs]))
    trust = [f"{line}." for run in runs for line in getattr(run, "record", {}).get("trust", ())]  # of federations
    return [*_winners(cells), *_broken(cells, untrained), *_weights(runs), *trust]


def _winners(cells: Sequence[DefendedRuns]) -> list[str]:
    sentences = []
    for attack in dict.fromkeys(cell.attack for cell in cells):
        there = [cell for cell in cells if cell.attack == attack]
        best, *others = sorted(there, key=lambda cell: cell.final.mean() if cell.finite else -np.inf, reverse=True)
        if not others:
            sentences.append(f"{best} {_where(attack)}.")
            continue
        rest = "; ".join(map(str, others[:3])) + (f"; {len(others) - 3} more are below" if len(others) > 3 else "")
        sentences.append(
            f"{best.defence} has the highest final return {_where(attack)}, {mean_and_deviation(best.final)}; {rest}."
        )
    return sentences


def _broken(cells: Sequence[DefendedRuns], untrained: float) -> list[str]:
    """Say which runs became non-finite, or covered little of the way from the untrained policy to the best run."""
    sentences = [f"{cell.defence} became non-finite {_where(cell.attack)}." for cell in cells if not cell.finite]
    finite = [cell for cell in cells if cell.finite]
    way = max((cell.final.mean() for cell in finite), default=np.nan) - untrained
    if way <= 0:
        return [*sentences, f"No run improved on the untrained policy, {untrained:.0f}."]
    for cell in finite:
        if (share := (cell.final.mean() - untrained) / way) < BROKEN:
            covered = f"{max(share, 0):.0%} of the way from the untrained policy ({untrained:.0f}) to the best run"
            sentences.append(
                f"{cell.defence} is broken {_where(cell.attack)}: {mean_and_deviation(cell.final)}, {covered}."
            )
    return sentences


def _weights(runs: Sequence[FinishedRun]) -> list[str]:
    above, judged = [], 0
    for run in runs:
        weight, fair = run.metrics["byzantine_weight"], float(np.mean(run.metrics["byzantine"]))
        if fair == 0 or not np.isfinite(weight).any():
            continue
        judged += 1
        mean = float(np.nanmean(np.where(np.isfinite(weight), weight, np.nan)))
        if mean > fair * 1.01:
            above.append(f"{defence_name(run.config)} {_where(attack_name(run.config))} ({mean:.0%}, fair {fair:.0%})")
    if not judged:
        return []
    if not above:
        return ["Liars received no more than their fair share of the weight in any aggregate."]
    return [f"Liars received more than their fair share of the weight in {'; '.join(above)}."]


def _where(attack: str) -> str:
    return "without liars" if attack == "all honest" else f"under {attack}"
