"""Certificates: one verdict per rule with its reason, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.certify.averaging_agreement import search_agreement
from jaxbyz.certify.proved_bounds import contraction_bound, drift_bound, ratio_bound
from jaxbyz.certify.robust_aggregation import search_aggregator
from jaxbyz.certify.rule_names import AGREEMENT, defending_against, every_rule, largest_tolerated, refusal
from jaxbyz.certify.witnesses import make_witness_folder, save_witness
from jaxbyz.certify.worst_input import Budget
from jaxbyz.errors import UsageError

UNBOUNDED_RATIO = 1e3  # at K = 13, f = 3 the proved bounds on the ratio are about 10 or less
UNBOUNDED_DRIFT = 1e2
LEAST_DECAY = 0.5  # half-way between error ∝ α (1) and an error that does not vanish (0)
ROUNDING = 1e-6  # relative amount by which rounding may exceed a proved bound


@dataclass(frozen=True)
class Certificate:
    """The result for one rule; numbers that do not apply to its kind are NaN.

    Attributes:
        rule: its name.
        agents: the number of agents K.
        byzantine: the number of Byzantine agents f.
        verdict: "cleared" (nothing found against the definition), "broken", or "refused" (the rule cannot be built).
        reason: why it is broken or refused.
        C_ra: of an aggregator, the largest value found.
        C_ra_bound: what is proved; None if we know no bound.
        decay: of an aggregator, the exponent p of error ∝ α^p.
        contraction: of an agreement, the largest honest diameter after one round, in diameters before it.
        contraction_bound: what is proved; None if we know no bound.
        C_avg: of an agreement, the largest movement of the honest mean in one round, in diameters before it.
        C_avg_bound: what is proved; None if we know no bound.
        limit: the largest f that the registry allows; None if there is no limit.
        witness: the file with the input that breaks the rule, if it was saved.
    """

    rule: str
    agents: int
    byzantine: int
    verdict: str
    reason: str = ""
    C_ra: float = math.nan
    C_ra_bound: float | None = None
    decay: float = math.nan
    contraction: float = math.nan
    contraction_bound: float | None = None
    C_avg: float = math.nan
    C_avg_bound: float | None = None
    limit: int | None = None
    witness: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: NaN becomes null, infinity the string "inf"."""

        def plain(value: Any) -> Any:
            if isinstance(value, float) and not math.isfinite(value):
                return None if math.isnan(value) else "inf"
            return value

        return {key: plain(value) for key, value in asdict(self).items()}


def certify(
    rules: Sequence[str] = (),
    *,
    agents: int = 13,
    byzantine: int = 3,
    assumed_byzantine: Sequence[int] = (),
    seed: int = 0,
    budget: Budget | None = None,
    out: str | Path | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> list[Certificate]:
    """Try to break each rule with f Byzantine agents of K.

    Args:
        rules: aggregators ("krum"), chains ("bucketing+krum") and agreements ("agreement/mda"); by default all.
        agents: the number of agents K.
        byzantine: the number of Byzantine agents f.
        assumed_byzantine: the numbers that the rules defend against, one certificate for each; by default f.
        seed: seed of the search.
        budget: how hard to search.
        out: folder for the inputs that break rules; by default they are not saved.
        log: receives one line before each rule.

    Raises:
        UsageError: if a name is unknown, f is below 1, or fewer than two agents are honest, or `out` cannot be created.
    """
    if byzantine < 1:
        raise UsageError(f"byzantine={byzantine}: must be at least 1, because Definition 2 divides by α")
    if agents < byzantine + 2:
        raise UsageError(f"agents={agents} with byzantine={byzantine}: at least two agents must be honest")
    if wrong := [assumed for assumed in assumed_byzantine if not 0 <= assumed < agents]:
        raise UsageError(f"assumed_byzantine={wrong[0]} of agents={agents}: must be between 0 and {agents - 1}")
    names = list(rules) or every_rule()
    if assumed_byzantine:
        names = [defending_against(name, assumed) for name in names for assumed in assumed_byzantine]
        names = list(dict.fromkeys(names))  # a rule that is built from no number occurs once
    limits = [largest_tolerated(name, agents) for name in names]  # unknown names fail before anything is computed
    if out is not None:
        make_witness_folder(out)
    certificates = []
    for number, (name, limit) in enumerate(zip(names, limits, strict=True), start=1):
        log(f"[{number}/{len(names)}] {name}")
        result: dict[str, Any] = {"rule": name, "agents": agents, "byzantine": byzantine, "limit": limit}
        refused = refusal(name, agents, byzantine)
        if refused is not None:
            certificates.append(Certificate(**result, verdict="refused", reason=refused))
            continue
        judge = _judge_agreement if name.startswith(AGREEMENT) else _judge_aggregator
        numbers, arrays = judge(name, agents, byzantine, seed, budget or Budget())
        broken = bool(numbers["reason"])
        if broken and out is not None:
            result["witness"] = save_witness(out, name, agents, byzantine, seed, arrays)
        certificates.append(Certificate(**result, **numbers, verdict="broken" if broken else "cleared"))
    return certificates


Judgement = tuple[dict[str, Any], dict[str, np.ndarray]]  # fields of the certificate, arrays of the witness


def _judge_aggregator(name: str, K: int, f: int, seed: int, budget: Budget) -> Judgement:
    found = search_aggregator(name, K, f, seed, budget)
    bound = ratio_bound(name, K, f)
    reason = ""
    if found.ratio > UNBOUNDED_RATIO:
        reason = "error without bound"
    elif bound is not None and found.ratio > bound * (1 + ROUNDING):
        reason = "above its proved bound"
    elif found.decay < LEAST_DECAY:
        reason = "error does not vanish with α"
    numbers = {
        "reason": reason,
        "C_ra": found.ratio * K / f,
        "C_ra_bound": None if bound is None else bound * K / f,
        "decay": found.decay,
    }
    return numbers, {"messages": found.messages, "mask": found.mask, "ratio": np.asarray(found.ratio)}


def _judge_agreement(name: str, K: int, f: int, seed: int, budget: Budget) -> Judgement:
    found = search_agreement(name, K, f, seed, budget)
    rule = name.removeprefix(AGREEMENT)
    most_contraction, most_drift = contraction_bound(rule, K, f, budget.dimension_for(K)), drift_bound(rule, K, f)
    reason, quantity = "", "contraction"
    if found.contraction >= 1 - 1e-9:
        reason = "does not contract"
    elif found.drift > UNBOUNDED_DRIFT:
        reason, quantity = "mean moves without bound", "drift"
    elif most_contraction is not None and found.contraction > most_contraction * (1 + ROUNDING):
        reason = "above its proved bound"
    elif most_drift is not None and found.drift > most_drift * (1 + ROUNDING):
        reason, quantity = "mean moves above its proved bound", "drift"
    numbers = {
        "reason": reason,
        "contraction": found.contraction,
        "contraction_bound": most_contraction,
        "C_avg": found.drift,
        "C_avg_bound": most_drift,
    }
    worst = {"contraction": found.contraction_witness, "drift": found.drift_witness}[quantity]
    measured = {"quantity": quantity, "contraction": found.contraction, "drift": found.drift}
    return numbers, {**worst, **{name: np.asarray(value) for name, value in measured.items()}}


def rounds_to_halve(contraction: float) -> float:
    """Return ⌈ln 2 / −ln c⌉, the rounds that halve the diameter; infinite if a round need not contract."""
    if math.isnan(contraction):
        return math.nan
    if contraction >= 1:
        return math.inf
    return 1 if contraction <= 0.5 else math.ceil(math.log(2) / -math.log(contraction))


def format_table(certificates: Sequence[Certificate]) -> str:
    """Return Markdown tables of the aggregators (Definition 2) and the agreements (Definition 4)."""
    by_kind: dict[bool, list[str]] = {False: [], True: []}
    for row in certificates:
        is_agreement = row.rule.startswith(AGREEMENT)
        too_many = row.limit is not None and row.byzantine > row.limit
        reason = f": {row.reason}" if row.reason else ""
        verdict = f"{row.verdict}{reason}{' (f beyond its limit)' if too_many else ''}"
        if is_agreement:
            rounds = rounds_to_halve(row.contraction)
            halve = f"{rounds:.0f}" if math.isfinite(rounds) else _number(rounds)
            cells = [_number(row.contraction), _number(row.contraction_bound), halve]
            cells += [_number(row.C_avg), _number(row.C_avg_bound)]
        else:
            cells = [_number(row.C_ra), _number(row.C_ra_bound), _number(row.decay)]
        by_kind[is_agreement].append("| " + " | ".join([row.rule, *cells, verdict]) + " |")
    headings = {
        False: "| rule | C_ra measured | proved bound | error ∝ α^p, p | verdict |\n| --- | --: | --: | --: | --- |\n",
        True: "| agreement | contraction measured | proved bound | rounds to halve | C_avg measured | proved bound "
        "| verdict |\n| --- | --: | --: | --: | --: | --: | --- |\n",
    }
    return "\n\n".join(headings[kind] + "\n".join(lines) for kind, lines in by_kind.items() if lines)


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if abs(value) < 1e3 else f"{value:.1e}"
