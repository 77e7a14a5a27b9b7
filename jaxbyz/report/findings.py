"""What runs show, in sentences: who won, who broke, and where liars received more weight than their fair share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxbyz.report.runs import FinishedRun, attack_name, attack_table, defence_name
from jaxbyz.report.tables import mean_and_deviation

BROKEN = 0.25  # a run is broken if it covers less than this part of the way from the start to the best run


class Outcome(NamedTuple):
    """One defence under one attack: final returns `[seeds]`, and the honest return before training."""

    defence: str
    attack: str
    final: np.ndarray
    start: float


def findings(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the findings about runs of one environment as sentences."""
    found = outcomes(runs)
    return [*_winners(found), *_broken(found), *_weights(runs)]


def outcomes(runs: Sequence[FinishedRun]) -> list[Outcome]:
    """Return every filled cell of the attack table, with the first iteration's return averaged over all runs."""
    start = float(np.mean([np.nanmean(run.metrics["returns"][:, 0]) for run in runs]))
    table = attack_table(runs)
    return [
        Outcome(defence, attack, returns, start)
        for attack, column in zip(table.attacks, zip(*table.returns, strict=True), strict=True)
        for defence, returns in zip(table.defences, column, strict=True)
        if returns is not None
    ]


def _winners(found: Sequence[Outcome]) -> list[str]:
    sentences = []
    for attack in dict.fromkeys(outcome.attack for outcome in found):
        there = sorted((o for o in found if o.attack == attack), key=_ranking, reverse=True)
        best, others = there[0], there[1:]
        where = _where(attack)
        if not others:
            sentences.append(f"{best.defence} ends at {mean_and_deviation(best.final)} {where}.")
            continue
        rest = "; ".join(f"{other.defence} ends at {mean_and_deviation(other.final)}" for other in others[:3])
        more = f"; {len(others) - 3} more are below" if len(others) > 3 else ""
        sentences.append(
            f"{best.defence} has the highest final return {where}, {mean_and_deviation(best.final)}; {rest}{more}."
        )
    return sentences


def _broken(found: Sequence[Outcome]) -> list[str]:
    finite = [outcome.final.mean() for outcome in found if np.isfinite(outcome.final).all()]
    lost = [o for o in found if not np.isfinite(o.final).all()]
    sentences = [f"{o.defence} became non-finite {_where(o.attack)}." for o in lost]
    if not finite:
        return sentences
    best, start = max(finite), found[0].start
    if best - start <= 0:
        return [*sentences, f"No run improved on the untrained policy, {start:.0f}."]
    for o in found:
        if np.isfinite(o.final).all() and (share := (o.final.mean() - start) / (best - start)) < BROKEN:
            way = f"{max(share, 0):.0%} of the way from the untrained policy ({start:.0f}) to the best run"
            sentences.append(f"{o.defence} is broken {_where(o.attack)}: {mean_and_deviation(o.final)}, {way}.")
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


def _ranking(outcome: Outcome) -> float:
    mean = float(outcome.final.mean())
    return mean if np.isfinite(mean) else -np.inf


def _where(attack: str) -> str:
    return "without liars" if attack == "all honest" else f"under {attack}"
