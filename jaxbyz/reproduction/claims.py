"""The qualitative claims of the paper (Section 6, Appendix E), each decided by numbers from learning curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxbyz.reproduction.figures import ATTACKS, ENVIRONMENTS, PaperCurve, attack_curves, curve_in_paper, speedup_curves
from jaxbyz.reproduction.training_results import TrainingResult

# Gains are counted from the return of an untrained policy.
UNTRAINED_RETURN = {"CartPole": 20.0, "LunarLander": -180.0}
# A method breaks if its gain is below this share of the gain of the naive method without attackers …
BROKEN_SHARE = 0.5
# … and ends close to it if its gain is at least this share.
CLOSE_SHARE = 0.9

MeanCurve = tuple[np.ndarray, np.ndarray]  # trajectories [G], mean return [G]
ReadCurve = Callable[[str, PaperCurve], MeanCurve | None]  # (panel, curve) -> the curve, None if it is missing


class Claim(NamedTuple):
    """A claim and its verdict: True, False, or None if a curve is missing; `numbers` explains the verdict."""

    environment: str
    text: str
    holds: bool | None
    numbers: str


def mean_of_last_1000(curve: MeanCurve) -> float:
    """Return the mean over the last 1000 trajectories; for a curve that left its panel, its last value."""
    x, y = curve
    visible = ~np.isnan(y)
    if not visible[-1]:
        return float(y[visible][-1])
    return float(np.nanmean(y[x > x[-1] - 1000]))


def average_return(curve: MeanCurve) -> float:
    """Return the mean over the whole run, which is proportional to the area under the curve."""
    return float(np.nanmean(curve[1]))


def check_claims(environment: str, tolerant: str, naive: str, read: ReadCurve) -> list[Claim]:
    """Decide the claims about one algorithm and its naive counterpart in one environment."""

    def gain(curve: MeanCurve) -> float:
        return mean_of_last_1000(curve) - UNTRAINED_RETURN[environment]

    def faster(*curves: MeanCurve) -> tuple[bool, str]:
        averages = [average_return(curve) for curve in curves]
        return averages == sorted(averages), ", ".join(f"{value:.0f}" for value in averages) + " on average"

    def breaks(attacked: MeanCurve, unattacked: MeanCurve) -> tuple[bool, str]:
        return gain(attacked) < BROKEN_SHARE * gain(unattacked), f"{mean_of_last_1000(attacked):.0f} at the end"

    def close(defended: MeanCurve, unattacked: MeanCurve) -> tuple[bool, str]:
        numbers = f"{mean_of_last_1000(defended):.0f} and {mean_of_last_1000(unattacked):.0f} at the end"
        return gain(defended) >= CLOSE_SHARE * gain(unattacked), numbers

    def beats(defended: MeanCurve, single: MeanCurve) -> tuple[bool, str]:
        first, second = average_return(defended), average_return(single)
        return first > second, f"{first:.0f} and {second:.0f} on average"

    def claim(text: str, panel: str, decide: Callable[..., tuple[bool, str]], *curves: PaperCurve) -> Claim:
        found = [read(panel, curve) for curve in curves]
        verdict = (None, "curves missing") if any(curve is None for curve in found) else decide(*found)
        return Claim(environment, text, *verdict)

    speedup = f"{tolerant} learns faster with more agents (K=1, 5, 13)"
    claims = [claim(speedup, environment, faster, *speedup_curves(tolerant))]
    for panel, attack in ATTACKS.items():
        single, unattacked, attacked, defended = attack_curves(tolerant, naive, attack)
        # The paper does not claim that RandomAction breaks the naive method on CartPole.
        if panel != "RandomAction" or environment == "LunarLander":
            claims.append(claim(f"{panel}: {naive} breaks", panel, breaks, attacked, unattacked))
        text = f"{panel}: {tolerant} ends close to {naive} without attackers"
        claims.append(claim(text, panel, close, defended, unattacked))
        text = f"{panel}: {tolerant} with attackers beats PAGE-PG alone"
        claims.append(claim(text, panel, beats, defended, single))
    return claims


def compare_claims(results: dict[str, TrainingResult]) -> list[tuple[Claim, Claim]]:
    """Decide every claim twice: for our results, and for the curves of the paper."""
    pairs: list[tuple[Claim, Claim]] = []
    for environment, prefix in (("CartPole", "cartpole"), ("LunarLander", "lunar")):
        for tolerant, naive, suffix in (("DecByzPG", "Dec-PAGE-PG", ""), ("ByzPG", "Fed-PAGE-PG", "_byzPG")):

            def ours(panel: str, curve: PaperCurve, environment: str = environment) -> MeanCurve | None:
                result = results.get(curve.training_name(environment))
                return None if result is None else (result.trajectories, result.returns.mean(axis=0))

            def theirs(panel: str, curve: PaperCurve, prefix: str = prefix, suffix: str = suffix) -> MeanCurve:
                return curve_in_paper(("speedup" if panel in ENVIRONMENTS else prefix) + suffix, panel, curve)

            decided = (check_claims(environment, tolerant, naive, read) for read in (ours, theirs))
            pairs += zip(*decided, strict=True)
    return pairs
