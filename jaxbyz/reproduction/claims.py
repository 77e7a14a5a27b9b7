"""The paper's qualitative claims (section 6, appendix E), decided by numbers, for our curves and for the paper's.

`late` is the mean return over the last 1000 trajectories, `whole` the mean over all of them (the area under the curve).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxbyz.reproduction.figures import AGENTS, ATTACKS, BYZANTINE, Curve

# Returns are compared on a scale that begins where learning does: an untrained policy's.
UNTRAINED = {"CartPole": 20.0, "LunarLander": -180.0}
BROKEN, CLOSE = 0.5, 0.9  # shares of the unattacked naive method's gain

Read = Callable[[str, Curve], tuple[np.ndarray, np.ndarray] | None]


class Claim(NamedTuple):
    """text; holds: True, False, or None where a curve is missing; numbers: what decided it."""

    environment: str
    text: str
    holds: bool | None
    numbers: str


def late(x: np.ndarray, y: np.ndarray) -> float:
    """Mean over the last 1000 trajectories; of a curve that left its panel, its last value."""
    seen = ~np.isnan(y)
    if not seen[-1]:
        return float(y[seen][-1])
    return float(np.nanmean(y[x > x[-1] - 1000]))


def whole(y: np.ndarray) -> float:
    """Mean over the run."""
    return float(np.nanmean(y))


def claims(environment: str, tolerant: str, naive: str, read: Read) -> list[Claim]:
    """The claims on one environment; `read(panel, curve)` gives a curve (x, mean return) or None."""
    alone, calm = Curve("", "PAGE-PG", 1, 0, "none"), Curve("", naive, AGENTS, 0, "none")
    decided: list[Claim] = []

    def add(text: str, panel: str, curves: list[Curve], decide: Callable[..., tuple[bool, str]]) -> None:
        found = [read(panel, curve) for curve in curves]
        missing = any(curve is None for curve in found)
        decided.append(Claim(environment, text, *((None, "curves missing") if missing else decide(*found))))

    def gain(curve: tuple[np.ndarray, np.ndarray]) -> float:
        return late(*curve) - UNTRAINED[environment]

    growing = [alone, *(Curve("", tolerant, K, 0, "none") for K in (5, 13))]
    add(f"{tolerant} learns faster with more agents (K=1, 5, 13)", environment, growing, _faster)
    for title, attack in ATTACKS.items():
        lying, safe = (Curve("", method, AGENTS, BYZANTINE, attack) for method in (naive, tolerant))
        if title != "RandomAction" or environment == "LunarLander":
            add(
                f"{title}: {naive} breaks",
                title,
                [lying, calm],
                lambda a, b: (gain(a) < BROKEN * gain(b), f"{late(*a):.0f} at the end"),
            )
        add(
            f"{title}: {tolerant} ends close to {naive} without attackers",
            title,
            [safe, calm],
            lambda a, b: (gain(a) >= CLOSE * gain(b), f"{late(*a):.0f} and {late(*b):.0f} at the end"),
        )
        add(
            f"{title}: {tolerant} with attackers beats PAGE-PG alone",
            title,
            [safe, alone],
            lambda a, b: (whole(a[1]) > whole(b[1]), f"{whole(a[1]):.0f} and {whole(b[1]):.0f} on average"),
        )
    return decided


def _faster(*curves: tuple[np.ndarray, np.ndarray]) -> tuple[bool, str]:
    areas = [whole(y) for _, y in curves]
    return areas == sorted(areas), ", ".join(f"{area:.0f}" for area in areas) + " on average"
