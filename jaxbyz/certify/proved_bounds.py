"""Proved bounds on the ratios of Definitions 2 and 4, where theory gives a number.

The literature on aggregation states ‖a − x̄‖² ≤ κ·(1/h) Σ_i ‖x_i − x̄‖² over the h honest messages. Definition 2's right
side without C_ra·α is (1/(h(h−1))) Σ_{i,l} ‖x_i − x_l‖² = (2/(h−1)) Σ_i ‖x_i − x̄‖², so C_ra·α is at most κ(h−1)/(2h).

References:
    Allouah et al., Fixing by mixing, 2023 (table 1 and lemma 1).
    Allouah et al., On the privacy-robustness-utility trilemma in distributed learning, 2023 (SMEA).
"""

from __future__ import annotations

import math

from jaxbyz.registry import parse_spec
from jaxbyz.rules.smea import SUBSETS


def kappa(name: str, n: int, f: int) -> float | None:
    """Return κ of one aggregator for f of n; None if we know no explicit constant.

    - Krum with n − f neighbours, geometric median, median, trimmed mean: table 1 of Fixing by mixing. RFA is treated as
      the geometric median that it approximates.
    - MDA and MoNNA exchange at most f honest messages for f Byzantine ones, each at most 2Δ away: Δ to a kept
      honest message and Δ from there. Hence the error is at most 2fΔ/(n−f), and Δ² ≤ 2 Σ_i ‖x_i − x̄‖².
    - SMEA, where it is exact: removing k points from a set with covariance λ, so that m remain, moves its mean by at
      most √(λk/m). The kept set and the honest set share n − 2f points, and λ is no larger for the kept set, so the
      error is at most 2√(λf/(n−2f)) and κ = 4f/(n−2f). (The trilemma paper proves 4f(n−f)/(n−2f)².)
    """
    if 2 * f >= n:
        return None
    g = f / (n - 2 * f)
    if name == "krum":
        return 6.0 * (1.0 + g)
    if name in ("rfa", "median"):
        return 4.0 * (1.0 + g) ** 2
    if name == "trimmed-mean":
        return 6.0 * g * (1.0 + g)
    if name == "smea":
        return 4.0 * g if math.comb(n, f) <= SUBSETS else None
    if name in ("mda", "monna"):
        h = n - f
        return 2.0 * h * (2.0 * f / h) ** 2
    return None


def ratio_bound(name: str, n: int, f: int) -> float | None:
    """Return a bound on C_ra·α for the name of an aggregator or a chain; None if we know none.

    NNM in front of a rule with κ has 8f/(n−f)·(κ + 1) (lemma 1 of Fixing by mixing).
    """
    *before, last = (parse_spec(part) for part in name.split("+"))
    if any(options for _, options in (*before, last)):
        return None  # options change the rule
    value = kappa(last[0], n, f)
    for pre_aggregator, _ in reversed(before):
        value = None if value is None or pre_aggregator != "nnm" else 8.0 * f / (n - f) * (value + 1.0)
    h = n - f
    return None if value is None else value * (h - 1) / (2 * h)


def contraction_bound(name: str, n: int, f: int, dimension: int) -> float | None:
    """Return a bound on the honest diameter after one round, in diameters Δ before it; None if we know none.

    - MDA: two receivers share at least n − 3f honest messages. Of the others, f honest ones are paired with f honest
      ones (Δ apart), and f Byzantine ones with f Byzantine ones (2Δ apart, through a common honest message). The sum
      3f/(n−f) is below one exactly for f < n/4.
    - GDA: a Byzantine message is within Δ of its receiver, two of them within 3Δ. 4f/(n−f) is below one for f < n/5.
    - Trimmed mean: f/(n−2f) in each coordinate, below one for f < n/3, times √min(D, h−1) for the Euclidean norm.
    """
    h = n - f
    if name == "mda":
        return 3.0 * f / h
    if name == "gda":
        return 4.0 * f / h
    if name == "trimmed-mean" and n > 2 * f:
        return f / (n - 2 * f) * math.sqrt(min(dimension, max(h - 1, 1)))
    return None


def drift_bound(name: str, n: int, f: int) -> float | None:
    """Return a bound on how far the honest mean moves in one round, in diameters before it: MDA and GDA 2f/(n−f)."""
    return 2.0 * f / (n - f) if name in ("mda", "gda") else None
