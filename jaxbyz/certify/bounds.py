"""What is proved: bounds on the ratios of Definitions 2 and 4, where theory gives a number.

Literature on aggregation states ‖a − x̄‖² ≤ κ·(1/h) Σ_i ‖x_i − x̄‖² over the h honest. Definition 2's right side without
C_ra·α is (1/(h(h−1))) Σ_{i,l} ‖x_i − x_l‖² = (2/(h−1)) Σ_i ‖x_i − x̄‖², so κ bounds our ratio by κ(h−1)/(2h).
"""

from __future__ import annotations

import math

from jaxbyz.registry import parse_spec
from jaxbyz.rules.smea import SUBSETS


def kappa(name: str, n: int, f: int) -> float | None:
    """κ of one aggregator for f of n; None where no explicit constant is known to us.

    Krum with n − f neighbours, geometric median, median, trimmed mean: Allouah et al. 2023, table 1 (Fixing by Mixing);
    RFA's few rounds stand for the geometric median.
    MDA and MoNNA: they drop f honest messages for f liars, each at most 2Δ away through a kept honest message, so the
    error is at most 2fΔ/(n−f), and Δ² ≤ 2 Σ_i ‖x_i − x̄‖².
    SMEA, where it is exact: dropping k points of a set with covariance λ, so that m are left, moves its mean by at most
    √(λk/m). The kept set and the honest one share n − 2f points, and λ is no larger for the kept, so the error is at
    most 2√(λf/(n−2f)). (Allouah et al. 2023, trilemma, have 4f(n−f)/(n−2f)² instead of 4f/(n−2f).)
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
        return 2.0 * h * (2.0 * f / (n - f)) ** 2
    return None


def ratio_bound(name: str, n: int, f: int) -> float | None:
    """Bound on ‖a − x̄‖² over Definition 2's spread (that is on C_ra·α) for a name, a chain included.

    NNM in front of a rule with κ: 8f/(n−f)·(κ + 1) (Allouah et al. 2023, lemma 1).
    """
    *before, last = (parse_spec(part) for part in name.split("+"))
    if last[1] or any(options for _, options in before):
        return None  # options change the rule
    value = kappa(last[0], n, f)
    for pre, _ in reversed(before):
        value = None if value is None or pre != "nnm" else 8.0 * f / (n - f) * (value + 1.0)
    h = n - f
    return None if value is None else value * (h - 1) / (2 * h)


def contraction_bound(name: str, n: int, f: int, dimension: int) -> float | None:
    """Bound on the honest diameter after one round over that before.

    MDA: two receivers share at least n − 3f honest messages; of the others pair f honest with f honest (Δ apart) and f
    lies with f lies (2Δ, through a common honest message): 3f/(n−f), below one exactly while f < n/4. GDA: a lie is
    within Δ of its receiver, two lies within 3Δ: 4f/(n−f), below one while f < n/5. Trimmed mean: f/(n−2f) in each
    coordinate, below one while f < n/3, times √min(D, h−1) for the Euclidean norm.
    """
    h = n - f
    if name == "mda":
        return 3.0 * f / h
    if name == "gda":
        return 4.0 * f / h
    if name == "trimmed-mean" and n > 2 * f:
        return f / (n - 2 * f) * math.sqrt(min(dimension, max(h - 1, 1)))
    return None


def drift_bound(name: str, n: int, f: int, dimension: int) -> float | None:
    """Bound on how far the honest mean moves in one round over the honest diameter before it: MDA and GDA 2f/(n−f)."""
    return 2.0 * f / (n - f) if name in ("mda", "gda") else None
